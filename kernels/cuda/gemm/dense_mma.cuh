// SPDX-License-Identifier: MIT
// The product where there are no warpgroup instructions: a block a tile of 128 rows and 128
// columns, eight warps of 64 x 32, a ring of bulk copies.
#pragma once

#include "../common/async.cuh"
#include "../common/mma.cuh"
#include "dense_epilogue.cuh"

namespace tenon::gemm::cuda {

constexpr int kMmaStages = 3;
constexpr int kMmaThreads = 256;
constexpr int kMmaStageBytes = 2 * kTileBytes;
constexpr int kSumStride = kTileRows + 4;
constexpr int kMmaShared = kMmaStages * kMmaStageBytes + 128 + 8 * kMmaStages;
static_assert(kTileRows * kSumStride * 4 <= kMmaStages * kMmaStageBytes);

template <Input kInput>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
    if constexpr (kInput == Input::bf16) {
        tenon::cuda::mma_bf16(d, a, b0, b1);
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

// Butterflies over 128 values, four consecutive ones a lane.
__device__ __forceinline__ void rotate_lanes(float (&v)[4], int lane) {
    const float a = __fadd_rn(v[0], v[1]), b = __fsub_rn(v[0], v[1]);
    const float c = __fadd_rn(v[2], v[3]), d = __fsub_rn(v[2], v[3]);
    v[0] = __fadd_rn(a, c);
    v[1] = __fadd_rn(b, d);
    v[2] = __fsub_rn(a, c);
    v[3] = __fsub_rn(b, d);
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2) {
        const float sign = (lane & bit) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[i] = __fmaf_rn(sign, v[i], __shfl_xor_sync(0xFFFFFFFFu, v[i], bit));
        }
    }
}

// Grid (tiles of rows, tiles of columns, jobs).
template <Input kInput>
__global__ void __launch_bounds__(kMmaThreads) dense_mma_kernel(const __grid_constant__ Call call) {
    extern __shared__ uint8_t shared_raw[];
    const Job& job = call.jobs[blockIdx.z];
    const int column0 = static_cast<int>(blockIdx.y) * kTileRows;
    if (column0 >= job.out) {
        return;
    }
    uint8_t* tiles =
        shared_raw + (128 - tenon::cuda::async::shared_address(shared_raw) % 128) % 128;
    auto* full = reinterpret_cast<uint64_t*>(tiles + kMmaStages * kMmaStageBytes);
    const int k_tiles = call.k / kTileK;
    const int w_tiles = (call.w_k > 0 ? call.w_k : call.k) / kTileK;
    const auto* x = static_cast<const uint8_t*>(job.x) + int64_t{blockIdx.x} * k_tiles * kTileBytes;
    const auto* w = static_cast<const uint8_t*>(job.w) + int64_t{blockIdx.y} * w_tiles * kTileBytes;
    constexpr bool kBulk = tenon::cuda::kHasBulkCopies;  // else all threads copy
    const int each = kBulk ? kTileBytes : kTileBytes / kMmaThreads;
    const int mine = kBulk ? 0 : static_cast<int>(threadIdx.x) * each;
    const auto fetch = [&](int kt) {
        if ((!kBulk || threadIdx.x == 0) && kt < k_tiles) {
            const int s = kt % kMmaStages;
            uint8_t* to = tiles + s * kMmaStageBytes;
            tenon::cuda::async::barrier_expect(full + s, kMmaStageBytes);
            tenon::cuda::async::bulk_load(to + mine, x + int64_t{kt} * kTileBytes + mine, each,
                                          full + s);
            tenon::cuda::async::bulk_load(to + kTileBytes + mine,
                                          w + int64_t{kt % w_tiles} * kTileBytes + mine, each,
                                          full + s);
            tenon::cuda::async::loads_sent(full + s);
        }
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < kMmaStages; ++s) {
            tenon::cuda::async::barrier_init(full + s, kBulk ? 1 : kMmaThreads);
        }
        tenon::cuda::async::fence_barrier_init();
    }
    __syncthreads();
    for (int s = 0; s < kMmaStages; ++s) {
        fetch(s);
    }
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int m0 = warp / 4 * 64;
    const int n0 = warp % 4 * 32;
    float acc[4][4][4] = {};
    for (int kt = 0; kt < k_tiles; ++kt) {
        const int s = kt % kMmaStages;
        tenon::cuda::async::barrier_wait(full + s, static_cast<uint32_t>(kt / kMmaStages) & 1);
        const uint8_t* tile = tiles + s * kMmaStageBytes;
#pragma unroll
        for (int step = 0; step < kTileK / 16; ++step) {
            uint32_t a[4][4], b[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                tenon::cuda::load_matrix4(
                    tile + chunk_at(m0 + 16 * i + lane % 16, 2 * step + lane / 16), a[i]);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                tenon::cuda::load_matrix4(
                    tile + kTileBytes +
                        chunk_at(n0 + 16 * i + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2),
                    b[i]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    mma<kInput>(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
        __syncthreads();
        fetch(kt + kMmaStages);
    }
    auto* sums = reinterpret_cast<float*>(tiles);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float* at = sums + (m0 + 16 * i + 8 * h + lane / 4) * kSumStride + n0 + 8 * j +
                            2 * (lane % 4);
                at[0] = acc[i][j][2 * h];
                at[1] = acc[i][j][2 * h + 1];
            }
        }
    }
    __syncthreads();
    const int column = column0 + 4 * lane;
    const float2 by[2] = {column_scales(job, column), column_scales(job, column + 2)};
    const bool paired = stores_pairs(job);
    for (int r = warp; r < kTileRows; r += kMmaThreads / 32) {
        const int64_t row = int64_t{blockIdx.x} * kTileRows + r;
        if (row >= call.rows) {
            break;
        }
        const float4 four = *reinterpret_cast<const float4*>(sums + r * kSumStride + 4 * lane);
        float v[4] = {four.x, four.y, four.z, four.w};
        if (job.column_scale != nullptr) {
            rotate_lanes(v, lane);
        }
        const float scale = job.row_scale != nullptr ? job.row_scale[row] : 1.0f;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            store_pair(
                job, paired, row, column + 2 * i,
                finish(job, v[2 * i], __fmul_rn(by[i].x, scale), bias_of(job, column + 2 * i)),
                finish(job, v[2 * i + 1], __fmul_rn(by[i].y, scale),
                       bias_of(job, column + 2 * i + 1)));
        }
    }
}

}  // namespace tenon::gemm::cuda
