// SPDX-License-Identifier: MIT
// Stored elements as f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "plain.h"
#include "tenon/numeric.h"

namespace tenon::plain::cuda {

constexpr int kGroup = 32;  // elements of a scale

// Rounds 32 channels, one a lane, to E4M3 with a common scale, as quantise_row of the format plugin
// does. All lanes of a warp call it; `inside`: the channel exists.
__device__ __forceinline__ float quantise(float v, bool inside) {
    float most = fmaxf(1e-4f, fabsf(v));
    for (int step = 16; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    }
    const bool lost = __any_sync(0xFFFFFFFFu, isnan(v)) || isinf(most);
    if (!lost && inside) {
        const float scale = e8m0_to_f32(e8m0_ceil(most * (1.0f / 448.0f)));
        v = e4m3_to_f32(f32_to_e4m3(v / scale)) * scale;
    }
    return v;
}

__device__ __forceinline__ float2 halves(uint32_t two, bool bf16) {
    if (bf16) {
        return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u));
    }
    return __half22float2(*reinterpret_cast<const __half2*>(&two));
}

__device__ __forceinline__ float2 fp8_pair(uint32_t two) {
    const __half2_raw raw =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two & 0xFFFFu), __NV_E4M3);
    return __half22float2(__half2(raw));
}

// 0 .5 1 1.5 2 3 4 6: doubled, the magnitudes are integers.
__device__ __forceinline__ float fp4_value(uint32_t code) {
    const uint32_t doubled = 0xC8643210u >> (4 * (code & 7)) & 15;
    const float v = 0.5f * static_cast<float>(doubled);
    return (code & 8) != 0 ? -v : v;
}

// Eight elements of a row from element i on, a multiple of 8.
template <Stored kStored>
__device__ __forceinline__ void load8(const Weight& w, const uint8_t* row, int64_t o, int64_t i,
                                      float (&v)[8]) {
    if constexpr (kStored == Stored::f32) {
        const auto* p = reinterpret_cast<const float4*>(row + 4 * i);
        const float4 a = p[0], b = p[1];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
    if constexpr (kStored == Stored::bf16 || kStored == Stored::f16) {
        const uint4 raw = *reinterpret_cast<const uint4*>(row + 2 * i);
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 pair = halves(words[j], kStored == Stored::bf16);
            v[2 * j] = pair.x;
            v[2 * j + 1] = pair.y;
        }
        return;
    }
    if constexpr (kStored == Stored::fp8) {
        const uint2 raw = *reinterpret_cast<const uint2*>(row + i);
        const uint32_t pairs[4] = {raw.x, raw.x >> 16, raw.y, raw.y >> 16};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 pair = fp8_pair(pairs[j]);
            v[2 * j] = pair.x;
            v[2 * j + 1] = pair.y;
        }
    }
    if constexpr (kStored == Stored::fp4) {
        const uint32_t raw = *reinterpret_cast<const uint32_t*>(row + i / 2);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            v[j] = fp4_value(raw >> (4 * j));
        }
    }
    if constexpr (kStored == Stored::fp8 || kStored == Stored::fp4) {
        const float scale = e8m0_to_f32(w.scales[o * (padded(w.in) / kGroup) + i / kGroup]);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            v[j] *= scale;
        }
    }
}

}  // namespace tenon::plain::cuda
