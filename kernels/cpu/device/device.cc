// SPDX-License-Identifier: MIT
// The CPU device: everything is done when a call returns, so events are born complete.
#include "device/device.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "common/registry.h"
#include "common/simd.h"
#include "device/buffer.h"
#include "tenon/plugin.h"

namespace tenon::cpu {

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

// Calls row(dst, src) for each run of contiguous elements of two views of one shape.
template <class Row>
void for_runs(const TensorView& v, int64_t run_dims, Row&& row) {
    int64_t index[kMaxRank] = {};
    const int64_t outer = v.rank - run_dims;
    for (;;) {
        row(index);
        int64_t i = outer - 1;
        for (; i >= 0; --i) {
            if (++index[i] < v.shape[i]) {
                break;
            }
            index[i] = 0;
        }
        if (i < 0) {
            return;
        }
    }
}

// Trailing dimensions that are contiguous in v.
int64_t dense_dims(const TensorView& v) {
    int64_t want = 1;
    int64_t dims = 0;
    for (int i = v.rank - 1; i >= 0; --i) {
        if (v.shape[i] != 1 && v.stride[i] != want) {
            break;
        }
        want *= v.shape[i];
        ++dims;
    }
    return dims;
}

char* at(const TensorView& v, const int64_t* index, int64_t outer) {
    int64_t offset = 0;
    for (int64_t i = 0; i < outer; ++i) {
        offset += index[i] * v.stride[i];
    }
    return static_cast<char*>(v.data) + offset * dtype_bytes(v.dtype);
}

int64_t run_bytes(const TensorView& v, int64_t run_dims) {
    int64_t n = dtype_bytes(v.dtype);
    for (int64_t i = v.rank - run_dims; i < v.rank; ++i) {
        n *= v.shape[i];
    }
    return n;
}

}  // namespace

Memory machine_memory() {
    Memory m;
    if (std::FILE* f = std::fopen("/proc/meminfo", "r")) {
        char line[160];
        long long kib = 0;
        while (std::fgets(line, sizeof line, f) != nullptr) {
            if (std::sscanf(line, "MemTotal: %lld kB", &kib) == 1) {
                m.total = kib * 1024;
            } else if (std::sscanf(line, "MemAvailable: %lld kB", &kib) == 1) {
                m.free = kib * 1024;
            }
        }
        std::fclose(f);
    }
    return m;
}

CpuDevice::CpuDevice(Host* host, const DeviceOptions& options)
    : pool_(options.threads, host), simd_(!options.reference && simd_usable()) {
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
    const Memory m = machine_memory();
    info.unified_memory = true;
    info.cpu = true;
    info.bytes_free = m.free;
    info.bytes_total = m.total;
    info.threads = pool_.workers();
    set_text(info.name, "cpu");
    set_text(info.arch, simd_ ? simd_arch() : "cpu-reference");
    return info;
}

Status CpuDevice::allocate(const BufferDesc& desc, Buffer** out) noexcept {
    return allocate_buffer(desc, out);
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
    bool same = dst.dtype == src.dtype && dst.rank == src.rank;
    for (int i = 0; same && i < dst.rank; ++i) {
        same = dst.shape[i] == src.shape[i];
    }
    if (!same) {
        return error(Code::invalid_argument, "copy: dst is {}, src is {}, expected equal views",
                     describe(dst), describe(src));
    }
    if (dst.elements() == 0) {
        return {};
    }
    if (dst.null() || src.null()) {
        return error(Code::invalid_argument, "copy: {} of {} has no data",
                     dst.null() ? "dst" : "src", describe(dst));
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
