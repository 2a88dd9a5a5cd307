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

/// 1 / s within 1 ulp for s between 2^-126 and 2^126. Forty quotients follow each other in a site
/// and the last ones decide, so the rounding of one does not add up.
__device__ inline float mix_reciprocal(float s) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(s));
    return r;
}

/// Every a[j][k] divided by the sum of its column (sources j ascending) + eps. One thread has the
/// matrix: the chain of forty such steps decides, and a shuffle takes longer than the sums.
__device__ inline void normalise_columns(float (&a)[4][4], float eps) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const float r = mix_reciprocal(a[0][k] + a[1][k] + a[2][k] + a[3][k] + eps);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            a[j][k] *= r;
        }
    }
}
__device__ inline void normalise_rows(float (&a)[4][4], float eps) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float r = mix_reciprocal(a[j][0] + a[j][1] + a[j][2] + a[j][3] + eps);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            a[j][k] *= r;
        }
    }
}

/// Scale and base of what a thread makes: all of comb in lanes below 16 of the first warp, one
/// value of pre or post in lanes 16 to 23. Constants: read before the work in front has ended.
struct MixConstants {
    float scale, base;
};
__device__ inline MixConstants mix_constants(const MixFinish& p) {
    const int lane = static_cast<int>(threadIdx.x);
    if (lane >= kMixDots) {
        return {};
    }
    const int at = lane < 16 ? 8 + lane : lane - 16;
    return {p.scale[lane < 16 ? 2 : (lane < 20 ? 0 : 1)], p.base[at]};
}

/// pre, post and comb of row t from its 24 dots and the mean square, by the first warp of the
/// block. f32 steps in the order of kernels/cpu/mhc/mix.cc, but for the quotients.
__device__ inline void mix_coefficients(const MixFinish& p, const MixConstants& c, int64_t t,
                                        const float* dots, float mean_square) {
    const int lane = static_cast<int>(threadIdx.x);
    const float rs = 1.0f / sqrtf(mean_square + p.eps);
    const int at = lane < 16 ? 8 + lane : (lane < kMixDots ? lane - 16 : 0);
    float own = dots[at] * rs * c.scale + c.base;
    // Lane 4 j + k holds a[j][k] for the exponentials of a row.
    float top = fmaxf(own, __shfl_xor_sync(kFullWarp, own, 1));
    top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
    const float e = expf(lane < 16 ? own - top : -own);
    if (lane >= 16 && lane < 20) {
        p.pre[t * 4 + lane - 16] = 1.0f / (1.0f + e) + p.hc_eps;
    } else if (lane >= 20 && lane < kMixDots) {
        p.post[t * 4 + lane - 20] = 2.0f * (1.0f / (1.0f + e));
    }
    const int row = lane & 12;
    const float e0 = __shfl_sync(kFullWarp, e, row);
    const float e1 = __shfl_sync(kFullWarp, e, row + 1);
    const float e2 = __shfl_sync(kFullWarp, e, row + 2);
    const float e3 = __shfl_sync(kFullWarp, e, row + 3);
    own = e / (e0 + e1 + e2 + e3) + p.hc_eps;
    float a[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            a[j][k] = __shfl_sync(kFullWarp, own, 4 * j + k);
        }
    }
    normalise_columns(a, p.hc_eps);
#pragma unroll 1
    for (int32_t i = 1; i < p.iters; ++i) {
        normalise_rows(a, p.hc_eps);
        normalise_columns(a, p.hc_eps);
    }
    if (lane < 4) {
        auto* to = reinterpret_cast<float4*>(p.comb + t * 16) + lane;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (lane == j) {
                *to = make_float4(a[j][0], a[j][1], a[j][2], a[j][3]);
            }
        }
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
    const MixConstants c = mix_constants(p);
    mix_sum<kMixValues>(p, blockIdx.x, sums);
    if (threadIdx.x < 32) {
        mix_coefficients(p, c, blockIdx.x, sums, sums[kMixDots] / static_cast<float>(p.n));
    }
}

}  // namespace tenon::cuda
