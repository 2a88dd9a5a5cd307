// SPDX-License-Identifier: MIT
// The mixing coefficients of a site in two kernels: dots of fixed column parts, then their sum in
// part order with the Sinkhorn steps (M 3.2).
#pragma once

#include "common/device.cuh"

namespace tenon::cuda {

constexpr int kMixDots = 24;
constexpr int kMixValues = kMixDots + 1;  // and the square sum
constexpr int kMixThreads = 256;          // 8 warps, three dots each
constexpr int kMixColumns = 128;          // columns of a slice: four a lane
static_assert(kMixThreads / 32 * 3 == kMixDots);

/// Four consecutive columns as f32; zeros from `n` on (n % 4 = 0).
__device__ inline float4 mix_columns(const uint16_t* row, int64_t at, int64_t n) {
    if (at >= n) {
        return make_float4(0, 0, 0, 0);
    }
    const uint2 v = *reinterpret_cast<const uint2*>(row + at);
    return make_float4(low_f32(v.x), high_f32(v.x), low_f32(v.y), high_f32(v.y));
}

__device__ inline float dot4(float4 a, float4 b, float acc) {
    acc = fmaf(a.x, b.x, acc);
    acc = fmaf(a.y, b.y, acc);
    acc = fmaf(a.z, b.z, acc);
    return fmaf(a.w, b.w, acc);
}

// blockIdx.x: part of kSlices * 128 columns, blockIdx.y: group of kRows rows. Each lane sums its
// columns in order, the warp its lanes by a fixed tree: the split knows nothing of T.
// partial: [T, 25, parts].
template <int kRows, int kSlices>
__global__ void __launch_bounds__(kMixThreads)
    mix_parts_kernel(const uint16_t* h, const float* fn, int64_t T, int64_t n, float* partial) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int64_t t0 = int64_t{blockIdx.y} * kRows;
    float dots[kRows][3] = {};
    float square[kRows] = {};
#pragma unroll 1
    for (int s = 0; s < kSlices; ++s) {
        const int64_t at = (int64_t{blockIdx.x} * kSlices + s) * kMixColumns + lane * 4;
        float4 f[3] = {};
        if (at < n) {
#pragma unroll
            for (int m = 0; m < 3; ++m) {
                f[m] = *reinterpret_cast<const float4*>(fn + (warp * 3 + m) * n + at);
            }
        }
        // Rows beyond T read the last one again: without a branch all loads are in flight at once.
        float4 v[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int64_t t = t0 + r < T ? t0 + r : T - 1;
            v[r] = mix_columns(h + t * n, at, n);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
            for (int m = 0; m < 3; ++m) {
                dots[r][m] = dot4(v[r], f[m], dots[r][m]);
            }
            square[r] = dot4(v[r], v[r], square[r]);
        }
    }
    const int64_t parts = gridDim.x;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        if (t0 + r >= T) {
            break;
        }
        float* out = partial + (t0 + r) * kMixValues * parts + blockIdx.x;
#pragma unroll
        for (int m = 0; m < 3; ++m) {
            const float sum = warp_sum(dots[r][m]);
            if (lane == 0) {
                out[(warp * 3 + m) * parts] = sum;
            }
        }
        const float sum = warp_sum(square[r]);
        if (lane == 0 && warp == 0) {
            out[kMixDots * parts] = sum;
        }
    }
}

struct MixFinish {
    const float* partial;  ///< [T, 25 or 26, parts]
    int64_t parts, n;
    const float* scale;  ///< [3]
    const float* base;   ///< [24]
    float eps, hc_eps;
    int32_t iters;
    float* pre;   ///< [T, 4]
    float* post;  ///< [T, 4]
    float* comb;  ///< [T, 4, 4]
};

__device__ inline float mix_sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/// a / s within 2 ulp for s between 2^-126 and 2^126. Forty of these follow each other in a site
/// and the last ones decide, so the rounding of one does not add up.
__device__ inline float mix_divide(float a, float s) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(s));
    return a * r;
}

/// Lane 4 j + k holds a[j][k]: divided by the column's sum (sources ascending) + eps.
__device__ inline float normalise_column(float a, int lane, float eps) {
    const int k = lane & 3;
    const float a0 = __shfl_sync(0xFFFFu, a, k, 16);
    const float a1 = __shfl_sync(0xFFFFu, a, k + 4, 16);
    const float a2 = __shfl_sync(0xFFFFu, a, k + 8, 16);
    const float a3 = __shfl_sync(0xFFFFu, a, k + 12, 16);
    return mix_divide(a, a0 + a1 + a2 + a3 + eps);
}
__device__ inline float normalise_row(float a, int lane, float eps) {
    const int j = lane & 12;
    const float a0 = __shfl_sync(0xFFFFu, a, j, 16);
    const float a1 = __shfl_sync(0xFFFFu, a, j + 1, 16);
    const float a2 = __shfl_sync(0xFFFFu, a, j + 2, 16);
    const float a3 = __shfl_sync(0xFFFFu, a, j + 3, 16);
    return mix_divide(a, a0 + a1 + a2 + a3 + eps);
}

/// pre, post and comb of row t from its 24 dots and the mean square; the block's first 24 threads
/// work. f32 steps in the order of kernels/cpu/mhc/mix.cc, but for the quotients.
__device__ inline void mix_coefficients(const MixFinish& p, int64_t t, const float* dots,
                                        float mean_square) {
    const int lane = static_cast<int>(threadIdx.x);
    const float rs = 1.0f / sqrtf(mean_square + p.eps);
    if (lane < 16) {
        float a = dots[8 + lane] * rs * p.scale[2] + p.base[8 + lane];
        float top = fmaxf(a, __shfl_xor_sync(0xFFFFu, a, 1));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFu, top, 2));
        a = expf(a - top);
        const int j = lane & 12;
        const float a0 = __shfl_sync(0xFFFFu, a, j, 16);
        const float a1 = __shfl_sync(0xFFFFu, a, j + 1, 16);
        const float a2 = __shfl_sync(0xFFFFu, a, j + 2, 16);
        const float a3 = __shfl_sync(0xFFFFu, a, j + 3, 16);
        a = a / (a0 + a1 + a2 + a3) + p.hc_eps;
        a = normalise_column(a, lane, p.hc_eps);
        for (int32_t i = 1; i < p.iters; ++i) {
            a = normalise_row(a, lane, p.hc_eps);
            a = normalise_column(a, lane, p.hc_eps);
        }
        p.comb[t * 16 + lane] = a;
    } else if (lane < 20) {
        const int j = lane - 16;
        p.pre[t * 4 + j] = mix_sigmoid(dots[j] * rs * p.scale[0] + p.base[j]) + p.hc_eps;
    } else if (lane < 24) {
        const int j = lane - 20;
        p.post[t * 4 + j] = 2.0f * mix_sigmoid(dots[4 + j] * rs * p.scale[1] + p.base[4 + j]);
    }
}

/// Sums the parts of row t in a fixed order (a lane's parts ascending, then a tree), in f64; `sums`
/// holds kValues values afterwards. Every thread of the block of kThreads takes part; how many
/// there are changes no bit.
template <int kValues, int kThreads = kMixThreads>
__device__ inline void mix_sum(const MixFinish& p, int64_t t, float* sums) {
    constexpr int kWarps = kThreads / 32;
    constexpr int kMine = (kValues + kWarps - 1) / kWarps;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32);
    const float* part = p.partial + t * kValues * p.parts;
    double sum[kMine] = {};
#pragma unroll 5
    for (int64_t i = lane; i < p.parts; i += 32) {
#pragma unroll
        for (int k = 0; k < kMine; ++k) {
            const int v = min(warp + k * kWarps, kValues - 1);
            sum[k] += static_cast<double>(part[v * p.parts + i]);
        }
    }
#pragma unroll
    for (int k = 0; k < kMine; ++k) {
        const int v = warp + k * kWarps;
        const double all = warp_sum(sum[k]);
        if (lane == 0 && v < kValues) {
            sums[v] = static_cast<float>(all);
        }
    }
    __syncthreads();
}

// One block a row.
[[maybe_unused]] static __global__ void __launch_bounds__(kMixThreads)
    mix_finish_kernel(MixFinish p) {
    __shared__ float sums[kMixValues];
    mix_sum<kMixValues>(p, blockIdx.x, sums);
    mix_coefficients(p, blockIdx.x, sums, sums[kMixDots] / static_cast<float>(p.n));
}

}  // namespace tenon::cuda
