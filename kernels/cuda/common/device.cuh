// SPDX-License-Identifier: MIT
// Device helpers that every family uses: bf16 conversions, vector loads, faults, sums in fixed
// order.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace tenon::cuda {

constexpr unsigned kFullWarp = 0xFFFFFFFFu;

/// Counts one misuse in the device's pinned word; call it from one thread.
__device__ inline void fault(unsigned long long* faults) {
    atomicAdd(faults, 1ull);
}

__device__ inline float to_f32(uint16_t bf16) {
    return __uint_as_float(static_cast<uint32_t>(bf16) << 16);
}
__device__ inline float low_f32(uint32_t pair) {
    return __uint_as_float(pair << 16);
}
__device__ inline float high_f32(uint32_t pair) {
    return __uint_as_float(pair & 0xFFFF0000u);
}
/// Round to nearest even; a NaN becomes 0x7FFF.
__device__ inline uint16_t to_bf16(float x) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
__device__ inline float round_to_bf16(float x) {
    return to_f32(to_bf16(x));
}
/// Two values, `low` at the lower address.
__device__ inline uint32_t to_bf16x2(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Eight bf16 values at a 16-byte aligned address.
__device__ inline void load8(const uint16_t* from, float (&x)[8]) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[2 * i] = low_f32(w[i]);
        x[2 * i + 1] = high_f32(w[i]);
    }
}
/// Eight f32 values at a 16-byte aligned address.
__device__ inline void load8(const float* from, float (&x)[8]) {
    const float4 a = reinterpret_cast<const float4*>(from)[0];
    const float4 b = reinterpret_cast<const float4*>(from)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
__device__ inline void store8(uint16_t* to, const float (&x)[8]) {
    *reinterpret_cast<uint4*>(to) = make_uint4(to_bf16x2(x[0], x[1]), to_bf16x2(x[2], x[3]),
                                               to_bf16x2(x[4], x[5]), to_bf16x2(x[6], x[7]));
}
__device__ inline void store8(float* to, const float (&x)[8]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

/// Sixteen bytes of a large weight that a step reads once: they are the first to leave the L2
/// cache, so that the small constants of all layers stay there from step to step.
__device__ inline uint4 load_once(const void* from) {
    uint64_t policy;
    uint4 v;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "l"(policy));
    return v;
}

__device__ inline float load1(const uint16_t* from) {
    return to_f32(*from);
}
__device__ inline float load1(const float* from) {
    return *from;
}
__device__ inline void store1(uint16_t* to, float x) {
    *to = to_bf16(x);
}
__device__ inline void store1(float* to, float x) {
    *to = x;
}

/// Sum over the warp by a fixed tree; every lane gets it.
template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(kFullWarp, x, step);
    }
    return x;
}

/// Sum over the block in a fixed order (a tree in each warp, then warps ascending); every thread
/// gets it. `shared` holds one T per warp and may be reused after the next __syncthreads().
template <class T, int kWarps>
__device__ inline T block_sum(T x, T* shared) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) {
        shared[threadIdx.x / 32] = x;
    }
    __syncthreads();
    T sum = shared[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
        sum += shared[w];
    }
    return sum;
}

}  // namespace tenon::cuda
