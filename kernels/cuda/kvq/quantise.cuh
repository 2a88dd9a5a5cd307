// SPDX-License-Identifier: MIT
// The cache quantisers (M 3.4) on four values a thread: what kvq, window.store, cache.store and
// fused ops share. Class X: the steps and roundings are those of kernels/cpu/kvq/quantise.cc.
#pragma once

#include "common/device.cuh"
#include "tenon/numeric.h"
#include "tenon/ops/state.h"

namespace tenon::cuda {

/// Four consecutive values, quantised: their codes, their group's scale, and their values as bf16.
struct Quantised4 {
    uint32_t codes;  ///< four bytes (q8), or two bytes in the low half (q4u, q4e)
    uint8_t scale;
    uint2 values;
};

/// The value of an E2M1 code, sign in bit 3: e2m1_to_f32 without its table.
__device__ inline float e2m1_value(uint32_t code) {
    const uint32_t exponent = code >> 1 & 3u;
    const uint32_t half = code & 1u;
    const uint32_t bits = exponent != 0 ? (exponent + 126u) << 23 | half << 22 : half * 0x3F000000u;
    return __uint_as_float(bits | (code & 8u) << 28);
}

constexpr __host__ __device__ int kvq_lanes(RowFormat f) {
    return f == RowFormat::q4e ? 4 : 8;  // threads of a group of 16 or 32 values
}

/// `x`: the thread's four bf16 values. All lanes of its group call this together; a group starts at
/// a multiple of its lanes in the warp.
template <RowFormat kFormat>
__device__ inline Quantised4 quantise4(uint2 x) {
    const float v[4] = {low_f32(x.x), high_f32(x.x), low_f32(x.y), high_f32(x.y)};
    constexpr int kLanes = kvq_lanes(kFormat);
    const unsigned first = threadIdx.x % 32u / kLanes * kLanes;
    const unsigned mask = ((1u << kLanes) - 1u) << first;
    float amax = 0;
#pragma unroll
    for (float e : v) {
        amax = fmaxf(amax, fabsf(e));  // a NaN leaves amax as it is
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
        amax = fmaxf(amax, __shfl_xor_sync(mask, amax, step));
    }
    Quantised4 q{};
    float s;
    if constexpr (kFormat == RowFormat::q8) {
        q.scale = e8m0_ceil(fmaxf(amax, 1e-4f) * static_cast<float>(1.0 / 448.0));
        s = e8m0_to_f32(q.scale);
    } else if constexpr (kFormat == RowFormat::q4u) {
        q.scale = e8m0_ceil(fmaxf(amax, 6.0f * 0x1p-126f) * static_cast<float>(1.0 / 6.0));
        s = e8m0_to_f32(q.scale);
    } else {
        q.scale = f32_to_e4m3(fmaxf(amax, 6.0f * 0x1p-9f) / 6.0f);
        s = e4m3_to_f32(q.scale);
    }
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (kFormat == RowFormat::q8) {
            const uint8_t code = f32_to_e4m3(v[i] / s);
            q.codes |= static_cast<uint32_t>(code) << (8 * i);
            y[i] = e4m3_to_f32(code) * s;
        } else {
            const uint8_t code = f32_to_e2m1(v[i] / s);
            q.codes |= static_cast<uint32_t>(code) << (4 * i);
            y[i] = e2m1_value(code) * s;
        }
    }
    q.values = make_uint2(to_bf16x2(y[0], y[1]), to_bf16x2(y[2], y[3]));
    return q;
}

/// Stores the codes and, once a group, the scale; `i`: index of the thread's first value in the
/// row.
template <RowFormat kFormat>
__device__ inline void store_packed(const Quantised4& q, int64_t i, uint8_t* codes,
                                    uint8_t* scales) {
    constexpr int kGroup = kvq_lanes(kFormat) * 4;
    if constexpr (kFormat == RowFormat::q8) {
        *reinterpret_cast<uint32_t*>(codes + i) = q.codes;
    } else {
        *reinterpret_cast<uint16_t*>(codes + i / 2) = static_cast<uint16_t>(q.codes);
    }
    if (i % kGroup == 0) {
        scales[i / kGroup] = q.scale;
    }
}

/// Stores a row of n values quantised by kFormat, packed or (bf16_out) as bf16 values. The block's
/// threads take four values each; n is a multiple of 4 times the lanes of a group.
template <RowFormat kFormat>
__device__ inline void store_row(const uint16_t* x, int64_t n, bool bf16_out, uint8_t* codes,
                                 uint8_t* scales) {
    for (int64_t i = threadIdx.x * 4; i < n; i += blockDim.x * 4) {
        const Quantised4 q = quantise4<kFormat>(*reinterpret_cast<const uint2*>(x + i));
        if (bf16_out) {
            *reinterpret_cast<uint2*>(codes + 2 * i) = q.values;
        } else {
            store_packed<kFormat>(q, i, codes, scales);
        }
    }
}

}  // namespace tenon::cuda
