// SPDX-License-Identifier: MIT
// The CPU device: everything is done when a call returns, so events are born complete.
#include "device/device.h"

#include <algorithm>
#include <cstring>

#include "common/registry.h"
#include "common/simd.h"
#include "kernels/shared/host_buffer.h"
#include "kernels/shared/views.h"
#include "tenon/plugin.h"

namespace tenon::cpu {

using kernels::at;
using kernels::dense_dims;
using kernels::for_runs;
using kernels::run_bytes;

namespace {

class InlineStream final : public Implements<InlineStream, Stream> {
  public:
    void* native() noexcept override { return nullptr; }
};

class DoneEvent final : public Implements<DoneEvent, Event> {
  public:
    bool done() noexcept override { return true; }
    Status wait(int64_t) noexcept override { return {}; }
};

}  // namespace

CpuDevice::CpuDevice(Host* host, const DeviceOptions& options)
    : pool_(options.threads, host),
      simd_(!options.reference && simd_usable()),
      total_(kernels::machine_memory().total) {
    context_.pool = &pool_;
    context_.workers = pool_.workers();
    Registry registry(&context_, simd_);
    add_all(registry);
    ops_ = registry.take();
}

void* CpuDevice::query(StrView facet) noexcept {
    if (facet == StrView(Device::kFacet)) {
        return static_cast<Device*>(this);
    }
    if (facet == StrView(OpTable::kFacet)) {
        return static_cast<OpTable*>(this);
    }
    if (facet == StrView(ParallelFor::kFacet)) {
        return static_cast<ParallelFor*>(&pool_);
    }
    return nullptr;
}

DeviceInfo CpuDevice::info() noexcept {
    DeviceInfo info;
    info.unified_memory = true;
    info.cpu = true;
    info.bytes_free = free_.get([] { return kernels::machine_memory().free; });
    info.bytes_total = total_;
    info.threads = pool_.workers();
    set_text(info.name, "cpu");
    set_text(info.arch, simd_ ? simd_arch() : "cpu-reference");
    return info;
}

Status CpuDevice::allocate(const BufferDesc& desc, Buffer** out) noexcept {
    return kernels::allocate_buffer(desc, out);
}

Status CpuDevice::create_stream(const StreamDesc&, Stream** out) noexcept {
    return guard([&] { *out = new InlineStream; });
}

Status CpuDevice::create_event(Event** out) noexcept {
    return guard([&] { *out = new DoneEvent; });
}

Status CpuDevice::record(Event&, Stream&) noexcept {
    return {};
}

Status CpuDevice::copy(const TensorView& dst, const TensorView& src, Stream&) noexcept {
    TENON_TRY(kernels::check_copy(dst, src));
    if (dst.elements() == 0) {
        return {};
    }
    const int64_t dims = std::min(dense_dims(dst), dense_dims(src));
    const auto bytes = static_cast<size_t>(run_bytes(dst, dims));
    for_runs(dst, dims, [&](const int64_t* index) {
        std::memmove(at(dst, index, dst.rank - dims), at(src, index, dst.rank - dims), bytes);
    });
    return {};
}

Status CpuDevice::fill_zero(const TensorView& dst, Stream&) noexcept {
    if (dst.elements() == 0) {
        return {};
    }
    if (dst.null()) {
        return error(Code::invalid_argument, "fill_zero: {} has no data", describe(dst));
    }
    const int64_t dims = dense_dims(dst);
    const auto bytes = static_cast<size_t>(run_bytes(dst, dims));
    for_runs(dst, dims,
             [&](const int64_t* index) { std::memset(at(dst, index, dst.rank - dims), 0, bytes); });
    return {};
}

}  // namespace tenon::cpu
