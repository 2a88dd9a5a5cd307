// SPDX-License-Identifier: MIT
// Device and pinned memory, the latter of two kinds: zero-filled, refused by tag.
#include <algorithm>
#include <bit>
#include <cstring>

#include "device/device.h"
#include "kernels/shared/host_buffer.h"

namespace tenon::cuda {

namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kBaseAlignment = 256;  // what cudaMalloc and cudaHostAlloc give at least

class GpuBuffer final : public Implements<GpuBuffer, Buffer> {
  public:
    GpuBuffer(void* base, void* data, int64_t bytes, Place place)
        : base_(base), data_(data), bytes_(bytes), place_(place) {}
    GpuBuffer(const GpuBuffer&) = delete;
    GpuBuffer& operator=(const GpuBuffer&) = delete;
    ~GpuBuffer() {
        // A lost device frees its memory itself; there is nobody to report to.
        static_cast<void>(place_ == Place::device ? cudaFree(base_) : cudaFreeHost(base_));
    }

    void* data() noexcept override { return data_; }
    int64_t bytes() noexcept override { return bytes_; }
    Place place() noexcept override { return place_; }

  private:
    void* base_;
    void* data_;
    int64_t bytes_;
    Place place_;
};

/// Pages of the host that the GPU may use.
class RegisteredBuffer final : public Implements<RegisteredBuffer, Buffer> {
  public:
    explicit RegisteredBuffer(Ref<Buffer> pages) : pages_(std::move(pages)) {}
    RegisteredBuffer(const RegisteredBuffer&) = delete;
    RegisteredBuffer& operator=(const RegisteredBuffer&) = delete;
    ~RegisteredBuffer() { static_cast<void>(cudaHostUnregister(pages_->data())); }

    void* data() noexcept override { return pages_->data(); }
    int64_t bytes() noexcept override { return pages_->bytes(); }
    Place place() noexcept override { return Place::pinned; }

  private:
    Ref<Buffer> pages_;
};

Status does_not_fit(const BufferDesc& desc) {
    static_cast<void>(cudaGetLastError());  // a refused allocation leaves the device usable
    size_t free = 0;
    size_t total = 0;
    static_cast<void>(cudaMemGetInfo(&free, &total));
    return error(Code::does_not_fit, "buffer '{}': {} bytes of {} memory wanted, {} free", desc.tag,
                 desc.bytes, desc.kind == BufferKind::device ? "device" : "pinned", free);
}

Status register_buffer(const BufferDesc& desc, Buffer** out) {
    BufferDesc wanted = desc;
    wanted.alignment = std::max(desc.alignment, kPage);  // a page belongs to one buffer
    Ref<Buffer> pages;
    TENON_TRY(kernels::allocate_buffer(wanted, pages.out()));
    const auto bytes = static_cast<size_t>((std::max<int64_t>(desc.bytes, 1) + kPage - 1) & -kPage);
    const cudaError_t result =
        cudaHostRegister(pages->data(), bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (result == cudaErrorMemoryAllocation) {
        return does_not_fit(desc);
    }
    TENON_TRY_CTX(cuda_status(result, "registration"), "buffer '{}'", desc.tag);
    *out = new RegisteredBuffer(std::move(pages));
    return {};
}

}  // namespace

Status allocate_gpu_buffer(const BufferDesc& desc, Pinned pinned, Buffer** out) {
    if (desc.bytes < 0 || desc.alignment <= 0 ||
        !std::has_single_bit(static_cast<uint64_t>(desc.alignment))) {
        return error(Code::invalid_argument,
                     "buffer '{}': {} bytes aligned to {}, expected a size >= 0 and a power of two",
                     desc.tag, desc.bytes, desc.alignment);
    }
    if (desc.kind == BufferKind::pinned && pinned == Pinned::registered) {
        return register_buffer(desc, out);
    }
    const int64_t slack = desc.alignment > kBaseAlignment ? desc.alignment : 0;
    const auto bytes = static_cast<size_t>(std::max<int64_t>(desc.bytes, 1) + slack);
    const bool device = desc.kind == BufferKind::device;
    void* base = nullptr;
    const cudaError_t result =
        device ? cudaMalloc(&base, bytes) : cudaHostAlloc(&base, bytes, cudaHostAllocPortable);
    if (result == cudaErrorMemoryAllocation || result == cudaErrorInvalidValue) {
        return does_not_fit(desc);
    }
    TENON_TRY_CTX(cuda_status(result, "allocation"), "buffer '{}'", desc.tag);
    const auto mask = static_cast<uintptr_t>(std::max(desc.alignment, kBaseAlignment)) - 1;
    auto* data = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(base) + mask) & ~mask);
    Ref<Buffer> buffer(
        new GpuBuffer(base, data, desc.bytes, device ? Place::device : Place::pinned));
    if (device) {
        cudaError_t zeroed = cudaMemset(base, 0, bytes);
        if (zeroed == cudaSuccess) {
            zeroed = cudaStreamSynchronize(nullptr);
        }
        TENON_TRY_CTX(cuda_status(zeroed, "zero fill"), "buffer '{}'", desc.tag);
    } else {
        std::memset(base, 0, bytes);
    }
    *out = buffer.detach();
    return {};
}

}  // namespace tenon::cuda
