// SPDX-License-Identifier: MIT
// What the GPU backends of the formats share: errors, the calling thread's device, lists of parts
// and the table of experts.
#pragma once

#include <cuda_runtime_api.h>

#include "backend.h"
#include "tenon/plugin.h"

namespace tenon::quant {

/// Errors of the CUDA runtime as Status.
inline Status gpu_status(cudaError_t result, StrView what) {
    if (result == cudaSuccess) {
        return {};
    }
    static_cast<void>(cudaGetLastError());  // said here: no later launch may find it
    return error(Code::device, "{}: {}: {}", what, cudaGetErrorName(result),
                 cudaGetErrorString(result));
}

/// Makes the GPU of a device current on this thread; cheap if it is.
inline Status use_gpu(int32_t index) {
    int current = -1;
    if (cudaGetDevice(&current) == cudaSuccess && current == index) {
        return {};
    }
    return gpu_status(cudaSetDevice(index), "cudaSetDevice");
}

/// errors  unsupported: the device is no NVIDIA GPU; `format` and `base` are for the message
inline Status require_gpu(Device& device, StrView format_name, StrView base) {
    const DeviceInfo info = device.info();
    const std::string_view arch(info.arch);
    if (arch.starts_with("sm_") || arch.starts_with("compute_")) {  // a binary, or PTX
        return {};
    }
    return error(Code::unsupported, "{}: '{}' cannot be loaded on device '{}' ({}): no kernels",
                 format_name, base, info.name, info.arch);
}

template <class Part>
std::vector<const Part*> pointers(const std::vector<Part>& parts) {
    std::vector<const Part*> list;
    for (const Part& p : parts) {
        list.push_back(&p);
    }
    return list;
}

/// Matrices of a layer's experts: all w1, then w3, then w2, each with the shared expert's last.
/// Null: not held by this rank.
template <class Part>
std::vector<const Part*> expert_list(const ExpertsParts<Part>& parts) {
    std::vector<const Part*> list;
    const auto pointer = [](const std::optional<Part>& p) { return p ? &*p : nullptr; };
    for (const auto member :
         {&ExpertParts<Part>::w1, &ExpertParts<Part>::w3, &ExpertParts<Part>::w2}) {
        for (const auto& e : parts.experts) {
            list.push_back(pointer(e.*member));
        }
        list.push_back(pointer(parts.shared.*member));
    }
    return list;
}

/// A layer's weights in the order of `expert_list`, and a byte an expert that says whether the rank
/// holds it, in device memory.
template <class Weight>
class ExpertTable {
  public:
    /// Copies and waits. held  of the experts and the shared one
    Status load(Device& device, const std::string& name, const std::vector<Weight>& weights,
                const std::vector<uint8_t>& held) {
        const auto bytes = static_cast<int64_t>(weights.size() * sizeof(Weight));
        const auto count = static_cast<int64_t>(held.size());
        TENON_TRY_CTX(device.allocate({.bytes = bytes + count, .tag = "weights"}, buffer_.out()),
                      "{}", name);
        weights_ = static_cast<const Weight*>(buffer_->data());
        held_ = static_cast<const uint8_t*>(buffer_->data()) + bytes;
        Ref<Stream> stream;
        TENON_TRY(device.create_stream({.name = "weight load"}, stream.out()));
        TENON_TRY(device.copy(make_view(buffer_->data(), DType::u8, {bytes}, Place::device),
                              make_view(weights.data(), DType::u8, {bytes}), *stream));
        TENON_TRY(device.copy(make_view(held_, DType::u8, {count}, Place::device),
                              make_view(held.data(), DType::u8, {count}), *stream));
        return device.synchronize(*stream);
    }
    const Weight* weights() const { return weights_; }
    const uint8_t* held() const { return held_; }

  private:
    Ref<Buffer> buffer_;
    const Weight* weights_ = nullptr;
    const uint8_t* held_ = nullptr;
};

constexpr int64_t kGpuAlign = 256;
constexpr int64_t gpu_aligned(int64_t bytes) {
    return (bytes + kGpuAlign - 1) / kGpuAlign * kGpuAlign;
}

}  // namespace tenon::quant
