// SPDX-License-Identifier: MIT
// y = x W^T for more rows than exact.cuh likes, codebook mul1, in the same exact integers, on the
// warpgroup products of Hopper: the product bytes of decoded weights are the first operand, from
// registers; digits of rows, each four times, are the second, from shared memory.
//
// Work is shared as in exact.cuh, only that a warpgroup takes a unit of 128 columns at a time.
#pragma once

#include "exact.cuh"
#include "prefill_decode.cuh"
#include "wgmma_s32.cuh"

namespace tenon::exl3::cuda {

constexpr int kWideGroups = kExactWarps / 4;  ///< warpgroups of a thread block

/// Columns of the tensor core for `rows` rows, two a row.
TENON_HD constexpr int wide_columns(int rows) {
    return rows <= 16 ? 32 : 64;
}
/// Digits of 64 rows of k: eight steps of 32 bytes by `columns` columns.
TENON_HD constexpr int wide_unit_bytes(int columns) {
    return 8 * 32 * columns;
}

struct WideLayout {
    int ring, panel, slots, slot_bytes, total;
};
/// As exact_layout.
TENON_HD constexpr WideLayout wide_layout(int twice_k, int rows, int count, int range,
                                          const ExactPlan& p) {
    WideLayout l{};
    int at = (static_cast<int>(sizeof(ExactHeader)) + 127) / 128 * 128;
    l.panel = at;
    at += (count < range ? count : range) * wide_unit_bytes(wide_columns(rows));
    l.ring = at;
    at += kWideGroups * p.stages * 2 * unit_words(twice_k) * 4;
    l.slots = at;  // int [2 rows][column]
    l.slot_bytes = 2 * rows * kSlotStride * 4;
    at += p.slots * l.slot_bytes;
    l.total = at;
    return l;
}

#if TENON_HAS_WGMMA

// Writes digits of a part, four times each: [unit][step][half][column][16].
template <int kColumns>
__device__ __forceinline__ void spread_digits(const StagedSet& set, int k, const StagedPart& part,
                                              uint8_t* panel) {
    constexpr int kSets = kColumns / 8;
    const int lane = threadIdx.x % 32;
#pragma unroll 2
    for (int task = threadIdx.x / 32; task < part.count / kUnit * kSets; task += kExactWarps) {
        const int unit = task / kSets;
        const int n = task % kSets;
        int from = part.first + unit * kUnit;
        from += part.begin - (from >= part.length ? part.length : 0);
        const uint4 quad = *reinterpret_cast<const uint4*>(
            set.digits + ((int64_t{n} * k + from) / 16 + lane % 4) * 128 + lane / 4 * 16);
        const uint32_t x[4] = {quad.x, quad.y, quad.z, quad.w};
        uint8_t* to =
            panel + unit * wide_unit_bytes(kColumns) + 128 * n + lane / 4 * 16 + lane % 4 * 4;
#pragma unroll
        for (int q = 0; q < 4; ++q) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int channel = run_row(q) + 2 * i;
                *reinterpret_cast<uint32_t*>(to + (4 * q + i) * 16 * kColumns) =
                    __byte_perm(x[channel / 4], 0, 0x1111 * (channel % 4));
            }
        }
    }
}

// Two steps of 32 bytes: positions kQ, kQ + 4, ... of two runs.
template <int kTwiceK, int kColumns, int kQ>
__device__ __forceinline__ void wide_step(const uint32_t (&runs)[2][run_registers(kTwiceK)],
                                          uint64_t b, uint32_t (&a)[2][2][4],
                                          int (&sums)[2][kColumns / 2]) {
    constexpr Code kCode = Code::mul1;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
        a[0][t][0] = raw_weight<kCode>(window<kTwiceK, kQ>(runs[t]));
        a[0][t][1] = raw_weight<kCode>(window<kTwiceK, kQ + 4>(runs[t]));
        a[0][t][2] = raw_weight<kCode>(window<kTwiceK, kQ + 8>(runs[t]));
        a[0][t][3] = raw_weight<kCode>(window<kTwiceK, kQ + 12>(runs[t]));
        a[1][t][0] = raw_weight<kCode>(window<kTwiceK, kQ + 16>(runs[t]));
        a[1][t][1] = raw_weight<kCode>(window<kTwiceK, kQ + 20>(runs[t]));
        a[1][t][2] = raw_weight<kCode>(window<kTwiceK, kQ + 24>(runs[t]));
        a[1][t][3] = raw_weight<kCode>(window<kTwiceK, kQ + 28>(runs[t]));
    }
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            wgmma_s32(sums[t], a[s][t], b + (2 * kQ + s) * (2 * kColumns));
        }
    }
    wgmma_commit();
    wgmma_wait<1>();
}

// Adds a warpgroup's sums of 128 columns to those of its block.
template <int kColumns>
__device__ __forceinline__ void add_wide(const int (&sums)[2][kColumns / 2], int rows,
                                         uint8_t* slots, int quarter) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
        if (4 * j + lane % 4 < rows) {
            int* to = reinterpret_cast<int*>(slots) + (8 * j + 2 * (lane % 4)) * kSlotStride +
                      32 * quarter + lane / 4;
#pragma unroll
            for (int t = 0; t < 2; ++t) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    atomicAdd(to + (i & 1) * kSlotStride + 16 * t + 8 * (i >> 1),
                              sums[t][4 * j + i]);
                }
            }
        }
    }
}

#endif

// Grid: (plan.places, 1, jobs).
template <int kTwiceK, int kColumns>
__global__ void __launch_bounds__(kExactThreads, 1)
    wide_kernel(const __grid_constant__ LinearCall call, const __grid_constant__ ExactPlan plan,
                int row0, int rows) {
#if TENON_HAS_WGMMA
    extern __shared__ __align__(128) uint8_t smem[];
    constexpr int kStepBytes = 2 * unit_words(kTwiceK) * 4;
    auto& h = *reinterpret_cast<ExactHeader*>(smem);
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);  // uniform for the compiler
    const int lane = threadIdx.x % 32;
    const int group = warp / 4;
    const int quarter = warp % 4;  // of 128 columns
    const Job& job = call.jobs[blockIdx.z];
    const int units_k = call.k / kUnit;
    int place = plan.places - 1 - static_cast<int>(blockIdx.x);
    int r = 0;
    while (place >= plan.range[r].places) {
        place -= plan.range[r++].places;
    }
    const ExactRange& range = plan.range[r];
    const int length = range.length;
    const int first = exact_cut(job.blocks * length, range.places, place);
    const int count = exact_cut(job.blocks * length, range.places, place + 1) - first;
    const WideLayout layout = wide_layout(kTwiceK, rows, count, length, plan);
    int block = first / length;
    int unit = first - block * length;  // of the range, in this column block
    const bool whole = count >= length;
    const StagedPart part = {range.begin * kUnit, length * kUnit, whole ? 0 : unit * kUnit,
                             min(count, length) * kUnit};

    const uint8_t* next = reinterpret_cast<const uint8_t*>(job.words) +
                          (int64_t{block} * units_k + range.begin + unit + group) * kStepBytes;
    const int64_t jump = int64_t{units_k - length} * kStepBytes;  // to the next column block
    int next_unit = unit + group;
    int fetch_at = group;
    int fetch_stage = 0;
    uint32_t fetch_parity = 1;  // the first round finds stages empty
    uint8_t* ring = smem + layout.ring + group * plan.stages * kStepBytes;
    uint64_t* full = h.full + group * kMostStages;
    uint64_t* empty = full + kWideGroups * kMostStages;
    const bool leader = quarter == 0 && elect_lane();
    const uint64_t policy = read_once_policy();
    const auto fetch = [&]() {
        if (next_unit >= length) {
            next_unit -= length;
            next += jump;
        }
        next_unit += kWideGroups;
        if (leader && fetch_at < count) {
            barrier_wait(empty + fetch_stage, fetch_parity);
            barrier_expect(full + fetch_stage, kStepBytes);
            bulk_load(ring + fetch_stage * kStepBytes, next, kStepBytes, full + fetch_stage,
                      policy);
        }
        fetch_at += kWideGroups;
        next += kWideGroups * kStepBytes;
        if (++fetch_stage == plan.stages) {
            fetch_stage = 0;
            fetch_parity ^= 1;
        }
    };
    if (leader) {
        for (int i = 0; i < plan.stages; ++i) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 4);
        }
        for (int i = 0; i < 2 && warp == 0; ++i) {
            barrier_init(h.merged + i, kExactWarps);
            barrier_init(h.taken + i, rows);
        }
        fence_barrier_init();
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i + 1 < plan.stages; ++i) {
        fetch();
    }
    for (int i = threadIdx.x; i < plan.slots * layout.slot_bytes / 4; i += kExactThreads) {
        reinterpret_cast<int*>(smem + layout.slots)[i] = 0;
    }
    wait_for_previous_kernel();
    uint8_t* panel = smem + layout.panel;
    const StagedSet set = staged_set(call.scratch, static_cast<int>(blockIdx.z),
                                     min(call.rows, kMostStagedRows), call.k);
    spread_digits<kColumns>(set, call.k, part, panel);
    for (int row = warp; row < rows; row += kExactWarps) {
        int sum = 0;
        for (int b = lane; b < call.k / kBlock; b += 32) {
            sum += set.sums[row * (call.k / kBlock) + b];
        }
        sum = __reduce_add_sync(0xFFFFFFFFu, sum);
        if (lane == 0) {
            h.total[row] = sum;
            h.most[row] = __float_as_uint(set.most[row]);
        }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    let_next_kernel_start();

    const uint64_t digits = bytes_operand<kColumns>(shared_address(panel));
    int stage = 0;
    uint32_t parity = 0;
    int slot = 0;
    uint32_t slot_parity = 0;
    int turn = kExactWarps - 1;
    int at = group;  // units are counted from the thread block's first
    int begin = 0;
#pragma unroll 1
    for (; begin < count; ++block) {
        // Uniform for the compiler, as the descriptors that follow from it must be.
        const int end = __shfl_sync(0xFFFFFFFFu, min(count, begin + length - unit), 0);
        at = __shfl_sync(0xFFFFFFFFu, at, 0);
        const int staged = at + (whole ? unit - begin : 0);
        uint64_t b = digits + static_cast<uint64_t>(staged * (wide_unit_bytes(kColumns) / 16));
        int sums[2][kColumns / 2];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
#pragma unroll
            for (int i = 0; i < kColumns / 2; ++i) {
                sums[t][i] = 0;
            }
        }
        uint32_t a[2][2][2][4];
#pragma unroll 1
        for (; at < end; at += kWideGroups) {
            barrier_wait(full + stage, parity);
            uint32_t runs[2][run_registers(kTwiceK)];
            load_two_runs<kTwiceK>(reinterpret_cast<const uint32_t*>(
                                       ring + stage * kStepBytes + quarter / 2 * (kStepBytes / 2)),
                                   lane, quarter % 2, runs);
            __syncwarp();
            if (lane == 0) {
                barrier_arrive(empty + stage);
            }
            // Into the stage of the step before. Anywhere between products it would make them wait
            // for each other.
            fetch();
            wide_step<kTwiceK, kColumns, 0>(runs, b, a[0], sums);
            wide_step<kTwiceK, kColumns, 1>(runs, b, a[1], sums);
            wide_step<kTwiceK, kColumns, 2>(runs, b, a[0], sums);
            wide_step<kTwiceK, kColumns, 3>(runs, b, a[1], sums);
            b += kWideGroups * (wide_unit_bytes(kColumns) / 16);
            if (++stage == plan.stages) {
                stage = 0;
                parity ^= 1;
            }
        }
        wgmma_wait<0>();
        uint8_t* slots = smem + layout.slots + slot * layout.slot_bytes;
        barrier_wait(h.taken + slot, slot_parity ^ 1);
        add_wide<kColumns>(sums, rows, slots, quarter);
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(h.merged + slot);
        }
        finish_block<4>(call, plan, h, slots, slot, slot_parity, turn - warp, block, end - begin,
                        r == 0 && unit == 0, row0, rows);
        turn -= rows;
        if (++slot == plan.slots) {
            slot = 0;
            slot_parity ^= 1;
        }
        begin = end;
        unit = 0;
    }
#else
    asm volatile("trap;");  // built for another device
#endif
}

}  // namespace tenon::exl3::cuda
