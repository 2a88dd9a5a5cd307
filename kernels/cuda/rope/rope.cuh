// SPDX-License-Identifier: MIT
// Rotary angles with full range reduction, and turns of adjacent pairs.
#pragma once

#include "common/device.cuh"
#include "tenon/ops/rows.h"

namespace tenon::cuda {

constexpr int kMaxHalf = 256;  // frequencies that travel as a kernel argument

struct Frequencies {
    float value[kMaxHalf];
};

// One thread an angle. sin and cos in f64, rounded once: the bits of the CPU reference but for
// values within a few 2^-53 of a rounding border.
[[maybe_unused]] static __global__ void angles_kernel(const RowInfo* rows,
                                                      __grid_constant__ const Frequencies freq,
                                                      int32_t half, int32_t step, int64_t T,
                                                      float* cs) {
    const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
    if (at >= T * half) {
        return;
    }
    const int64_t t = at / half;
    const auto i = static_cast<int32_t>(at % half);
    const RowInfo row = rows[t];
    float c = 0;
    float s = 0;
    if (row.slot >= 0) {
        const float angle = static_cast<float>(row.pos / step * step) * freq.value[i];
        c = static_cast<float>(cos(static_cast<double>(angle)));
        s = static_cast<float>(sin(static_cast<double>(angle)));
    }
    cs[t * 2 * half + i] = c;
    cs[t * 2 * half + half + i] = s;
}

/// x' = fma(a, c, -(b s)), y' = fma(a, s, b c); the inverse passes -s. Class X.
__device__ inline uint32_t turn_pair(uint32_t pair, float c, float s) {
    const float a = low_f32(pair);
    const float b = high_f32(pair);
    return to_bf16x2(fmaf(a, c, -(b * s)), fmaf(a, s, b * c));
}

struct TurnArgs {
    const uint32_t* x;  ///< pairs
    uint32_t* out;
    int64_t x_stride, out_stride;  ///< pairs a row
    const float* cs;
    int64_t T, n, D, R;
    bool inverse, copies;  ///< copies: the channels before the last R too
};

// One thread a pair; `per_vector` pairs of each vector are visited, the last ones.
[[maybe_unused]] static __global__ void turn_kernel(TurnArgs a) {
    const int64_t per_vector = (a.copies ? a.D : a.R) / 2;
    const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
    if (at >= a.T * a.n * per_vector) {
        return;
    }
    const int64_t t = at / (a.n * per_vector);
    const int64_t v = at / per_vector % a.n;
    const int64_t pair = a.D / 2 - per_vector + at % per_vector;
    const int64_t turned = pair - (a.D - a.R) / 2;
    const uint32_t x = a.x[t * a.x_stride + v * a.D / 2 + pair];
    uint32_t y = x;
    if (turned >= 0) {
        const float c = a.cs[t * a.R + turned];
        const float s = a.cs[t * a.R + a.R / 2 + turned];
        y = turn_pair(x, c, a.inverse ? -s : s);
    }
    a.out[t * a.out_stride + v * a.D / 2 + pair] = y;
}

}  // namespace tenon::cuda
