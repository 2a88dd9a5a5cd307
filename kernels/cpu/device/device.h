// SPDX-License-Identifier: MIT
// The CPU as a device: host memory, streams that run inline, and the op table.
#pragma once

#include <memory>

#include "common/context.h"
#include "kernels/shared/lasting.h"
#include "pool/pool.h"
#include "tenon/compute.h"
#include "tenon/host.h"

namespace tenon::cpu {

struct DeviceOptions {
    int64_t threads = 0;     ///< 0 = all cores
    bool reference = false;  ///< reference kernels only
};

/// Facets compute.device/1, compute.ops/1 and compute.parallel/1 of one object. Thread: see each
/// interface.
class CpuDevice final : public Device, public OpTable {
  public:
    CpuDevice(Host* host, const DeviceOptions& options);

    void* query(StrView facet) noexcept override;
    void release() noexcept override { delete this; }

    /// Cheap, for it is asked once a tensor: `bytes_free` may be a tenth of a second old.
    DeviceInfo info() noexcept override;
    Status allocate(const BufferDesc& desc, Buffer** out) noexcept override;
    Status create_stream(const StreamDesc& desc, Stream** out) noexcept override;
    Status create_event(Event** out) noexcept override;
    Status copy(const TensorView& dst, const TensorView& src, Stream& stream) noexcept override;
    Status fill_zero(const TensorView& dst, Stream& stream) noexcept override;
    Status record(Event& event, Stream& stream) noexcept override;
    Status wait(Stream&, Event&) noexcept override { return {}; }
    Status synchronize(Stream&) noexcept override { return {}; }
    uint64_t fault_count() noexcept override { return context_.faults.load(); }

    Span<const OpEntry> ops() noexcept override { return ops_; }
    StrView provider() noexcept override { return "cpu"; }

    bool simd() const { return simd_; }
    Pool& pool() { return pool_; }

  private:
    ~CpuDevice() = default;

    Pool pool_;
    Context context_;
    bool simd_;
    int64_t total_;  ///< bytes of the machine
    kernels::Lasting free_;
    std::vector<OpEntry> ops_;
};

}  // namespace tenon::cpu
