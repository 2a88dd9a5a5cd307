// SPDX-License-Identifier: MIT
// A block multiplies up to 96 sorted rows with 256 columns of one expert. Each of its eight warps
// decodes half a unit (32 columns) a step, and hands the halves to the tensor core as the first
// operand, from registers; rows are the second operand, from shared memory. The decoding of a piece
// runs while the previous one is multiplied.
//
// Panel of rows: the rows of a tile (ExpertTile) begin at byte slot0 * k * 2, as [k / 64][padded]
// rows of 128 bytes, chunks swizzled as in gemm/dense.h. Columns of k are in the order in which
// lanes own them: column 16 t + 2 s + 8 h + i of 64 stands at 16 s + 8 h + 2 t + i.
#pragma once

#include <cuda_bf16.h>

#include "../common/mma.cuh"
#include "../gemm/dense_mma.cuh"
#include "../gemm/wgmma.cuh"
#include "async.cuh"
#include "linear.h"
#include "prefill_decode.cuh"
#include "prefill_grouped.h"
#include "rotate.cuh"

namespace tenon::exl3::cuda {

constexpr int kGroupedWarps = 8;
constexpr int kGroupedThreads = 32 * kGroupedWarps;
constexpr int kGroupedUnits = 4;
constexpr int kGroupedColumns = kUnit * kGroupedUnits;
constexpr int kGroupedStride = kGroupedColumns + 4;  ///< floats of a row of sums

constexpr int grouped_stage_bytes(int twice_k, int rows) {
    return rows * 128 + kGroupedUnits * unit_words(twice_k) * 4;
}
constexpr int grouped_bytes(int twice_k, int rows, int stages) {
    const int ring = stages * grouped_stage_bytes(twice_k, rows);
    const int sums = rows * kGroupedStride * 4;
    return 1024 + 16 * stages + 8 * rows + (ring > sums ? ring : sums);
}

// Operands of two tiles of 16 columns for 32 rows of k: steps 2 kPiece and 2 kPiece + 1.
template <int kTwiceK, Code kCode, int kPiece>
__device__ __forceinline__ void decode_piece(const uint32_t (&runs)[2][run_registers(kTwiceK)],
                                             uint32_t (&a)[2][2][4]) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
        a[0][t][0] = run_pair<kTwiceK, kCode, 16 * kPiece>(runs[t]);
        a[0][t][1] = run_pair<kTwiceK, kCode, 16 * kPiece + 4>(runs[t]);
        a[0][t][2] = run_pair<kTwiceK, kCode, 16 * kPiece + 2>(runs[t]);
        a[0][t][3] = run_pair<kTwiceK, kCode, 16 * kPiece + 6>(runs[t]);
        a[1][t][0] = run_pair<kTwiceK, kCode, 16 * kPiece + 8>(runs[t]);
        a[1][t][1] = run_pair<kTwiceK, kCode, 16 * kPiece + 12>(runs[t]);
        a[1][t][2] = run_pair<kTwiceK, kCode, 16 * kPiece + 10>(runs[t]);
        a[1][t][3] = run_pair<kTwiceK, kCode, 16 * kPiece + 14>(runs[t]);
    }
}

// acc[t] += a[.][t] (16 columns a warp) x rows of a piece of the tile of x.
template <int kRows>
__device__ __forceinline__ void multiply_piece(float (&acc)[2][kRows / 2],
                                               const uint32_t (&a)[2][2][4], const uint8_t* x,
                                               int piece, int lane) {
#if TENON_HAS_WGMMA
    const uint64_t b = gemm::cuda::operand(shared_address(x)) + 4 * piece;
    gemm::cuda::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            gemm::cuda::wgmma_f16(acc[t], a[s][t], b + 2 * s);
        }
    }
    gemm::cuda::wgmma_commit();
    gemm::cuda::wgmma_wait<1>();
#else
#pragma unroll
    for (int n = 0; n < kRows; n += 16) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            uint32_t b[4];
            tenon::cuda::load_matrix4(x + gemm::cuda::chunk_at(n + lane / 16 * 8 + lane % 8,
                                                               4 * piece + 2 * s + lane / 8 % 2),
                                      b);
#pragma unroll
            for (int t = 0; t < 2; ++t) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float(&d)[4] = *reinterpret_cast<float(*)[4]>(&acc[t][(n / 8 + j) * 4]);
                    gemm::cuda::mma<gemm::cuda::Input::f16>(d, a[s][t], b[2 * j], b[2 * j + 1]);
                }
            }
        }
    }
#endif
}

// Grid (columns / 256 of all sides, tiles). Tiles of kLeast < rows <= kRows; k ascending, one chain
// of sums a value of y, whatever the rows.
template <int kTwiceK, Code kCode, int kRows, int kLeast>
__global__ void __launch_bounds__(kGroupedThreads, kRows <= 64 ? 2 : 1)
    grouped_kernel(const __grid_constant__ GroupedCall call, int stages) {
    if (blockIdx.y >= *call.tile_count) {
        return;
    }
    const ExpertTile tile = call.tiles[blockIdx.y];
    if (tile.rows <= kLeast || tile.rows > kRows) {
        return;
    }
    const int per_side = (call.out + kGroupedColumns - 1) / kGroupedColumns;
    const int column0 = static_cast<int>(blockIdx.x) % per_side * kGroupedColumns;
    const GroupedSide& side = call.side[blockIdx.x / per_side];
    const Weight w = side.table[tile.expert];
    if (w.twice_k != kTwiceK || w.code != kCode) {
        return;
    }
    extern __shared__ uint8_t shared_raw[];
    uint8_t* ring = shared_raw + (1024 - shared_address(shared_raw) % 1024) % 1024;
    constexpr int kStage = grouped_stage_bytes(kTwiceK, kRows);
    constexpr int kUnitBytes = unit_words(kTwiceK) * 4;
    const int after =
        max(stages * kStage, kRows * kGroupedStride * static_cast<int>(sizeof(float)));
    auto* full = reinterpret_cast<uint64_t*>(ring + after);
    uint64_t* empty = full + stages;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int unit = warp % kGroupedUnits;  // warps of a unit lie in different warpgroups
    const int half_unit = warp / kGroupedUnits;
    const int steps = call.k / kUnit;
    const bool two = column0 + kBlock < w.n;
    const int64_t units_k = w.k / kUnit;
    const uint8_t* x = side.x + int64_t{tile.slot0} * call.k * 2;
    const auto fetch = [&](int step, int stage) {
        uint8_t* to = ring + stage * kStage;
        const uint32_t x_bytes = tile.padded * 128;
        barrier_expect(full + stage, x_bytes + (two ? 4 : 2) * kUnitBytes);
        bulk_load_kept(to, x + int64_t{step} * x_bytes, x_bytes, full + stage);
        for (int half = 0; half < (two ? 2 : 1); ++half) {
            bulk_load(to + kRows * 128 + half * 2 * kUnitBytes,
                      w.words + unit_index(units_k, step, column0 / kUnit + 2 * half) *
                                    unit_words(kTwiceK),
                      2 * kUnitBytes, full + stage);
        }
        loads_sent(full + stage);
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; ++s) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, kGroupedWarps);
        }
        fence_barrier_init();
        for (int s = 0; s < stages && s < steps; ++s) {
            fetch(s, s);
        }
    }
    auto* scale_of = reinterpret_cast<float*>(empty + stages);
    auto* row_of = reinterpret_cast<int*>(scale_of + kRows);
    for (int r = threadIdx.x; r < tile.rows; r += kGroupedThreads) {
        const int slot = tile.slot0 + r;
        scale_of[r] = side.scale[slot];
        row_of[r] = call.entry_of == nullptr ? slot : call.entry_of[slot];
    }
    __syncthreads();
    float acc[2][kRows / 2];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) {
            acc[t][i] = 0;
        }
    }
    uint32_t a[2][2][2][4];
    int stage = 0;
    uint32_t parity = 0;
    int before = 0;
    uint32_t parity_before = 0;
    for (int step = 0; step < steps; ++step) {
        barrier_wait(full + stage, parity);
        const uint8_t* at = ring + stage * kStage;
        uint32_t runs[2][run_registers(kTwiceK)];
        load_two_runs<kTwiceK>(
            reinterpret_cast<const uint32_t*>(at + kRows * 128 + unit * kUnitBytes), lane,
            half_unit, runs);
        decode_piece<kTwiceK, kCode, 0>(runs, a[0]);
        multiply_piece<kRows>(acc, a[0], at, 0, lane);
        if (step > 0 && lane == 0) {  // what the previous step read has been multiplied
            barrier_arrive(empty + before);
        }
        decode_piece<kTwiceK, kCode, 1>(runs, a[1]);
        if (threadIdx.x == 0 && step > 0 && step - 1 + stages < steps) {
            barrier_wait(empty + before, parity_before);
            fetch(step - 1 + stages, before);
        }
        multiply_piece<kRows>(acc, a[1], at, 1, lane);
        before = stage;
        parity_before = parity;
        stage = stage + 1 == stages ? 0 : stage + 1;
        parity ^= stage == 0 ? 1 : 0;
    }
#if TENON_HAS_WGMMA
    gemm::cuda::wgmma_wait<0>();
#endif
    __syncthreads();  // the ring becomes sums [rows][256 columns]
    auto* sums = reinterpret_cast<float*>(ring);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) {
            const int r = i / 4 * 8 + 2 * (lane % 4) + i % 2;
            const int c = kUnit * unit + 32 * half_unit + 16 * t + lane / 4 + i / 2 % 2 * 8;
            sums[r * kGroupedStride + c] = acc[t][i];
        }
    }
    __syncthreads();
    // Half of the warps take the first 128 columns, the others the second.
    const int first = column0 + warp % 2 * kBlock;
    if (first >= call.out) {
        return;
    }
    const int column = first + 4 * lane;
    float columns[4] = {0x1p-7f, 0x1p-7f, 0x1p-7f, 0x1p-7f};
    scale_by(w.svh + column, columns);
#pragma unroll 2
    for (int r = warp / 2; r < tile.rows; r += kGroupedWarps / 2) {
        const float4 four = *reinterpret_cast<const float4*>(sums + r * kGroupedStride +
                                                             warp % 2 * kBlock + 4 * lane);
        float v[4] = {four.x, four.y, four.z, four.w};
        rotate128(v, lane);
        const float scale = scale_of[r];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[i] = __fmul_rn(v[i], __fmul_rn(columns[i], scale));
            if (w.bias != nullptr) {
                v[i] = __fadd_rn(v[i], w.bias[column + i]);
            }
        }
        store_y(side.y, call.y_is_f32 != 0 ? Element::f32 : Element::bf16,
                row_of[r] * side.y_stride + column, v, call.out - column);
    }
}

template <int kTwiceK, Code kCode, int kRows, int kLeast>
cudaError_t launch_grouped(const GroupedCall& call, cudaStream_t stream) {
    auto* kernel = &grouped_kernel<kTwiceK, kCode, kRows, kLeast>;
    const int limit = shared_most();
    static const cudaError_t allowed =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
    if (allowed != cudaSuccess) {
        return allowed;
    }
    const int most =
        limit >= 200 * 1024 && kRows <= 64 ? limit / 2 - 1024 : limit;  // two blocks side by side
    int stages = 8;
    while (stages > 2 && grouped_bytes(kTwiceK, kRows, stages) > most) {
        --stages;
    }
    const int per_side = (call.out + kGroupedColumns - 1) / kGroupedColumns;
    const dim3 grid(static_cast<unsigned int>(per_side * call.sides),
                    static_cast<unsigned int>(call.most_tiles));
    kernel<<<grid, kGroupedThreads, grouped_bytes(kTwiceK, kRows, stages), stream>>>(call, stages);
    return cudaGetLastError();
}

template <int kTwiceK, Code kCode>
cudaError_t launch_grouped(const GroupedCall& call, cudaStream_t stream) {
    cudaError_t status = launch_grouped<kTwiceK, kCode, 32, 0>(call, stream);
    if (status == cudaSuccess) {
        status = launch_grouped<kTwiceK, kCode, 64, 32>(call, stream);
    }
    return status == cudaSuccess && shared_most() >= kExpertTileShared
               ? launch_grouped<kTwiceK, kCode, 96, 64>(call, stream)
               : status;
}

template <int kTwiceK>
cudaError_t grouped(const GroupedCall& call, Code code, cudaStream_t stream) {
    if (code == Code::mul1) {
        return launch_grouped<kTwiceK, Code::mul1>(call, stream);
    }
    if constexpr (kTwiceK % 2 == 0) {
        return code == Code::mcg ? launch_grouped<kTwiceK, Code::mcg>(call, stream)
                                 : launch_grouped<kTwiceK, Code::inst3>(call, stream);
    }
    return cudaErrorInvalidValue;
}

}  // namespace tenon::exl3::cuda
