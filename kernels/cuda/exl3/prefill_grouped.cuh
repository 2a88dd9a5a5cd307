// SPDX-License-Identifier: MIT
// A block multiplies up to 96 sorted rows with 256 columns of one expert, then goes on to its next
// item (a tile of rows and 256 columns). Each of its eight warps decodes half a unit (32 columns) a
// step, and hands the halves to the tensor core as the first operand, from registers; rows are the
// second operand, from shared memory. The decoding of a piece runs while the previous one is
// multiplied. What describes the next items comes by asynchronous copies in the meantime.
//
// mul1: the first operand is the byte sum S as a half, S 2^-24, which is exact. A weight is
// kSumFactor S + kSumOffset (section 2 of docs/exl3.md, not rounded to a half here), so the offset
// times the sum of a row's inputs is added at the end.
//
// Panel of rows: the rows of a tile (ExpertTile) begin at byte slot0 * k * 2, as [k / 64][padded]
// rows of 128 bytes, chunks swizzled as in gemm/dense.h. Columns of k are in the order in which
// lanes own them: column 16 t + 2 s + 8 h + i of 64 stands at 16 s + 8 h + 2 t + i.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "../common/built_for.h"
#include "../common/mma.cuh"
#include "../gemm/dense_mma.cuh"
#include "../gemm/wgmma.cuh"
#include "async.cuh"
#include "device_state.h"
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
constexpr int kGroupedSteps = 2;                     ///< of k, in a stage of the ring
constexpr int kGroupedStages = 8;                    ///< at most
constexpr int kSumRows = 16;                         ///< of sums that are rotated together
constexpr int kSumBytes = kSumRows * kGroupedStride * 4;
static_assert(kBlock % (kGroupedSteps * kUnit) == 0, "k is a multiple of a stage");

constexpr float kSumFactor = 0x1.BB8p-8f;                      // half 1EEE
constexpr float kSumOffset = 1024 * kSumFactor - 10.3828125f;  // half C931

constexpr int grouped_stage_bytes(int twice_k, int rows) {
    return kGroupedSteps * (rows * 128 + kGroupedUnits * unit_words(twice_k) * 4);
}

/// Where the stages of an item come from.
struct GroupedSource {
    const uint8_t* x;
    const uint32_t* words;
    int64_t second;    ///< words from the first 128 columns to the second; 0: there is no second
    uint32_t x_bytes;  ///< of a step
};

/// What a block keeps beside the ring and the sums. Items take turns in the slots.
template <int kRows>
struct GroupedState {
    uint64_t full[kGroupedStages], empty[kGroupedStages];
    ExpertTile tile[4];
    Weight weight[3];
    GroupedSource source[2];
    float scale[2][kRows], sum[2][kRows];
    int row[2][kRows];  // of y
};

/// A value that a warp shares, in a form that the compiler knows to be that.
__device__ __forceinline__ uint32_t uniform(uint32_t value) {
    return __reduce_max_sync(0xFFFFFFFFu, value);
}

template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from),
                 "n"(kBytes)
                 : "memory");
}

/// Two operands of the tensor core, the first in the low half. `upper` is 2^16, which the compiler
/// must not know: it would shift, and the pipe of shifts is the busier one.
template <int kTwiceK, Code kCode, int kQ>
__device__ __forceinline__ uint32_t operand_pair(const uint32_t (&run)[run_registers(kTwiceK)],
                                                 uint32_t upper) {
    if constexpr (kCode == Code::mul1) {
        const uint32_t low = __dp4a(raw_weight<kCode>(state_of<kTwiceK, kQ>(run)), 0x01010101u, 0u);
        const uint32_t high =
            __dp4a(raw_weight<kCode>(state_of<kTwiceK, kQ + 1>(run)), 0x01010101u, 0u);
        return high * upper + low;
    } else {
        return run_pair<kTwiceK, kCode, kQ>(run);
    }
}

// Operands of two tiles of 16 columns for kSteps times 16 rows of k, from step kFirst on.
template <int kTwiceK, Code kCode, int kFirst, int kSteps>
__device__ __forceinline__ void decode_steps(const uint32_t (&runs)[2][run_registers(kTwiceK)],
                                             uint32_t upper, uint32_t (&a)[kSteps][2][4]) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
        a[0][t][0] = operand_pair<kTwiceK, kCode, 8 * kFirst>(runs[t], upper);
        a[0][t][1] = operand_pair<kTwiceK, kCode, 8 * kFirst + 4>(runs[t], upper);
        a[0][t][2] = operand_pair<kTwiceK, kCode, 8 * kFirst + 2>(runs[t], upper);
        a[0][t][3] = operand_pair<kTwiceK, kCode, 8 * kFirst + 6>(runs[t], upper);
        if constexpr (kSteps == 2) {
            a[1][t][0] = operand_pair<kTwiceK, kCode, 8 * kFirst + 8>(runs[t], upper);
            a[1][t][1] = operand_pair<kTwiceK, kCode, 8 * kFirst + 12>(runs[t], upper);
            a[1][t][2] = operand_pair<kTwiceK, kCode, 8 * kFirst + 10>(runs[t], upper);
            a[1][t][3] = operand_pair<kTwiceK, kCode, 8 * kFirst + 14>(runs[t], upper);
        }
    }
}

// acc[t] += a[.][t] (16 columns a warp) x rows of steps from `first` on of the tile of x.
template <int kRows, int kSteps>
__device__ __forceinline__ void multiply_steps(float (&acc)[2][kRows / 2],
                                               const uint32_t (&a)[kSteps][2][4], const uint8_t* x,
                                               int first, int lane) {
#if TENON_HAS_WGMMA
    const uint64_t b = gemm::cuda::operand(shared_address(x)) + 2 * first;
    gemm::cuda::wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
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
        for (int s = 0; s < kSteps; ++s) {
            uint32_t b[4];
            tenon::cuda::load_matrix4(x + gemm::cuda::chunk_at(n + lane / 16 * 8 + lane % 8,
                                                               2 * (first + s) + lane / 8 % 2),
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

// Asks for a stage of an item; `phase` of the stage's uses so far. One thread.
template <int kTwiceK, int kRows>
__device__ __forceinline__ void fetch(GroupedState<kRows>& state, int turn, uint8_t* ring, int at,
                                      int stage, uint32_t phase) {
    constexpr int kWordBytes = kGroupedSteps * 2 * unit_words(kTwiceK) * 4;
    barrier_wait(state.empty + stage, phase ^ 1);
    const GroupedSource& from = state.source[turn % 2];
    uint64_t* full = state.full + stage;
    uint8_t* to = ring + stage * grouped_stage_bytes(kTwiceK, kRows);
    const uint32_t x_bytes = kGroupedSteps * from.x_bytes;
    const int64_t second = from.second;
    barrier_expect(full, x_bytes + (second != 0 ? 2 : 1) * kWordBytes);
    bulk_load_kept(to + 2 * kWordBytes, from.x + int64_t{at} * x_bytes, x_bytes, full);
    const uint32_t* words = from.words + int64_t{at} * (kWordBytes / 4);
    bulk_load(to, words, kWordBytes, full);
    if (second != 0) {
        bulk_load(to + kWordBytes, words + second, kWordBytes, full);
    }
    loads_sent(full);
}

// An item in the middle: sums of its rows in acc. Returns with every product done and every stage
// given back. `phases`: a bit for each stage. Warps take turns to refill the ring, since the others
// of a warpgroup wait for one that does more.
template <int kTwiceK, Code kCode, int kRows>
__device__ __forceinline__ void multiply_item(float (&acc)[2][kRows / 2],
                                              GroupedState<kRows>& state, int turn, uint8_t* ring,
                                              int most_stages, int stages_of_k, uint32_t upper,
                                              uint32_t& phases, int warp, int lane) {
    constexpr int kUnitBytes = unit_words(kTwiceK) * 4;
    constexpr int kWordBytes = kGroupedSteps * 2 * kUnitBytes;
    const int unit = warp % kGroupedUnits;  // warps of a unit lie in different warpgroups
    const int half_unit = warp / kGroupedUnits;
    const int unit_at = unit / 2 * kWordBytes + unit % 2 * kUnitBytes;
    const uint32_t x_bytes = uniform(state.source[turn % 2].x_bytes);
    const int stages = static_cast<int>(uniform(static_cast<uint32_t>(most_stages)));
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) {
            acc[t][i] = 0;
        }
    }
    constexpr int kSteps = kRows == 64 ? 1 : 2;  // multiplied together: as registers allow
    uint32_t a[2][kSteps][2][4];
    int stage = 0;
    int before = 0;
#pragma unroll 1
    for (int at = 0; at < stages_of_k; ++at) {
        barrier_wait(state.full + stage, phases >> stage & 1);
        phases ^= 1u << stage;
        const uint8_t* base = ring + stage * grouped_stage_bytes(kTwiceK, kRows);
#pragma unroll
        for (int s = 0; s < kGroupedSteps; ++s) {
            const uint8_t* x = base + 2 * kWordBytes + s * x_bytes;
            uint32_t runs[2][run_registers(kTwiceK)];
            load_two_runs<kTwiceK>(
                reinterpret_cast<const uint32_t*>(base + unit_at + s * 2 * kUnitBytes), lane,
                half_unit, runs);
            decode_steps<kTwiceK, kCode, 0, kSteps>(runs, upper, a[0]);
            multiply_steps<kRows, kSteps>(acc, a[0], x, 0, lane);
            if (s == 0 && at > 0 && lane == 0) {  // what the stage before held has been multiplied
                barrier_arrive(state.empty + before);
            }
            if (s == 1 && at > 0 && at - 1 + stages < stages_of_k && warp == at % kGroupedWarps &&
                elect_lane()) {
                fetch<kTwiceK, kRows>(state, turn, ring, at - 1 + stages, before,
                                      phases >> before & 1);
            }
            decode_steps<kTwiceK, kCode, kSteps, kSteps>(runs, upper, a[1]);
            multiply_steps<kRows, kSteps>(acc, a[1], x, kSteps, lane);
            if constexpr (kSteps == 1) {
                decode_steps<kTwiceK, kCode, 2, 1>(runs, upper, a[0]);
                multiply_steps<kRows, 1>(acc, a[0], x, 2, lane);
                decode_steps<kTwiceK, kCode, 3, 1>(runs, upper, a[1]);
                multiply_steps<kRows, 1>(acc, a[1], x, 3, lane);
            }
        }
        before = stage;
        stage = stage + 1 == stages ? 0 : stage + 1;
    }
#if TENON_HAS_WGMMA
    gemm::cuda::wgmma_wait<0>();
#endif
    if (lane == 0) {
        barrier_arrive(state.empty + before);
    }
}

// Rows [row0, row0 + kSumRows) of an item: exchanged through `sums`, rotated and stored.
template <Code kCode, int kRows>
__device__ __forceinline__ void store_rows(const GroupedCall& call, const GroupedSide& side,
                                           const GroupedState<kRows>& state, int turn, int rows,
                                           int column0, const float (&acc)[2][kRows / 2], int row0,
                                           float* sums, int warp, int lane) {
    const Weight& w = state.weight[turn % 3];
    const int slot = turn % 2;
    const int unit = warp % kGroupedUnits;
    const int half_unit = warp / kGroupedUnits;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int i = 0; i < kSumRows / 2; ++i) {
            const int r = i / 4 * 8 + 2 * (lane % 4) + i % 2;
            const int c = kUnit * unit + 32 * half_unit + 16 * t + lane / 4 + i / 2 % 2 * 8;
            float v = acc[t][row0 / 2 + i];
            if constexpr (kCode == Code::mul1) {
                v = __fmaf_rn(v, kSumFactor * 0x1p24f,
                              __fmul_rn(kSumOffset, state.sum[slot][row0 + r]));
            }
            sums[r * kGroupedStride + c] = v;
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
    float bias[4] = {0, 0, 0, 0};
    if (w.bias != nullptr) {
        *reinterpret_cast<float4*>(bias) = *reinterpret_cast<const float4*>(w.bias + column);
    }
#pragma unroll 2
    for (int r = warp / 2; r < min(rows - row0, kSumRows); r += kGroupedWarps / 2) {
        const float4 four = *reinterpret_cast<const float4*>(sums + r * kGroupedStride +
                                                             warp % 2 * kBlock + 4 * lane);
        float v[4] = {four.x, four.y, four.z, four.w};
        rotate128(v, lane);
        const float scale = state.scale[slot][row0 + r];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[i] = __fmul_rn(v[i], __fmul_rn(columns[i], scale));
            if (w.bias != nullptr) {
                v[i] = __fadd_rn(v[i], bias[i]);
            }
        }
        store_y(side.y, call.y_is_f32 != 0 ? Element::f32 : Element::bf16,
                state.row[slot][row0 + r] * side.y_stride + column, v, call.out - column);
    }
}

/// Blocks of a class that share a multiprocessor, where it has the shared memory for them.
constexpr int grouped_blocks(int rows) {
    return rows <= 64 ? 2 : 1;
}

// An item is a tile of rows and 256 columns of a side, columns fastest; blocks take every
// gridDim.x-th. A launch takes the tiles of a class. Sums have k ascending, one chain a value of y,
// whatever the rows.
template <int kTwiceK, Code kCode, int kRows>
__global__ void __launch_bounds__(kGroupedThreads, grouped_blocks(kRows))
    grouped_kernel(const __grid_constant__ GroupedCall call, int ring_bytes, int sums_at) {
    constexpr int kClass = tile_class(kRows);
    let_next_kernel_start();
    const int first = kClass == 0 ? 0 : call.tile_ends[kClass - 1];
    const int last = call.tile_ends[kClass];
    const int per_side = (call.out + kGroupedColumns - 1) / kGroupedColumns;
    const int per_tile = per_side * call.sides;
    const int items = (last - first) * per_tile;
    const int stride = static_cast<int>(gridDim.x);
    int item = static_cast<int>(blockIdx.x);
    if (item >= items) {
        wait_for_previous_kernel();
        return;
    }
    extern __shared__ uint8_t shared_raw[];
    uint8_t* ring = shared_raw + (1024 - shared_address(shared_raw) % 1024) % 1024;
    auto* sums = reinterpret_cast<float*>(ring + sums_at);
    auto& state =
        *reinterpret_cast<GroupedState<kRows>*>(ring + max(ring_bytes, sums_at + kSumBytes));
    const bool apart = sums_at > 0;  // the ring may be filled while sums are rotated
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < kGroupedStages; ++s) {
            barrier_init(state.full + s, 1);
            barrier_init(state.empty + s, kGroupedWarps);
        }
        fence_barrier_init();
    }
    const auto tile_of = [&](int i) { return call.tiles + first + i / per_tile; };
    const auto side_of = [&](int i) -> const GroupedSide& {
        return call.side[i % per_tile / per_side];
    };
    for (int ahead = 0; ahead < 2; ++ahead) {
        const int i = item + ahead * stride;
        if (threadIdx.x == 32 * ahead && i < items) {
            state.tile[ahead] = *tile_of(i);
            if (ahead == 0) {
                state.weight[0] = side_of(i).table[state.tile[0].expert];
            }
        }
    }
    __syncthreads();
    const int stages_of_k = call.k / (kGroupedSteps * kUnit);
    const int stages = min(kGroupedStages, ring_bytes / grouped_stage_bytes(kTwiceK, kRows));
    const auto decodes = [&](int turn) {
        const Weight& w = state.weight[turn % 3];
        return w.twice_k == kTwiceK && w.code == kCode;
    };
    // Asks for an item's first stages. One thread.
    const auto begin = [&](int i, int turn, uint32_t phases) {
        const ExpertTile& tile = state.tile[turn % 4];
        const Weight& w = state.weight[turn % 3];
        const int column0 = i % per_tile % per_side * kGroupedColumns;
        const int64_t units_k = w.k / kUnit;
        GroupedSource& source = state.source[turn % 2];
        source.x = side_of(i).x + int64_t{tile.slot0} * call.k * 2;
        source.words = w.words + unit_index(units_k, 0, column0 / kUnit) * unit_words(kTwiceK);
        source.second = column0 + kBlock < w.n ? 2 * units_k * unit_words(kTwiceK) : 0;
        source.x_bytes = static_cast<uint32_t>(tile.padded) * 128;
        for (int s = 0; s < stages && s < stages_of_k; ++s) {
            fetch<kTwiceK, kRows>(state, turn, ring, s, s, phases >> s & 1);
        }
    };
    uint32_t phases = 0;
    if (threadIdx.x == 0 && decodes(0)) {
        begin(item, 0, phases);
    }
    __syncthreads();
#pragma unroll 1
    for (int turn = 0;; ++turn) {
        const int slot = turn % 2;
        const int rows = state.tile[turn % 4].rows;
        // What the end of this item and the next items need.
        for (int r = threadIdx.x; r < rows; r += kGroupedThreads) {
            const GroupedSide& side = side_of(item);
            const int at = state.tile[turn % 4].slot0 + r;
            copy_async<4>(&state.scale[slot][r], side.scale + at);
            copy_async<4>(&state.sum[slot][r], side.sum + at);
            if (call.entry_of == nullptr) {
                state.row[slot][r] = at;
            } else {
                copy_async<4>(&state.row[slot][r], call.entry_of + at);
            }
        }
        if (threadIdx.x == kGroupedThreads - 1) {
            if (item + 2 * stride < items) {
                copy_async<16>(&state.tile[(turn + 2) % 4], tile_of(item + 2 * stride));
            }
            if (item + stride < items) {
                const Weight* from =
                    side_of(item + stride).table + state.tile[(turn + 1) % 4].expert;
                auto* to = reinterpret_cast<uint8_t*>(&state.weight[(turn + 1) % 3]);
#pragma unroll
                for (int i = 0; i < static_cast<int>(sizeof(Weight)); i += 8) {
                    copy_async<8>(to + i, reinterpret_cast<const uint8_t*>(from) + i);
                }
            }
        }
        const auto next = [&] {
            asm volatile("cp.async.wait_all;" ::: "memory");
            __syncthreads();
            if (apart && threadIdx.x == 0 && item + stride < items && decodes(turn + 1)) {
                begin(item + stride, turn + 1, phases);
            }
        };
        if (decodes(turn)) {
            float acc[2][kRows / 2];
            multiply_item<kTwiceK, kCode, kRows>(acc, state, turn, ring, stages, stages_of_k,
                                                 call.upper, phases, warp, lane);
            next();
#pragma unroll
            for (int row0 = 0; row0 < kRows; row0 += kSumRows) {
                if (row0 > 0) {
                    __syncthreads();  // sums are used again
                }
                store_rows<kCode, kRows>(call, side_of(item), state, turn, rows,
                                         item % per_tile % per_side * kGroupedColumns, acc, row0,
                                         sums, warp, lane);
            }
        } else {
            next();
            __syncthreads();
        }
        item += stride;
        if (item >= items) {
            break;
        }
        if (!apart) {
            __syncthreads();
            if (threadIdx.x == 0 && decodes(turn + 1)) {
                begin(item, turn + 1, phases);
            }
            __syncthreads();
        }
    }
    wait_for_previous_kernel();  // the end of the last class is the end of all
}

/// `follows`: the launch may start while the one before it ends, which writes other rows.
template <int kTwiceK, Code kCode, int kRows>
cudaError_t launch_grouped(const GroupedCall& call, bool follows, cudaStream_t stream) {
    auto* kernel = &grouped_kernel<kTwiceK, kCode, kRows>;
    const int limit = shared_most();
    static DeviceFlags allowed;
    const cudaError_t status = allow_shared(&allowed, reinterpret_cast<const void*>(kernel), limit);
    if (status != cudaSuccess) {
        return status;
    }
    constexpr int kStage = grouped_stage_bytes(kTwiceK, kRows);
    constexpr int kState = 1024 + static_cast<int>(sizeof(GroupedState<kRows>));
    static_assert(kRows > kExpertTileLess || kState + 2 * kStage <= tenon::cuda::kLeastSharedBlock);
    int blocks = limit >= 200 * 1024 ? grouped_blocks(kRows) : 1;
    while (blocks > 1 && limit / blocks - 1024 - kState < 2 * kStage) {
        --blocks;
    }
    const int room = (blocks > 1 ? limit / blocks - 1024 : limit) - kState;
    const bool apart = room - kSumBytes >= 2 * kStage;
    const int ring =
        std::clamp((apart ? room - kSumBytes : room) / kStage, 2, kGroupedStages) * kStage;
    const int sums_at = apart ? ring : 0;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned int>(blocks * call.processors));
    config.blockDim = dim3(kGroupedThreads);
    config.dynamicSmemBytes = static_cast<size_t>(kState + std::max(ring, sums_at + kSumBytes));
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = follows && has_clusters() ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, call, ring, sums_at);
}

template <int kTwiceK, Code kCode>
cudaError_t launch_grouped(const GroupedCall& call, cudaStream_t stream) {
    const bool tall = shared_most() >= kExpertTileShared;
    cudaError_t status = cudaSuccess;
    if (tall) {
        status = launch_grouped<kTwiceK, kCode, kExpertTile>(call, false, stream);
    }
    if (status == cudaSuccess) {
        status = launch_grouped<kTwiceK, kCode, kExpertTileLess>(call, tall, stream);
    }
    return status == cudaSuccess ? launch_grouped<kTwiceK, kCode, 32>(call, true, stream) : status;
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
