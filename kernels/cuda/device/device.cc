// SPDX-License-Identifier: MIT
// The GPU as a device: copies by runs on the stream, and errors that name what the host did.
#include "device/device.h"

#include <algorithm>

#include "common/registry.h"
#include "device/clusters.h"
#include "device/math_modes.h"
#include "kernels/shared/host_buffer.h"
#include "kernels/shared/views.h"
#include "tenon/plugin.h"

namespace tenon::cuda {

namespace {

// A view as rows of `bytes`, `count` of them at a pitch, below `outer` slower dimensions.
struct Runs {
    int64_t outer = 0;
    size_t bytes = 0;
    size_t count = 1;
};

Runs runs_of(const TensorView& dst, int64_t dims) {
    Runs r;
    r.bytes = static_cast<size_t>(kernels::run_bytes(dst, dims));
    r.outer = dst.rank - dims;
    if (r.outer > 0) {
        --r.outer;  // one strided dimension goes into the pitch of a 2D transfer
        r.count = static_cast<size_t>(dst.shape[r.outer]);
    }
    return r;
}

size_t pitch(const TensorView& v, const Runs& r) {
    return r.count == 1 ? r.bytes : static_cast<size_t>(v.stride[r.outer] * dtype_bytes(v.dtype));
}

}  // namespace

Status CudaDevice::create(Host* host, int index, bool graphs, std::string_view pinned, int clusters,
                          CudaDevice** out) {
    TENON_ASSIGN(GpuFacts facts, inspect_gpu(index));
    TENON_TRY(use_device(index));
    Ref<CudaDevice> device(new CudaDevice);
    device->graphs_ = graphs;
    TENON_ASSIGN(device->pinned_, choose_pinned(facts, pinned));
    Context& c = device->context_;
    c.device = index;
    c.sms = facts.sms;
    c.arch = kernels_built_for();
    TENON_TRY(cuda_status(
        cudaDeviceGetAttribute(&c.smem_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, index),
        "shared memory of a block"));
    if (c.arch >= 90) {
        int found = 0;
        TENON_TRY(largest_cluster(c.smem_block, &found));
        TENON_ASSIGN(c.cluster_blocks, choose_cluster(facts, found, clusters));
    }
    device->facts_ = std::move(facts);
    void* word = nullptr;
    TENON_TRY(
        cuda_status(cudaHostAlloc(&word, sizeof *c.faults, cudaHostAllocPortable), "fault word"));
    c.faults = static_cast<unsigned long long*>(word);
    *c.faults = 0;
    TENON_TRY(check_math_modes());
    Registry registry(&c);
    add_all(registry);
    device->ops_ = registry.take();
    const DeviceInfo info = device->info();
    host->log(LogLevel::info, "cuda",
              format("ready device={} name=\"{}\" kernels={} sms={} clusters={} bytes_free={} "
                     "unified={} pinned={} "
                     "ops={}",
                     index, StrView(info.name), StrView(info.arch), c.sms, c.cluster_blocks,
                     info.bytes_free, info.unified_memory,
                     device->pinned_ == Pinned::registered ? "registered" : "allocated",
                     device->ops_.size()));
    *out = device.detach();
    return {};
}

CudaDevice::~CudaDevice() {
    if (context_.faults != nullptr) {
        static_cast<void>(cudaFreeHost(context_.faults));
    }
}

void* CudaDevice::query(StrView facet) noexcept {
    if (facet == StrView(Device::kFacet)) {
        return static_cast<Device*>(this);
    }
    if (facet == StrView(OpTable::kFacet)) {
        return static_cast<OpTable*>(this);
    }
    if (facet == StrView(GraphCapture::kFacet) && graphs_) {
        return static_cast<GraphCapture*>(this);
    }
    if (facet == StrView(StreamFlags::kFacet)) {
        return static_cast<StreamFlags*>(this);
    }
    return nullptr;
}

DeviceInfo CudaDevice::info() noexcept {
    DeviceInfo info;
    info.unified_memory = facts_.unified_memory;
    info.cpu = false;
    info.bytes_free = free_.get([&]() -> int64_t {
        if (facts_.unified_memory) {
            // cudaMemGetInfo leaves out what the kernel holds as page cache and gives when asked.
            return std::min(kernels::machine_memory().free, facts_.memory_bytes);
        }
        size_t free = 0;
        size_t total = 0;
        if (use_device(context_.device).ok()) {
            static_cast<void>(cudaMemGetInfo(&free, &total));
        }
        return static_cast<int64_t>(free);
    });
    info.bytes_total = facts_.memory_bytes;
    info.threads = 0;
    info.index = context_.device;
    set_text(info.name, facts_.name);
    set_text(info.arch, facts_.arch);
    return info;
}

Status CudaDevice::allocate(const BufferDesc& desc, Buffer** out) noexcept {
    if (desc.kind == BufferKind::host) {
        return kernels::allocate_buffer(desc, out);
    }
    return guard([&]() -> Status {
        TENON_TRY(use_device(context_.device));
        return allocate_gpu_buffer(desc, pinned_, out);
    });
}

Status CudaDevice::create_stream(const StreamDesc& desc, Stream** out) noexcept {
    return guard([&]() -> Status {
        TENON_TRY(use_device(context_.device));
        return make_stream(desc, out);
    });
}

Status CudaDevice::create_event(Event** out) noexcept {
    return guard([&]() -> Status {
        TENON_TRY(use_device(context_.device));
        return make_event(out);
    });
}

Status CudaDevice::copy(const TensorView& dst, const TensorView& src, Stream& stream) noexcept {
    return guard([&]() -> Status {
        TENON_TRY(kernels::check_copy(dst, src));
        if (dst.elements() == 0) {
            return {};
        }
        TENON_TRY(use_device(context_.device));
        const Runs r = runs_of(dst, std::min(kernels::dense_dims(dst), kernels::dense_dims(src)));
        cudaError_t result = cudaSuccess;
        kernels::for_runs(dst, dst.rank - r.outer, [&](const int64_t* at) {
            void* to = kernels::at(dst, at, r.outer);
            const void* from = kernels::at(src, at, r.outer);
            if (result == cudaSuccess) {
                result = r.count == 1
                             ? cudaMemcpyAsync(to, from, r.bytes, cudaMemcpyDefault, native(stream))
                             : cudaMemcpy2DAsync(to, pitch(dst, r), from, pitch(src, r), r.bytes,
                                                 r.count, cudaMemcpyDefault, native(stream));
            }
        });
        return cuda_status(result, "copy");
    });
}

Status CudaDevice::fill_zero(const TensorView& dst, Stream& stream) noexcept {
    return guard([&]() -> Status {
        if (dst.elements() == 0) {
            return {};
        }
        if (dst.null()) {
            return error(Code::invalid_argument, "fill_zero: {} has no data", describe(dst));
        }
        TENON_TRY(use_device(context_.device));
        const Runs r = runs_of(dst, kernels::dense_dims(dst));
        cudaError_t result = cudaSuccess;
        kernels::for_runs(dst, dst.rank - r.outer, [&](const int64_t* at) {
            void* to = kernels::at(dst, at, r.outer);
            if (result == cudaSuccess) {
                result = r.count == 1 ? cudaMemsetAsync(to, 0, r.bytes, native(stream))
                                      : cudaMemset2DAsync(to, pitch(dst, r), 0, r.bytes, r.count,
                                                          native(stream));
            }
        });
        return cuda_status(result, "fill_zero");
    });
}

Status CudaDevice::record(Event& event, Stream& stream) noexcept {
    TENON_TRY(use_device(context_.device));
    return cuda_status(cudaEventRecord(native(event), native(stream)), "record");
}

Status CudaDevice::wait(Stream& stream, Event& event) noexcept {
    TENON_TRY(use_device(context_.device));
    return cuda_status(cudaStreamWaitEvent(native(stream), native(event), 0), "wait");
}

Status CudaDevice::synchronize(Stream& stream) noexcept {
    TENON_TRY(use_device(context_.device));
    return cuda_status(cudaStreamSynchronize(native(stream)), "synchronize");
}

uint64_t CudaDevice::fault_count() noexcept {
    return *static_cast<volatile unsigned long long*>(context_.faults);
}

}  // namespace tenon::cuda
