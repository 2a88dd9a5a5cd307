// SPDX-License-Identifier: MIT
// Rows in registers, four consecutive channels a lane: load, scale, rotate, store.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "params.h"

namespace tenon::exl3::cuda {

/// Largest fixed-point value of two digits: 127 * 256.
constexpr float kFixedMax = 32512.0f;

// Butterflies over 128 values, four consecutive ones a lane, low bits first. The order is part of
// the result's bits.
__device__ __forceinline__ void rotate128(float (&v)[4], int lane) {
    const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2) {
        const float sign = (lane & bit) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[i] = __fmaf_rn(sign, v[i], __shfl_xor_sync(0xFFFFFFFFu, v[i], bit));
        }
    }
}

__device__ __forceinline__ void load_x4(const void* x, Element element, int64_t at, int count,
                                        float (&v)[4]) {
    if (element == Element::bf16) {
        const auto* p = static_cast<const __nv_bfloat16*>(x) + at;
        if (count >= 4) {
            const uint2 raw = *reinterpret_cast<const uint2*>(p);
            v[0] = __uint_as_float(raw.x << 16);
            v[1] = __uint_as_float(raw.x & 0xFFFF0000u);
            v[2] = __uint_as_float(raw.y << 16);
            v[3] = __uint_as_float(raw.y & 0xFFFF0000u);
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[i] = i < count ? __bfloat162float(p[i]) : 0.0f;
        }
        return;
    }
    const auto* p = static_cast<const float*>(x) + at;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[i] = i < count ? p[i] : 0.0f;
    }
}

/// Multiplies by four half scales.
__device__ __forceinline__ void scale_by(uint2 raw, float (&v)[4]) {
    const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&raw.x));
    const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&raw.y));
    // Never fused with the sums that follow: bits must not depend on where this is inlined.
    v[0] = __fmul_rn(v[0], a.x);
    v[1] = __fmul_rn(v[1], a.y);
    v[2] = __fmul_rn(v[2], b.x);
    v[3] = __fmul_rn(v[3], b.y);
}
__device__ __forceinline__ void scale_by(const uint16_t* scales, float (&v)[4]) {
    scale_by(*reinterpret_cast<const uint2*>(scales), v);
}

/// The first `count` of four values.
__device__ __forceinline__ void store_y(void* y, Element element, int64_t at, const float (&a)[4],
                                        int count) {
    if (element == Element::f32) {
        auto* p = static_cast<float*>(y) + at;
        if (count >= 4) {
            *reinterpret_cast<float4*>(p) = make_float4(a[0], a[1], a[2], a[3]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (i < count) {
                    p[i] = a[i];
                }
            }
        }
        return;
    }
    auto* p = static_cast<__nv_bfloat16*>(y) + at;
    if (count >= 4) {
        const __nv_bfloat162 lo = __floats2bfloat162_rn(a[0], a[1]);
        const __nv_bfloat162 hi = __floats2bfloat162_rn(a[2], a[3]);
        *reinterpret_cast<uint2*>(p) = make_uint2(*reinterpret_cast<const uint32_t*>(&lo),
                                                  *reinterpret_cast<const uint32_t*>(&hi));
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i < count) {
                p[i] = __float2bfloat16_rn(a[i]);
            }
        }
    }
}

}  // namespace tenon::exl3::cuda
