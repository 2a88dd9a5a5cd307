// SPDX-License-Identifier: MIT
// Brings checked EXL3 parts into GPU memory, in the order that the kernels read.
#pragma once

#include "kernels/cuda/exl3/api.h"
#include "plugins/quant_common/gpu.h"
#include "tensors.h"

namespace tenon::exl3 {

using quant::gpu_status;
using quant::use_gpu;

/// Whether a part's object is small enough for the kernel of slices.
bool is_sliced(const Part& part);

/// Device bytes of one part; needs shapes only.
int64_t gpu_bytes(const Part& part);

/// Parts of one object, in one buffer. Owns the buffer.
class GpuParts {
  public:
    /// Copies, reorders and waits. `name` is for messages.
    static Status load(Device& device, const std::string& name,
                       const std::vector<const Part*>& parts, GpuParts* out);

    const std::vector<cuda::Weight>& weights() const { return weights_; }
    int64_t bytes() const { return bytes_; }

  private:
    std::vector<cuda::Weight> weights_;
    Ref<Buffer> buffer_;
    int64_t bytes_ = 0;
};

}  // namespace tenon::exl3
