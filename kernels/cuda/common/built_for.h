// SPDX-License-Identifier: MIT
// Which form of the kernels a device runs. It may be an older one than the device could: a binary
// of a lower minor version, or PTX that the driver has compiled.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace tenon::cuda {

/// The capability, as 90, whose features the code of `kernel` on the current device has; 0 if the
/// device has none of it. All kernels of a library are built alike, so the first answer of a
/// device serves for all. Any thread.
inline int built_for(const void* kernel) {
    constexpr int kKnown = 64;  // devices; others are asked each time
    static std::array<std::atomic<int>, kKnown> known{};
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) {
        return 0;
    }
    if (device < kKnown) {
        if (const int capability = known[static_cast<size_t>(device)].load(); capability > 0) {
            return capability;
        }
    }
    cudaFuncAttributes facts{};
    if (cudaFuncGetAttributes(&facts, kernel) != cudaSuccess) {
        return 0;
    }
    const int capability = std::min(facts.ptxVersion, facts.binaryVersion);
    if (device < kKnown) {
        known[static_cast<size_t>(device)].store(capability);
    }
    return capability;
}

/// Dynamic shared memory that a block may have on every device (8.6, 8.9, 12.0 and 12.1 give no
/// more): what a kernel of one size may take.
constexpr int kLeastSharedBlock = 99 * 1024;

/// Whether a launch of `kernel` may have a cluster and may overlap its predecessor (arch.cuh).
inline bool has_clusters(const void* kernel) {
    return built_for(kernel) >= 90;
}
template <class... P>
bool has_clusters(void (*kernel)(P...)) {
    return has_clusters(reinterpret_cast<const void*>(kernel));
}

}  // namespace tenon::cuda
