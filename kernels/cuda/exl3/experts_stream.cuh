// SPDX-License-Identifier: MIT
// Products of many small jobs as one flat list of pairs, cut evenly between the warps of the
// device.
//
// A pair is 64 rows x 128 columns of one matrix: two units that lie side by side. Pairs lie k
// first, columns next, so a matrix is one stream of packed words. A warp decodes a contiguous range
// of the list for up to four rows and adds its exact integer sums to memory whenever the columns
// change: how the list is cut shows in no bit. Warps never wait for each other. Each has one or
// two stages that hold a pair, filled by bulk copies; digits of rows come from the L2 cache, a pair
// ahead.
#pragma once

#include "exact.cuh"
#include "experts_exact.h"

namespace tenon::exl3::cuda {

constexpr int kStreamWarps = 8;  ///< of a block, at most; two blocks a multiprocessor
constexpr int kStreamThreads = 32 * kStreamWarps;
constexpr int kStageHeader = 128;  ///< its barrier
constexpr int kRowDigits = 128;    ///< bytes of a row's digits of 64 channels

struct UnitStream {
    const int32_t* groups;
    const ExpertItem* items;  ///< [groups][projections]
    int projections;
    int units_k, pairs_n;  ///< of 64 rows and 128 columns
    /// The list was complete before the previous kernel started: weights need not wait for it.
    bool listed;
    const uint8_t* digits;    ///< [entries][projections][units_k][kRowDigits]
    int64_t* sums;            ///< [entries][projections][128 pairs_n]
    int stages, stage_bytes;  ///< set by the launcher; one stage or two
    uint32_t zero;            ///< 0: see runs_here (decode.cuh)
};

TENON_HD constexpr int pair_bytes(int twice_k) {
    return 2 * unit_words(twice_k) * 4;
}
/// Of the largest rate.
constexpr int stage_bytes(int twice_k) {
    return kStageHeader + pair_bytes(twice_k);
}
constexpr int stream_bytes(int twice_k, int warps, int stages) {
    return warps * stages * stage_bytes(twice_k);
}

/// A warp's stage of the next pair, in shared memory. A stage is filled again when it has been
/// read, so pairs are fetched into the stage at hand.
struct StreamStage {
    uint32_t address;
    int to_other;  // 0: there is one
    uint32_t parity;

    __device__ __forceinline__ uint8_t* data() const {
        return static_cast<uint8_t*>(__cvta_shared_to_generic(address)) + kStageHeader;
    }
    __device__ __forceinline__ uint64_t* full() const {
        return static_cast<uint64_t*>(__cvta_shared_to_generic(address));
    }
    __device__ __forceinline__ void next() {
        address += to_other;
        parity ^= to_other <= 0 ? 1u : 0u;
        to_other = -to_other;
    }
};

// `digits` of the lane's column of the tensor core, null if it has none.
template <int kTwiceK, class Fetch>
__device__ __forceinline__ void decode_pairs(StreamStage& stage, int count, const uint8_t* digits,
                                             Fetch&& fetch, int (&sums)[2][4][1][4]) {
    const int lane = threadIdx.x % 32;
    const bool used = digits != nullptr;
    uint4 next = make_uint4(0, 0, 0, 0);
    if (used) {
        next = __ldcg(reinterpret_cast<const uint4*>(digits));
    }
#pragma unroll 1
    for (; count > 0; --count) {
        const uint32_t x[1][4] = {{next.x, next.y, next.z, next.w}};
        const auto* pair = reinterpret_cast<const uint32_t*>(stage.data());
        uint32_t runs[4][run_registers(kTwiceK)];
        barrier_wait(stage.full(), stage.parity);
        load_runs<kTwiceK>(pair, lane, runs);
        exact_unit<kTwiceK, 1>(runs, x, sums[0]);
        load_runs<kTwiceK>(pair + unit_words(kTwiceK), lane, runs);
        __syncwarp();
        fetch(runs_here<kTwiceK>(runs));
        stage.next();
        digits += kRowDigits;
        if (used && count > 1) {
            next = __ldcg(reinterpret_cast<const uint4*>(digits));
        }
        exact_unit<kTwiceK, 1>(runs, x, sums[1]);
    }
}

template <class Fetch>
__device__ __forceinline__ void decode_any(int twice_k, StreamStage& stage, int count,
                                           const uint8_t* digits, Fetch&& fetch,
                                           int (&sums)[2][4][1][4]) {
    switch (twice_k) {
        case 2:
            return decode_pairs<2>(stage, count, digits, fetch, sums);
        case 3:
            return decode_pairs<3>(stage, count, digits, fetch, sums);
        case 4:
            return decode_pairs<4>(stage, count, digits, fetch, sums);
        case 5:
            return decode_pairs<5>(stage, count, digits, fetch, sums);
        case 6:
            return decode_pairs<6>(stage, count, digits, fetch, sums);
        case 7:
            return decode_pairs<7>(stage, count, digits, fetch, sums);
        case 8:
            return decode_pairs<8>(stage, count, digits, fetch, sums);
        case 10:
            return decode_pairs<10>(stage, count, digits, fetch, sums);
        case 12:
            return decode_pairs<12>(stage, count, digits, fetch, sums);
        case 14:
            return decode_pairs<14>(stage, count, digits, fetch, sums);
        default:
            return decode_pairs<16>(stage, count, digits, fetch, sums);
    }
}

// Adds sums of 128 columns, `to` on: of the lane's row, columns lane / 4 + 8 j.
__device__ __forceinline__ void add_sums(const int (&sums)[2][4][1][4], unsigned long long* to) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            const auto& s = sums[half][t][0];
            atomicAdd(to + kUnit * half + 16 * t,
                      static_cast<unsigned long long>(256LL * s[0] + s[1]));
            atomicAdd(to + kUnit * half + 16 * t + 8,
                      static_cast<unsigned long long>(256LL * s[2] + s[3]));
        }
    }
}

// Grid: any number of blocks. The list of items may be written by the kernel before.
__global__ void __launch_bounds__(kStreamThreads, 2)
    stream_kernel(const __grid_constant__ UnitStream c) {
    extern __shared__ __align__(128) uint8_t smem[];
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);  // uniform for the compiler
    const int lane = threadIdx.x % 32;
    const bool leader = elect_lane();
    StreamStage stage{shared_address(smem) + warp * c.stages * c.stage_bytes,
                      c.stages == 1 ? 0 : c.stage_bytes, 0};
    if (leader) {
#pragma unroll 1
        for (int i = 0; i < c.stages; ++i) {
            barrier_init(reinterpret_cast<uint64_t*>(smem + (warp * c.stages + i) * c.stage_bytes),
                         1);
        }
        fence_barrier_init();
    }
    __syncwarp();
    if (!c.listed) {
        wait_for_previous_kernel();
        let_next_kernel_start();
    }
    const int matrix = c.pairs_n * c.units_k;
    const int64_t all = int64_t{*c.groups} * c.projections * matrix;
    const int warps_here = static_cast<int>(blockDim.x) / 32;
    const int warps = static_cast<int>(gridDim.x) * warps_here;
    const int me = static_cast<int>(blockIdx.x) * warps_here + warp;
    int at = static_cast<int>(all * me / warps);
    const int end = static_cast<int>(all * (me + 1) / warps);
    const uint64_t policy = read_once_policy();

    // What is fetched next: pairs of one matrix follow each other in memory.
    int fetch_at = at, fetch_left = 0, fetch_bytes = 0;
    const uint8_t* words = nullptr;
    const auto fetch = [&](uint32_t runs) {
        if (fetch_left == 0) {
            if (fetch_at >= end) {
                return;
            }
            const int product = fetch_at / matrix;
            const int inside = fetch_at - product * matrix;
            const ExpertItem& item = c.items[product];
            fetch_bytes = pair_bytes(item.twice_k);
            words = reinterpret_cast<const uint8_t*>(item.words) + int64_t{inside} * fetch_bytes;
            fetch_left = min(matrix - inside, end - fetch_at);
            fetch_at += fetch_left;
        }
        if (leader) {
            barrier_expect(stage.full(), fetch_bytes);
            bulk_load(stage.data(), words, fetch_bytes + (runs & c.zero), stage.full(), policy);
            loads_sent(stage.full());
        }
        words += fetch_bytes;
        --fetch_left;
    };
#pragma unroll 1
    for (int i = 0; i < c.stages; ++i) {
        fetch(0);
        stage.next();
    }
    stage.parity = 0;
    if (c.listed) {
        wait_for_previous_kernel();
        let_next_kernel_start();
    }

    const int row = lane % 4;     // whose sums the lane has
    const int column = lane / 4;  // of the tensor core: row column / 2, digit column % 2
    int product = at / matrix;
    int k_unit = (at - product * matrix) % c.units_k;
    int pair = (at - product * matrix) / c.units_k;
#pragma unroll 1
    for (; at < end; ++product, pair = 0) {
        const int projection = product % c.projections;
        const ExpertItem& item = c.items[product];
        const int rows = item.rows;
        const int twice_k = item.twice_k;
        const uint8_t* digits = nullptr;
        if (column < 2 * rows) {
            digits = c.digits +
                     (int64_t{item.entry[column / 2]} * c.projections + projection) * c.units_k *
                         kRowDigits +
                     lane % 4 * 32 + column % 2 * 16;
        }
        unsigned long long* to = nullptr;
        if (row < rows) {
            to = reinterpret_cast<unsigned long long*>(c.sums) +
                 ((int64_t{item.entry[row]} * c.projections + projection) * c.pairs_n + pair) *
                     kBlock +
                 lane / 4;
        }
#pragma unroll 1
        for (; pair < c.pairs_n && at < end; ++pair) {
            const int count = min(c.units_k - k_unit, end - at);
            int sums[2][4][1][4] = {};
            decode_any(twice_k, stage, count,
                       digits == nullptr ? nullptr : digits + k_unit * kRowDigits, fetch, sums);
            if (to != nullptr) {
                add_sums(sums, to);
                to += kBlock;
            }
            at += count;
            k_unit = 0;
        }
    }
}

}  // namespace tenon::exl3::cuda
