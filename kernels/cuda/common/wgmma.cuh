// SPDX-License-Identifier: MIT
// What stands around warpgroup products on Hopper; elsewhere nothing.
#pragma once

#include <cstdint>

namespace tenon::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kHasWgmma = true;
#else
constexpr bool kHasWgmma = false;
#endif

/// Before the first product, and whenever other instructions have touched its registers.
__device__ __forceinline__ void wgmma_fence() {
    if constexpr (kHasWgmma) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    }
}
/// The products since the last call are a group.
__device__ __forceinline__ void wgmma_commit() {
    if constexpr (kHasWgmma) {
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }
}
/// Waits until at most kPending groups are open.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
    if constexpr (kHasWgmma) {
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
    }
}
/// After a wait: no use of the sums d may move above it.
template <int N>
__device__ __forceinline__ void hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}
template <int N>
__device__ __forceinline__ void hold(int (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        asm volatile("" : "+r"(d[i])::"memory");
    }
}
/// Makes what this thread wrote to shared memory visible to products that read it there.
__device__ __forceinline__ void shared_to_async() {
    if constexpr (kHasWgmma) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
}

}  // namespace tenon::cuda
