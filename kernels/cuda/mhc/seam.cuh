// SPDX-License-Identifier: MIT
// A site's seam in two kernels: the first owns column slices of all four streams (rank sum, expand,
// store, collapse at once, dots and square sums of the slice), the second folds the slices in order
// (coefficients, norm). The pre that collapses is the previous site's, so it is known in time.
#pragma once

#include "common/dependent.cuh"
#include "mhc/mix.cuh"
#include "mhc/streams.cuh"

namespace tenon::cuda {

constexpr int kSeamValues = kMixValues + 1;  // and the square sum of the collapsed row
constexpr int kSeamColumns = 32;             // columns of a slice, of each stream
constexpr int kSeamRows = kMixThreads / 32;  // a row a warp while streams are mixed

struct SeamArgs {
    const void* y;        ///< bf16 or f32 [parts, T, d]; null: no expand, h stays
    int64_t y_parts;      ///< ranks, added ascending
    const uint16_t* h;    ///< [T, 4, d]
    uint16_t* out;        ///< [T, 4, d], may be h
    const float* post;    ///< [T, 4], this site
    const float* comb;    ///< [T, 4, 4], this site
    const float* fn;      ///< [24, 4 d], next site
    const float* pre_in;  ///< [T, 4], what the next site collapses with
    uint16_t* x;          ///< [T, d]: collapsed, not yet normalised
    float* partial;       ///< [T, 26, parts]
    int64_t T, d;
};

__device__ inline void load4(const uint16_t* from, float (&x)[4]) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    x[0] = low_f32(v.x), x[1] = high_f32(v.x), x[2] = low_f32(v.y), x[3] = high_f32(v.y);
}
__device__ inline void load4(const float* from, float (&x)[4]) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

/// Four columns of y, added over ranks, rounded to bf16.
template <class Y>
__device__ inline void seam_y(const SeamArgs& a, int64_t at, float (&y)[4]) {
    const Y* from = static_cast<const Y*>(a.y) + at;
    load4(from, y);
    for (int64_t w = 1; w < a.y_parts; ++w) {
        from += a.T * a.d;
        float more[4];
        load4(from, more);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            y[e] += more[e];
        }
    }
#pragma unroll
    for (float& e : y) {
        e = round_to_bf16(e);
    }
}

/// acc = fma over streams j ascending of factor(j) times stream j at this lane's columns; lane
/// 8 j + c holds stream j, columns 4 c..4 c + 3.
__device__ inline void seam_mix(const float (&v)[4], const float (&factor)[4], float (&acc)[4]) {
    const unsigned column = threadIdx.x % 8;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        acc[e] = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            acc[e] = fmaf(factor[j], __shfl_sync(kFullWarp, v[e], j * 8 + column), acc[e]);
        }
    }
}

// Few rows. blockIdx.x: slice, blockIdx.y: group of 8 rows. Y: element of y, when kExpand. Latency
// decides: the weight is asked for before the work in front has ended.
template <bool kExpand, class Y>
__global__ void __launch_bounds__(kMixThreads) seam_parts_kernel(SeamArgs a) {
    __shared__ float4 mixed[kSeamRows][32];  // new h of the slice: [row][lane]
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int stream = lane / 8;
    const int64_t t0 = int64_t{blockIdx.y} * kSeamRows;
    const int64_t t = t0 + warp;  // this warp's row while streams are mixed
    const int64_t i = int64_t{blockIdx.x} * kSeamColumns + lane % 8 * 4;  // column of d
    const bool live = t < a.T;
    const bool inside = i < a.d;
    let_next_start();
    float4 f[3] = {};
    if (inside) {
#pragma unroll
        for (int m = 0; m < 3; ++m) {
            const uint4 v = load_once(a.fn + (warp * 3 + m) * 4 * a.d + stream * a.d + i);
            f[m] = make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                               __uint_as_float(v.w));
        }
    }
    wait_for_previous();
    float v[4] = {};
    float square_h = 0;
    float square_x = 0;
    if (live) {
        float y[4] = {};
        float comb[4] = {};  // into this lane's stream
        float pre[4];
        float post = 0;
        if (inside) {
            load4(a.h + (t * 4 + stream) * a.d + i, v);
            if constexpr (kExpand) {
                seam_y<Y>(a, t * a.d + i, y);
            }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            pre[j] = a.pre_in[t * 4 + j];
            comb[j] = kExpand ? a.comb[t * 16 + j * 4 + stream] : 0.0f;
        }
        if constexpr (kExpand) {
            post = a.post[t * 4 + stream];
            float sum[4];
            seam_mix(v, comb, sum);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                v[e] = round_to_bf16(fmaf(post, y[e], sum[e]));
            }
            if (inside) {
                *reinterpret_cast<uint2*>(a.out + (t * 4 + stream) * a.d + i) =
                    make_uint2(to_bf16x2(v[0], v[1]), to_bf16x2(v[2], v[3]));
            }
        }
        float x[4];
        seam_mix(v, pre, x);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            x[e] = inside ? round_to_bf16(x[e]) : 0.0f;
            v[e] = inside ? v[e] : 0.0f;
            square_h = fmaf(v[e], v[e], square_h);
            square_x = stream == 0 ? fmaf(x[e], x[e], square_x) : 0.0f;
        }
        if (inside && stream == 0) {
            *reinterpret_cast<uint2*>(a.x + t * a.d + i) =
                make_uint2(to_bf16x2(x[0], x[1]), to_bf16x2(x[2], x[3]));
        }
    }
    mixed[warp][lane] = make_float4(v[0], v[1], v[2], v[3]);
    __syncthreads();
    const int64_t parts = gridDim.x;
#pragma unroll
    for (int r = 0; r < kSeamRows; ++r) {
        if (t0 + r < a.T) {
            const float4 row = mixed[r][lane];
#pragma unroll
            for (int m = 0; m < 3; ++m) {
                const float sum = warp_sum(dot4(row, f[m], 0.0f));
                if (lane == 0) {
                    a.partial[((t0 + r) * kSeamValues + warp * 3 + m) * parts + blockIdx.x] = sum;
                }
            }
        }
    }
    if (live) {
        square_h = warp_sum(square_h);
        square_x = warp_sum(square_x);
        if (lane == 0) {
            float* out = a.partial + (t * kSeamValues + kMixDots) * parts + blockIdx.x;
            out[0] = square_h;
            out[parts] = square_x;
        }
    }
}

// Threads of a row's finish: few rows take one warp for each sum, many leave room for more rows.
constexpr int kSeamFewThreads = kSeamValues * 32;

// One block a row: sums, then the coefficients by the first warp, while the others scale x in
// place. Their first weights are asked for before the work in front has ended.
template <int kThreads, class W>
__global__ void __launch_bounds__(kThreads)
    seam_finish_kernel(MixFinish p, uint16_t* x, const W* weight, int64_t d) {
    __shared__ float sums[kSeamValues];
    constexpr int64_t kStep = (kThreads - 32) * 8;
    const int64_t t = blockIdx.x;
    const int64_t first = (static_cast<int64_t>(threadIdx.x) - 32) * 8;
    float w[8];
    let_next_start();
    if (first >= 0 && first < d) {
        load8(weight + first, w);
    }
    const MixConstants c = mix_constants(p);
    wait_for_previous();
    mix_sum<kSeamValues, kThreads>(p, t, sums);
    if (threadIdx.x < 32) {
        mix_coefficients(p, c, t, sums, sums[kMixDots] / static_cast<float>(p.n));
        return;
    }
    const float factor = 1.0f / sqrtf(sums[kMixDots + 1] / static_cast<float>(d) + p.eps);
    x += t * d;
    for (int64_t i = first; i < d; i += kStep) {
        float v[8];
        load8(x + i, v);
        if (i != first) {
            load8(weight + i, w);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            v[e] = w[e] * (v[e] * factor);
        }
        store8(x + i, v);
    }
}

// norm.rms(collapse(h, pre)), one block a row; the same sums in the same order as norm.rms.
template <class W>
__global__ void __launch_bounds__(kMixThreads)
    collapse_norm_kernel(const uint16_t* h, const float* pre, const W* weight, uint16_t* x,
                         int64_t d, float eps) {
    __shared__ double partial[kMixThreads / 32];
    const int64_t t = blockIdx.x;
    const float factor[4] = {pre[t * 4], pre[t * 4 + 1], pre[t * 4 + 2], pre[t * 4 + 3]};
    h += t * 4 * d;
    x += t * d;
    double sum = 0;
    for (int64_t i = threadIdx.x * 8; i < d; i += kMixThreads * 8) {
        float streams[4][8];
        float v[8];
        load_streams(h + i, d, streams);
        mix_streams(streams, factor, v);
        float square = 0;
#pragma unroll
        for (float& e : v) {
            e = round_to_bf16(e);
            square = fmaf(e, e, square);
        }
        sum += static_cast<double>(square);
        store8(x + i, v);
    }
    sum = block_sum<double, kMixThreads / 32>(sum, partial);
    const float mean = static_cast<float>(sum / static_cast<double>(d));
    const float rstd = 1.0f / sqrtf(mean + eps);
    for (int64_t i = threadIdx.x * 8; i < d; i += kMixThreads * 8) {
        float v[8];
        float w[8];
        load8(x + i, v);
        load8(weight + i, w);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            v[e] = w[e] * (v[e] * rstd);
        }
        store8(x + i, v);
    }
}

}  // namespace tenon::cuda
