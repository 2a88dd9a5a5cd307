// SPDX-License-Identifier: MIT
// Runs the tests of a quantisation format on a GPU: a format around the tested one that loads onto
// a small GPU device, and takes host views in calls by copying them there and back.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "tenon/quant.h"
#include "tenon/testing/host_device.h"

namespace tenon::testing {

inline Status cuda_ok(cudaError_t result) {
    return result == cudaSuccess ? Status() : error(Code::device, "{}", cudaGetErrorString(result));
}

inline bool has_gpu() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

/// Device memory filled with 0xFF (NaN), or with zeros.
class GpuMemory final : public Implements<GpuMemory, Buffer> {
  public:
    explicit GpuMemory(int64_t size, int fill = 0) : size_(size) {
        // One byte more would not be noticed; a sanitizer run tells.
        const auto bytes = static_cast<size_t>(std::max<int64_t>(size, 1));
        if (cudaMalloc(&data_, bytes) != cudaSuccess ||
            cudaMemset(data_, fill, bytes) != cudaSuccess ||
            cudaDeviceSynchronize() != cudaSuccess) {
            std::abort();
        }
    }
    GpuMemory(const GpuMemory&) = delete;
    GpuMemory& operator=(const GpuMemory&) = delete;
    ~GpuMemory() { static_cast<void>(cudaFree(data_)); }
    void* data() noexcept override { return data_; }
    int64_t bytes() noexcept override { return size_; }
    Place place() noexcept override { return Place::device; }

  private:
    void* data_ = nullptr;
    int64_t size_;
};

class GpuStream final : public Implements<GpuStream, Stream> {
  public:
    GpuStream() { static_cast<void>(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    ~GpuStream() { static_cast<void>(cudaStreamDestroy(stream_)); }
    void* native() noexcept override { return stream_; }

  private:
    cudaStream_t stream_ = nullptr;
};

/// Pinned host memory.
class PinnedMemory final : public Implements<PinnedMemory, Buffer> {
  public:
    explicit PinnedMemory(int64_t size) : size_(size) {
        if (cudaMallocHost(&data_, static_cast<size_t>(std::max<int64_t>(size, 1))) !=
            cudaSuccess) {
            std::abort();
        }
    }
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;
    ~PinnedMemory() { static_cast<void>(cudaFreeHost(data_)); }
    void* data() noexcept override { return data_; }
    int64_t bytes() noexcept override { return size_; }
    Place place() noexcept override { return Place::pinned; }

  private:
    void* data_ = nullptr;
    int64_t size_;
};

class GpuEvent final : public Implements<GpuEvent, Event> {
  public:
    GpuEvent() { static_cast<void>(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
    ~GpuEvent() { static_cast<void>(cudaEventDestroy(event_)); }
    bool done() noexcept override { return cudaEventQuery(event_) != cudaErrorNotReady; }
    Status wait(int64_t) noexcept override { return cuda_ok(cudaEventSynchronize(event_)); }
    Status record(Stream& stream) {
        return cuda_ok(cudaEventRecord(event_, static_cast<cudaStream_t>(stream.native())));
    }

  private:
    cudaEvent_t event_ = nullptr;
};

/// Memory, streams and copies of GPU 0; what a quantisation format needs.
class GpuDevice final : public Implements<GpuDevice, Device> {
  public:
    DeviceInfo info() noexcept override {
        DeviceInfo i;
        cudaDeviceProp properties{};
        static_cast<void>(cudaGetDeviceProperties(&properties, 0));
        set_text(i.name, properties.name);
        set_text(i.arch, format("sm_{}{}", properties.major, properties.minor));
        i.threads = 0;
        return i;
    }
    Status allocate(const BufferDesc& desc, Buffer** out) noexcept override {
        return guard([&] {
            *out = desc.kind == BufferKind::device ? static_cast<Buffer*>(new GpuMemory(desc.bytes))
                                                   : new PinnedMemory(desc.bytes);
        });
    }
    Status create_stream(const StreamDesc&, Stream** out) noexcept override {
        return guard([&] { *out = new GpuStream; });
    }
    Status create_event(Event** out) noexcept override {
        return guard([&] { *out = new GpuEvent; });
    }
    Status copy(const TensorView& dst, const TensorView& src, Stream& stream) noexcept override {
        auto* native = static_cast<cudaStream_t>(stream.native());
        if (dst.dense() && src.dense()) {
            return cuda_ok(cudaMemcpyAsync(dst.data, src.data, static_cast<size_t>(dst.bytes()),
                                           cudaMemcpyDefault, native));
        }
        for (int64_t i = 0; i < dst.shape[0]; ++i) {
            TensorView to = dst, from = src;
            to.data = dst.as<char>() + i * dst.stride[0] * dtype_bytes(dst.dtype);
            from.data = src.as<char>() + i * src.stride[0] * dtype_bytes(src.dtype);
            for (TensorView* v : {&to, &from}) {
                --v->rank;
                std::copy_n(v->shape + 1, v->rank, v->shape);
                std::copy_n(v->stride + 1, v->rank, v->stride);
            }
            TENON_TRY(copy(to, from, stream));
        }
        return {};
    }
    Status fill_zero(const TensorView& dst, Stream& stream) noexcept override {
        return cuda_ok(cudaMemsetAsync(dst.data, 0, static_cast<size_t>(dst.bytes()),
                                       static_cast<cudaStream_t>(stream.native())));
    }
    Status record(Event& event, Stream& stream) noexcept override {
        return static_cast<GpuEvent&>(event).record(stream);
    }
    Status wait(Stream&, Event&) noexcept override { return error(Code::unsupported, "events"); }
    Status synchronize(Stream& stream) noexcept override {
        return cuda_ok(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.native())));
    }
    uint64_t fault_count() noexcept override { return 0; }
};

/// Host views of one call, mirrored on the GPU.
class Mirror {
  public:
    Mirror(GpuDevice& device, Stream& stream) : device_(device), stream_(stream) {}

    /// The extent of `v` from its first to its last element; other bytes of it stay 0xFF.
    TensorView in(const TensorView& v) {
        TensorView mirrored = v;
        if (v.null() || v.elements() == 0) {
            return mirrored;
        }
        int64_t last = 1;
        for (int i = 0; i < v.rank; ++i) {
            last += (v.shape[i] - 1) * v.stride[i];
        }
        memory_.emplace_back(new GpuMemory(last * dtype_bytes(v.dtype), 0xFF));
        mirrored.data = memory_.back()->data();
        mirrored.place = Place::device;
        if (v.dtype != DType::u8) {  // scratch is never read before it is written
            note(device_.copy(mirrored, v, stream_));
        }
        return mirrored;
    }
    void out(const TensorView& host, const TensorView& gpu) {
        if (!host.null() && host.elements() > 0) {
            note(device_.copy(host, gpu, stream_));
            note(device_.synchronize(stream_));
        }
    }
    Status finish(Status status) {
        Status waited = device_.synchronize(stream_);
        return !status.ok() ? std::move(status)
                            : (!failed_.ok() ? std::move(failed_) : std::move(waited));
    }

  private:
    void note(Status s) {
        if (!s.ok()) {
            failed_ = std::move(s);
        }
    }
    GpuDevice& device_;
    Stream& stream_;
    std::vector<Ref<GpuMemory>> memory_;
    Status failed_;
};

/// Shared by a wrapped format and what it loads.
struct Gpu {
    Ref<GpuDevice> device{new GpuDevice};
    Ref<GpuStream> stream{new GpuStream};
};

class MirroredWeight final : public Implements<MirroredWeight, QuantWeight, QuantDequant> {
  public:
    MirroredWeight(std::shared_ptr<Gpu> gpu, QuantWeight* tested)
        : gpu_(std::move(gpu)), tested_(tested) {}
    QuantInfo info() noexcept override { return tested_->info(); }
    int64_t device_bytes() noexcept override { return tested_->device_bytes(); }
    int64_t scratch_bytes(int64_t rows, Regime regime, DType y) noexcept override {
        return tested_->scratch_bytes(rows, regime, y);
    }
    Status linear(const LinearArgs& args, Stream&) noexcept override {
        return guard([&]() -> Status {
            Mirror mirror(*gpu_->device, *gpu_->stream);
            LinearArgs a = args;
            a.x = mirror.in(args.x);
            a.y = mirror.in(args.y);
            a.scratch = mirror.in(args.scratch);
            Status status = tested_->linear(a, *gpu_->stream);
            if (status.ok()) {
                mirror.out(args.y, a.y);
            }
            return mirror.finish(std::move(status));
        });
    }
    Status dequantize(int64_t row0, const TensorView& dst) noexcept override {
        return facet_of<QuantDequant>(tested_.get())->dequantize(row0, dst);
    }

  private:
    std::shared_ptr<Gpu> gpu_;
    Ref<QuantWeight> tested_;
};

class MirroredGroup final : public Implements<MirroredGroup, QuantGroup> {
  public:
    MirroredGroup(std::shared_ptr<Gpu> gpu, QuantGroup* tested)
        : gpu_(std::move(gpu)), tested_(tested) {}
    int64_t device_bytes() noexcept override { return tested_->device_bytes(); }
    int64_t scratch_bytes(int64_t rows, Regime regime) noexcept override {
        return tested_->scratch_bytes(rows, regime);
    }
    Status linear(const TensorView& x, Span<const TensorView> ys, Regime regime,
                  const TensorView& scratch, Stream&) noexcept override {
        return guard([&]() -> Status {
            Mirror mirror(*gpu_->device, *gpu_->stream);
            std::vector<TensorView> mirrored;
            for (const TensorView& y : ys) {
                mirrored.push_back(mirror.in(y));
            }
            Status status =
                tested_->linear(mirror.in(x), mirrored, regime, mirror.in(scratch), *gpu_->stream);
            for (uint64_t i = 0; status.ok() && i < ys.size; ++i) {
                mirror.out(ys[i], mirrored[i]);
            }
            return mirror.finish(std::move(status));
        });
    }

  private:
    std::shared_ptr<Gpu> gpu_;
    Ref<QuantGroup> tested_;
};

class MirroredExperts final : public Implements<MirroredExperts, QuantExperts> {
  public:
    MirroredExperts(std::shared_ptr<Gpu> gpu, QuantExperts* tested)
        : gpu_(std::move(gpu)), tested_(tested) {}
    int64_t device_bytes() noexcept override { return tested_->device_bytes(); }
    int64_t scratch_bytes(int64_t rows, int32_t k, Regime regime) noexcept override {
        return tested_->scratch_bytes(rows, k, regime);
    }
    Status run(const ExpertsArgs& args, Stream&) noexcept override {
        return guard([&]() -> Status {
            Mirror mirror(*gpu_->device, *gpu_->stream);
            ExpertsArgs a = args;
            a.x = mirror.in(args.x);
            a.ids = mirror.in(args.ids);
            a.weights = mirror.in(args.weights);
            a.out = mirror.in(args.out);
            a.scratch = mirror.in(args.scratch);
            Status status = tested_->run(a, *gpu_->stream);
            if (status.ok()) {
                mirror.out(args.out, a.out);
            }
            return mirror.finish(std::move(status));
        });
    }
    void keep_f32(bool on) noexcept override { tested_->keep_f32(on); }

  private:
    std::shared_ptr<Gpu> gpu_;
    Ref<QuantExperts> tested_;
};

/// Loads on the GPU whatever device a request names.
class GpuFormat final : public Implements<GpuFormat, QuantFormat> {
  public:
    explicit GpuFormat(QuantFormat* tested) : tested_(tested) {}
    Status inspect(WeightSource& source, StrView base, QuantInfo* out) noexcept override {
        return tested_->inspect(source, base, out);
    }
    Status load(const WeightRequest& request, QuantWeight** out) noexcept override {
        Ref<QuantWeight> weight;
        TENON_TRY(tested_->load(here(request), weight.out()));
        return guard([&] { *out = new MirroredWeight(gpu_, weight.detach()); });
    }
    Status load_group(Span<const WeightRequest> requests, QuantGroup** out) noexcept override {
        std::vector<WeightRequest> moved;
        for (const WeightRequest& r : requests) {
            moved.push_back(here(r));
        }
        Ref<QuantGroup> group;
        TENON_TRY(tested_->load_group(moved, group.out()));
        return guard([&] { *out = new MirroredGroup(gpu_, group.detach()); });
    }
    Status load_experts(const ExpertsRequest& request, QuantExperts** out) noexcept override {
        ExpertsRequest r = request;
        r.device = request.device == nullptr ? nullptr : gpu_->device.get();
        r.stream = gpu_->stream.get();
        Ref<QuantExperts> experts;
        TENON_TRY(tested_->load_experts(r, experts.out()));
        return guard([&] { *out = new MirroredExperts(gpu_, experts.detach()); });
    }
    Status plan_bytes(const WeightRequest& request, int64_t* out) noexcept override {
        return tested_->plan_bytes(here(request), out);
    }

  private:
    WeightRequest here(const WeightRequest& request) {
        WeightRequest r = request;
        if (r.device != nullptr) {
            r.device = gpu_->device.get();
        }
        r.stream = gpu_->stream.get();
        return r;
    }
    Ref<QuantFormat> tested_;
    std::shared_ptr<Gpu> gpu_ = std::make_shared<Gpu>();
};

}  // namespace tenon::testing
