// SPDX-License-Identifier: MIT
// One GPU: memory, streams, graphs, flags, and the op table.
#pragma once

#include <memory>

#include "common/context.h"
#include "device/probe.h"
#include "kernels/shared/lasting.h"
#include "tenon/compute.h"
#include "tenon/host.h"

namespace tenon::cuda {

/// Facets compute.device/1, compute.ops/1, compute.graphs/1 and compute.flags/1 of one object.
/// Thread: see each interface; every call makes the GPU current on its thread.
class CudaDevice final : public Device, public OpTable, public GraphCapture, public StreamFlags {
  public:
    /// errors  unavailable: see inspect_gpu; device; internal: not IEEE arithmetic
    /// graphs  false: the facet compute.graphs/1 is not offered
    /// pinned, clusters  see choose_pinned, choose_cluster
    static Status create(Host* host, int index, bool graphs, std::string_view pinned, int clusters,
                         CudaDevice** out);

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
    Status wait(Stream& stream, Event& event) noexcept override;
    Status synchronize(Stream& stream) noexcept override;
    uint64_t fault_count() noexcept override;

    Span<const OpEntry> ops() noexcept override { return ops_; }
    StrView provider() noexcept override { return "cuda"; }

    Status begin(Stream& stream) noexcept override;
    Status end(Stream& stream, Graph** out) noexcept override;

    /// Waits on the stream until *word >= value in the order of wrapping 32-bit counters, so a
    /// word that was set to a later value (an error mark too) also ends the wait.
    Status wait_flag(Stream& stream, const uint32_t* word, uint32_t value) noexcept override;

  private:
    CudaDevice() = default;
    ~CudaDevice();

    GpuFacts facts_;
    kernels::Lasting free_;  // the driver takes long to say
    Context context_;
    std::vector<OpEntry> ops_;
    bool graphs_ = true;
    Pinned pinned_ = Pinned::allocated;
};

/// Zero-filled device or pinned memory on the calling thread's GPU.
/// errors  invalid_argument: size or alignment; does_not_fit: names tag, wanted and free; device
Status allocate_gpu_buffer(const BufferDesc& desc, Pinned pinned, Buffer** out);

Status make_stream(const StreamDesc& desc, Stream** out);
Status make_event(Event** out);
cudaEvent_t native(Event& event);

}  // namespace tenon::cuda
