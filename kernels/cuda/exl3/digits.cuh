// SPDX-License-Identifier: MIT
// Rotation and fixed point of a row: eight lanes a block of 128 channels, sixteen consecutive ones
// a lane. Same operations in the same order as rotate128, with fewer exchanges between lanes.
#pragma once

#include "params.h"
#include "rotate.cuh"

namespace tenon::exl3::cuda {

/// The rare form of load_x16, kept out of the kernels' way.
inline __device__ __noinline__ void load_some(const void* x, Element element, int64_t at, int count,
                                              float* v) {
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
        v[i] = i >= count ? 0.0f
               : element == Element::bf16
                   ? __bfloat162float(static_cast<const __nv_bfloat16*>(x)[at + i])
                   : static_cast<const float*>(x)[at + i];
    }
}

/// The first `count` of sixteen channels, zeros behind them.
__device__ __forceinline__ void load_x16(const void* x, Element element, int64_t at, int count,
                                         float (&v)[16]) {
    if (element == Element::bf16 && count >= 16) {
        const auto* from =
            reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(x) + at);
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            const uint2 raw = from[q];
            v[4 * q] = __uint_as_float(raw.x << 16);
            v[4 * q + 1] = __uint_as_float(raw.x & 0xFFFF0000u);
            v[4 * q + 2] = __uint_as_float(raw.y << 16);
            v[4 * q + 3] = __uint_as_float(raw.y & 0xFFFF0000u);
        }
    } else {
        float some[16];
        load_some(x, element, at, count, some);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            v[i] = some[i];
        }
    }
}

/// Multiplies by sixteen half scales.
__device__ __forceinline__ void scale16(const uint16_t* scales, float (&v)[16]) {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
        const uint4 raw = reinterpret_cast<const uint4*>(scales)[q];
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
            v[8 * q + 2 * i] = __fmul_rn(v[8 * q + 2 * i], pair.x);
            v[8 * q + 2 * i + 1] = __fmul_rn(v[8 * q + 2 * i + 1], pair.y);
        }
    }
}

/// Butterflies over the 128 values of eight lanes. All lanes of the warp take part.
__device__ __forceinline__ void rotate_eighth(float (&v)[16], int lane) {
#pragma unroll
    for (int bit = 1; bit < 16; bit *= 2) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            if ((i & bit) == 0) {
                const float a = v[i];
                const float b = v[i + bit];
                v[i] = a + b;
                v[i + bit] = a - b;
            }
        }
    }
#pragma unroll
    for (int bit = 1; bit < 8; bit *= 2) {
        const float sign = (lane & bit) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            v[i] = __fmaf_rn(sign, v[i], __shfl_xor_sync(0xFFFFFFFFu, v[i], bit));
        }
    }
}

/// Bits of the largest magnitude among eight lanes.
__device__ __forceinline__ unsigned int largest16(const float (&v)[16]) {
    unsigned int most = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        most = max(most, __float_as_uint(v[i]) & 0x7FFFFFFFu);
    }
#pragma unroll
    for (int bit = 1; bit < 8; bit *= 2) {
        most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, bit));
    }
    return most;
}

__device__ __forceinline__ int sum_of_eight(int v) {
#pragma unroll
    for (int bit = 1; bit < 8; bit *= 2) {
        v += __shfl_xor_sync(0xFFFFFFFFu, v, bit);
    }
    return v;
}

/// Sixteen values as fixed point, two signed digits each: a = 256 high + low, rounded to nearest
/// even. Returns the lane's sum of a. Rows whose largest value is tiny or not finite have zero
/// digits: the former are zero in any output format, the latter reach y through the scale.
__device__ __forceinline__ int digits16(const float (&v)[16], float most, uint4* high, uint4* low) {
    const bool regular = most > 1e-30f && most <= 3.4028235e38f;
    const float inverse = regular ? __fdiv_rn(kFixedMax, most) : 0.0f;
    constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the integer
    constexpr uint32_t kShiftBits = 0x4B400000u;
    uint32_t high_words[4], low_words[4];
    uint32_t sum = 0;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        uint32_t a[4], b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float value = regular ? v[4 * q + i] : 0.0f;
            a[i] = __float_as_uint(__fadd_rn(__fmul_rn(value, inverse), kShift));
            b[i] = a[i] + 128u;
            sum += a[i];
        }
        low_words[q] =
            __byte_perm(__byte_perm(a[0], a[1], 0x0040), __byte_perm(a[2], a[3], 0x0040), 0x5410);
        high_words[q] =
            __byte_perm(__byte_perm(b[0], b[1], 0x0051), __byte_perm(b[2], b[3], 0x0051), 0x5410);
    }
    *high = make_uint4(high_words[0], high_words[1], high_words[2], high_words[3]);
    *low = make_uint4(low_words[0], low_words[1], low_words[2], low_words[3]);
    return static_cast<int>(sum - 16u * kShiftBits);
}

/// The same for four values a lane, all lanes of a warp.
__device__ __forceinline__ unsigned int largest4(const float (&v)[4]) {
    unsigned int most = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        most = max(most, __float_as_uint(v[j]) & 0x7FFFFFFFu);
    }
    return __reduce_max_sync(0xFFFFFFFFu, most);
}
__device__ __forceinline__ int digits4(const float (&v)[4], float most, uint32_t* high,
                                       uint32_t* low) {
    const float inverse = most > 1e-30f ? __fdiv_rn(kFixedMax, most) : 0.0f;
    int sum = 0;
    *high = 0;
    *low = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int a = __float2int_rn(__fmul_rn(v[j], inverse));
        const int top = (a + 128) >> 8;
        *high |= (static_cast<uint32_t>(top) & 0xFF) << (8 * j);
        *low |= (static_cast<uint32_t>(a - 256 * top) & 0xFF) << (8 * j);
        sum += a;
    }
    return sum;
}

}  // namespace tenon::exl3::cuda
