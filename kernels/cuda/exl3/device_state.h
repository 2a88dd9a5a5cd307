// SPDX-License-Identifier: MIT
// What a launcher remembers of a device. Attributes of a kernel belong to a device, not to the
// process.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

namespace tenon::exl3::cuda {

constexpr int kKnownDevices = 64;  ///< others are asked each time

struct DeviceFlags {
    std::array<std::atomic<bool>, kKnownDevices> set{};
};

inline int device_attribute(cudaDeviceAttr which) {
    int device = 0;
    int value = 0;
    const bool known = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&value, which, device) == cudaSuccess;
    return known ? value : 0;
}

/// Lets a kernel take `bytes` of dynamic shared memory on the current device. `flags` are the
/// kernel's own; any thread.
inline cudaError_t allow_shared(DeviceFlags* flags, const void* kernel, int bytes) {
    int device = 0;
    if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) {
        return status;
    }
    if (device < kKnownDevices && flags->set[static_cast<size_t>(device)].load()) {
        return cudaSuccess;
    }
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status == cudaSuccess && device < kKnownDevices) {
        flags->set[static_cast<size_t>(device)].store(true);
    }
    return status;
}

}  // namespace tenon::exl3::cuda
