// SPDX-License-Identifier: MIT
// y = x w^T + bias on tensor cores for many rows, bf16 in, f32 sums. The tile and the order of K
// are fixed, so a row's bits do not depend on T.
#pragma once

#include "common/device.cuh"
#include "common/mma.cuh"

namespace tenon::cuda {

constexpr int kTileM = 64;
constexpr int kTileN = 64;
constexpr int kTileK = 32;
constexpr int kTileStages = 3;
constexpr int kTileThreads = 128;       // four warps, 32 x 32 each
constexpr int kTilePitch = kTileK + 8;  // 80 bytes: eight rows touch all banks once
static_assert(kTileM * kTileK / 8 % kTileThreads == 0 && kTileN == kTileM);

template <class Y>
struct TileArgs {
    const uint16_t* x;
    int64_t x_stride;
    const uint16_t* w;  ///< [N, K]
    const void* bias;   ///< null: none
    bool bias_bf16;
    Y* y;
    int64_t y_stride;
    int64_t T, N, K;  ///< K % 8 = 0
};

struct TileStage {
    uint16_t x[kTileM * kTilePitch];
    uint16_t w[kTileN * kTilePitch];
};

/// Columns k0.. of `rows` rows from `row0`; what lies outside is zero.
__device__ inline void load_tile(uint16_t* to, const uint16_t* from, int64_t stride, int64_t row0,
                                 int64_t rows, int64_t k0, int64_t K) {
#pragma unroll
    for (int i = 0; i < kTileM * kTileK / 8 / kTileThreads; ++i) {
        const int piece = static_cast<int>(threadIdx.x) + i * kTileThreads;
        const int r = piece / (kTileK / 8);
        const int c = piece % (kTileK / 8) * 8;
        const bool valid = row0 + r < rows && k0 + c < K;
        copy16_async(to + r * kTilePitch + c, valid ? from + (row0 + r) * stride + k0 + c : from,
                     valid);
    }
}

template <class Y>
__device__ inline void store_tile_value(const TileArgs<Y>& a, int64_t t, int64_t n, float sum) {
    if (t < a.T && n < a.N) {
        if (a.bias != nullptr) {
            sum += a.bias_bf16 ? to_f32(static_cast<const uint16_t*>(a.bias)[n])
                               : static_cast<const float*>(a.bias)[n];
        }
        store1(a.y + t * a.y_stride + n, sum);
    }
}

// blockIdx.x: tile of N, blockIdx.y: tile of T.
template <class Y>
__global__ void __launch_bounds__(kTileThreads) tile_kernel(TileArgs<Y> a) {
    __shared__ __align__(16) TileStage stage[kTileStages];
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int m0 = warp / 2 * 32;
    const int n0 = warp % 2 * 32;
    const int64_t t0 = int64_t{blockIdx.y} * kTileM;
    const int64_t c0 = int64_t{blockIdx.x} * kTileN;
    const int64_t steps = (a.K + kTileK - 1) / kTileK;
    const auto fetch = [&](int64_t step) {
        if (step < steps) {
            TileStage& s = stage[step % kTileStages];
            load_tile(s.x, a.x, a.x_stride, t0, a.T, step * kTileK, a.K);
            load_tile(s.w, a.w, a.K, c0, a.N, step * kTileK, a.K);
        }
        commit_copies();
    };
    float acc[2][4][4] = {};
    for (int s = 0; s < kTileStages - 1; ++s) {
        fetch(s);
    }
    for (int64_t step = 0; step < steps; ++step) {
        wait_copies<kTileStages - 2>();
        __syncthreads();
        fetch(step + kTileStages - 1);
        const TileStage& s = stage[step % kTileStages];
#pragma unroll
        for (int k = 0; k < kTileK; k += 16) {
            uint32_t x[2][4];
            uint32_t w[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                // Matrices of x: rows 0-7 and 8-15, then columns 8-15; of w: columns first.
                load_matrix4(s.x + (m0 + i * 16 + lane % 16) * kTilePitch + k + lane / 16 * 8,
                             x[i]);
                load_matrix4(s.w + (n0 + i * 16 + lane / 16 * 8 + lane % 8) * kTilePitch + k +
                                 lane / 8 % 2 * 8,
                             w[i]);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    mma_bf16(acc[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int64_t t = t0 + m0 + i * 16 + lane / 4;
            const int64_t n = c0 + n0 + j * 8 + lane % 4 * 2;
            store_tile_value(a, t, n, acc[i][j][0]);
            store_tile_value(a, t, n + 1, acc[i][j][1]);
            store_tile_value(a, t + 8, n, acc[i][j][2]);
            store_tile_value(a, t + 8, n + 1, acc[i][j][3]);
        }
    }
}

}  // namespace tenon::cuda
