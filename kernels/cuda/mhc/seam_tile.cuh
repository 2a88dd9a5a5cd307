// SPDX-License-Identifier: MIT
// The seam of many rows: a tile of rows is expanded, stored, collapsed and squared column slice by
// column slice, and the 24 dots of each slice run on tensor cores while it lies in shared memory.
// h is bf16; an f32 weight is exactly the sum of three bf16 terms, so the products are exact.
#pragma once

#include "common/dependent.cuh"
#include "common/mma.cuh"
#include "mhc/seam.cuh"

namespace tenon::cuda {

constexpr int kSeamTileRows = 32;
constexpr int kSeamTileColumns = 64;  // of each stream: a slice
constexpr int kSeamTileSlices = 8;    // of a part
constexpr int kSeamTileK = 4 * kSeamTileColumns;
constexpr int kSeamTilePitch = kSeamTileK + 16;  // 8-byte reads of 16 lanes touch all banks once
constexpr int kSeamTileWarps = kMixThreads / 32;
static_assert(kSeamTileWarps * 32 == kSeamTileK, "a warp owns 32 of a slice's values");
static_assert(kMixThreads * 8 == kSeamTileRows * kSeamTileColumns, "a thread owns 8 columns");

struct SeamTileShared {
    uint16_t h[2][kSeamTileRows * kSeamTilePitch];
    float comb[kSeamTileRows][16];
    float post[kSeamTileRows][4];
    float pre[kSeamTileRows][4];
};
struct SeamTileSums {
    float dots[kSeamTileWarps][kSeamTileRows][kMixDots + 1];
};

/// x = hi + mid + low, each a pair of bf16.
__device__ inline void split_pair(float x0, float x1, uint32_t (&terms)[3]) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        terms[i] = to_bf16x2(x0, x1);
        x0 -= low_f32(terms[i]);
        x1 -= high_f32(terms[i]);
    }
}

// blockIdx.x: part of kSeamTileSlices slices; blockIdx.y: 32 rows. A row's sums: its columns in
// order by warp and mma step, warps ascending; what row has which neighbours changes no bit.
template <bool kExpand, class Y>
__global__ void __launch_bounds__(kMixThreads, 2) seam_tile_kernel(SeamArgs a) {
    __shared__ __align__(16)
        uint8_t bytes[sizeof(SeamTileShared) > sizeof(SeamTileSums) ? sizeof(SeamTileShared)
                                                                    : sizeof(SeamTileSums)];
    auto& s = *reinterpret_cast<SeamTileShared*>(bytes);
    const int tid = static_cast<int>(threadIdx.x);
    const int lane = tid % 32;
    const int warp = tid / 32;
    const int64_t t0 = int64_t{blockIdx.y} * kSeamTileRows;
    const int row = tid / 8;  // this thread's while streams are mixed
    const int64_t t = t0 + row;
    const bool live = t < a.T;
    const int64_t part0 = int64_t{blockIdx.x} * (kSeamTileSlices * kSeamTileColumns);
    const int64_t own = part0 + tid % 8 * 8;
    // This warp's values of a slice: 32 columns of one stream.
    const int64_t k0 = part0 + warp % 2 * 32 + lane % 4 * 4;
    const float* fn = a.fn + int64_t{warp} / 2 * a.d + lane / 4 * 4 * a.d;
    let_next_start();
    wait_for_previous();
    for (int i = tid; i < kSeamTileRows * 4; i += kMixThreads) {
        const int64_t at = (t0 + i / 4 < a.T ? t0 : 0) * 4 + (t0 + i / 4 < a.T ? i : 0);
        (&s.pre[0][0])[i] = a.pre_in[at];
        if constexpr (kExpand) {
            (&s.post[0][0])[i] = a.post[at];
        }
    }
    if constexpr (kExpand) {
        for (int i = tid; i < kSeamTileRows * 16; i += kMixThreads) {
            (&s.comb[0][0])[i] = t0 + i / 16 < a.T ? a.comb[t0 * 16 + i] : 0.0f;
        }
    }
    __syncthreads();

    uint4 h[4];
    float y[8];
    const auto fetch = [&](int64_t i) {
        if (!live || i >= a.d) {
            return;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            h[j] = *reinterpret_cast<const uint4*>(a.h + (t * 4 + j) * a.d + i);
        }
        if constexpr (kExpand) {
            load8(static_cast<const Y*>(a.y) + t * a.d + i, y);
            for (int64_t w = 1; w < a.y_parts; ++w) {
                float more[8];
                load8(static_cast<const Y*>(a.y) + (w * a.T + t) * a.d + i, more);
#pragma unroll
                for (int e = 0; e < 8; ++e) {
                    y[e] += more[e];
                }
            }
        }
    };
    float square_h = 0;
    float square_x = 0;
    // Streams, x and squares of this thread's columns; the new streams into `tile` too.
    const auto mix = [&](int64_t i, uint16_t* tile) {
        const bool inside = live && i < a.d;
        float v[4][8];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t w[4] = {h[j].x, h[j].y, h[j].z, h[j].w};
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                v[j][2 * e] = inside ? low_f32(w[e]) : 0.0f;
                v[j][2 * e + 1] = inside ? high_f32(w[e]) : 0.0f;
            }
        }
        if constexpr (kExpand) {
            float out[4][8];
#pragma unroll
            for (float& e : y) {
                e = inside ? round_to_bf16(e) : 0.0f;
            }
            expand8(v, y, s.post[row], s.comb[row], out);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int e = 0; e < 8; ++e) {
                    v[j][e] = inside ? round_to_bf16(out[j][e]) : 0.0f;
                }
                if (inside) {
                    store8(a.out + (t * 4 + j) * a.d + i, v[j]);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            store8(tile + row * kSeamTilePitch + j * kSeamTileColumns + tid % 8 * 8, v[j]);
        }
        float x[8];
        const float factor[4] = {s.pre[row][0], s.pre[row][1], s.pre[row][2], s.pre[row][3]};
        mix_streams(v, factor, x);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            x[e] = inside ? round_to_bf16(x[e]) : 0.0f;
            square_x = fmaf(x[e], x[e], square_x);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                square_h = fmaf(v[j][e], v[j][e], square_h);
            }
        }
        if (inside) {
            store8(a.x + t * a.d + i, x);
        }
    };

    float acc[2][3][4] = {};
    fetch(own);
#pragma unroll 1
    for (int n = 0; n < kSeamTileSlices; ++n) {
        const int64_t shift = n * kSeamTileColumns;
        // Lane c of four holds columns 4 c .. 4 c + 3 of 16 in the k slots of an mma, on both
        // sides.
        float4 f[2][3];
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
            for (int m = 0; m < 3; ++m) {
                const int64_t k = k0 + shift + step * 16;
                f[step][m] = k < a.d ? *reinterpret_cast<const float4*>(fn + m * 8 * 4 * a.d + k)
                                     : make_float4(0, 0, 0, 0);
            }
        }
        uint16_t* tile = s.h[n % 2];
        mix(own + shift, tile);
        if (n + 1 < kSeamTileSlices) {
            fetch(own + shift + kSeamTileColumns);
        }
        __syncthreads();
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            uint32_t x[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint16_t* from = tile + (i * 16 + lane / 4) * kSeamTilePitch + warp * 32 +
                                       step * 16 + lane % 4 * 4;
                const uint2 low = *reinterpret_cast<const uint2*>(from);
                const uint2 high = *reinterpret_cast<const uint2*>(from + 8 * kSeamTilePitch);
                x[i][0] = low.x, x[i][1] = high.x, x[i][2] = low.y, x[i][3] = high.y;
            }
#pragma unroll
            for (int m = 0; m < 3; ++m) {
                uint32_t first[3];
                uint32_t second[3];
                split_pair(f[step][m].x, f[step][m].y, first);
                split_pair(f[step][m].z, f[step][m].w, second);
#pragma unroll
                for (int term = 0; term < 3; ++term) {
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        mma_bf16(acc[i][m], x[i], first[term], second[term]);
                    }
                }
            }
        }
    }

    const int64_t parts = gridDim.x;
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
        square_h += __shfl_xor_sync(kFullWarp, square_h, step);
        square_x += __shfl_xor_sync(kFullWarp, square_x, step);
    }
    if (live && tid % 8 == 0) {
        float* out = a.partial + (t * kSeamValues + kMixDots) * parts + blockIdx.x;
        out[0] = square_h;
        out[parts] = square_x;
    }
    __syncthreads();
    auto& sums = *reinterpret_cast<SeamTileSums*>(bytes);
    // Element j of a lane: row lane / 4 + 8 (j / 2), dot 2 (lane % 4) + j % 2.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int m = 0; m < 3; ++m) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                sums.dots[warp][i * 16 + lane / 4 + j / 2 * 8][m * 8 + lane % 4 * 2 + j % 2] =
                    acc[i][m][j];
            }
        }
    }
    __syncthreads();
    for (int i = tid; i < kSeamTileRows * kMixDots; i += kMixThreads) {
        const int r = i / kMixDots;
        const int dot = i % kMixDots;
        if (t0 + r < a.T) {
            float sum = sums.dots[0][r][dot];
#pragma unroll
            for (int w = 1; w < kSeamTileWarps; ++w) {
                sum += sums.dots[w][r][dot];
            }
            a.partial[((t0 + r) * kSeamValues + dot) * parts + blockIdx.x] = sum;
        }
    }
}

}  // namespace tenon::cuda
