// SPDX-License-Identifier: MIT
// Brings checked parts of ordinary matrices into GPU memory.
#pragma once

#include "kernels/cuda/plain/plain.h"
#include "plugins/quant_common/gpu.h"
#include "tensors.h"

namespace tenon::plain {

/// Device bytes of one part; needs shapes only.
int64_t gpu_bytes(const Part& part);

/// Parts of one object, in one buffer. Owns the buffer.
class GpuParts {
  public:
    /// Reads, copies and waits; null parts give weights without codes.
    static Status load(Device& device, const std::string& name,
                       const std::vector<const Part*>& parts, GpuParts* out);

    const std::vector<cuda::Weight>& weights() const { return weights_; }
    int64_t bytes() const { return bytes_; }

  private:
    std::vector<cuda::Weight> weights_;
    Ref<Buffer> buffer_;
    int64_t bytes_ = 0;
};

}  // namespace tenon::plain
