// SPDX-License-Identifier: MIT
// y = x W^T for few rows and codebook mul1, in exact integers.
//
// Rotated rows become 16-bit fixed point with one scale a row over all of k, two signed 8-bit
// digits each. A weight's four product bytes times a digit are what one lane feeds to an integer
// tensor core, so the sum over k of a row and column is an exact integer: it does not matter how k
// is cut or in which order parts are added. Thread blocks and warps may therefore share the work
// as the machine likes, and a row's bits depend on the row alone.
//
// All units of a matrix are one list, column block after column block, cut evenly between the
// thread blocks of a launch. The warps of a thread block take its units in turn while their rings
// of packed weights stay full. Of a column block that several share, the one with its first unit
// waits for the sums of the others, which they add in memory, and finishes it.
#pragma once

#include <cuda_bf16.h>

#include "async.cuh"
#include "decode.cuh"
#include "digits.cuh"
#include "params.h"
#include "rotate.cuh"
#include "smem.h"
#include "tensor_core.cuh"

namespace tenon::exl3::cuda {

constexpr int kExactWarps = 16;
constexpr int kExactThreads = 32 * kExactWarps;
/// Keeps registers (96 a thread) for what starts beside a launch of few rows; 64 cost 5 %.
constexpr int kExactBound = 640;
constexpr int kExactSplits = kExactWarps / 2;  ///< warps that share 64 columns
constexpr int kMostStages = 4;
constexpr int kMostRanges = 20;
constexpr int kSlotStride = kBlock + 4;
constexpr int kCountBit = 48;  ///< of a shared sum in memory: units of k in it above, the sum below

/// Thread blocks that share the same range of k of a job: its units are one list, column block
/// after column block, cut evenly between `places` of them. Each stages rows of that range only.
struct ExactRange {
    int begin = 0, length = 0;  ///< units; at least eight if there is more than one range
    int places = 0;
};
/// How a launch shares its work; chosen by the host for speed only.
struct ExactPlan {
    int ranges = 0;  ///< 0: nothing fits
    ExactRange range[kMostRanges];
    int places = 0;        ///< of a job
    int stages = 2;        ///< units that a warp keeps in flight
    int slots = 2;         ///< column blocks whose sums may wait in shared memory: 1 or 2
    bool rotated = false;  ///< rows come from scratch; always with more than one n8 block
};

struct ExactHeader {
    uint64_t full[kExactWarps * kMostStages];
    uint64_t staged;
    uint64_t merged[2], taken[2];  // of slots
    unsigned int most[kRowsWide];  // bits of max |x|, by row
    int total[kRowsWide];          // sum of fixed-point values, by row
};

/// Staged digits of 16 channels and one n8 block: 16 bytes for each of its columns, two a row.
TENON_HD constexpr int tile_bytes(bool rotated, int rows) {
    return rotated ? 128 : 32 * rows;
}

struct ExactLayout {
    int ring, slots, slot_bytes, staged, total;
};

/// Shared memory, in bytes. `blocks` n8 blocks carry `rows` rows; a thread block has `count` units
/// of 64 rows and 128 columns.
TENON_HD constexpr ExactLayout exact_layout(int twice_k, int blocks, int rows, int count, int range,
                                            const ExactPlan& p) {
    ExactLayout l{};
    int at = (static_cast<int>(sizeof(ExactHeader)) + 127) / 128 * 128;
    l.ring = at;
    at += kExactWarps * p.stages * unit_words(twice_k) * 4;
    l.slots = at;  // one n8 block: int2 [split][row][column]; more: int [2 rows][column]
    l.slot_bytes = blocks == 1 ? kExactSplits * rows * kSlotStride * 8 : 2 * rows * kSlotStride * 4;
    at += p.slots * l.slot_bytes;
    l.staged = at;
    at += blocks * (count < range ? count : range) * (kUnit / 16) * tile_bytes(p.rotated, rows);
    l.total = at;
    return l;
}

// Products of 32 positions of four runs: a step takes positions kQ, kQ + 4, ... of each, which are
// four rows of the lane's 16 and its columns g and g + 8.
template <int kTwiceK, int kBlocks, int kQ>
__device__ __forceinline__ void exact_step(const uint32_t (&runs)[4][run_registers(kTwiceK)],
                                           const uint32_t (&x)[kBlocks][4],
                                           int (&sums)[4][kBlocks][4]) {
    constexpr int kRow = run_row(kQ);
    uint32_t b[kBlocks][4];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            b[n][i] = __byte_perm(x[n][(kRow + 2 * i) / 4], 0, 0x1111 * ((kRow + 2 * i) % 4));
        }
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        const uint32_t a[4] = {raw_weight<Code::mul1>(window<kTwiceK, kQ>(runs[t])),
                               raw_weight<Code::mul1>(window<kTwiceK, kQ + 4>(runs[t])),
                               raw_weight<Code::mul1>(window<kTwiceK, kQ + 8>(runs[t])),
                               raw_weight<Code::mul1>(window<kTwiceK, kQ + 12>(runs[t]))};
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            multiply(sums[t][n], a, b[n][0], b[n][1]);
        }
        const uint32_t c[4] = {raw_weight<Code::mul1>(window<kTwiceK, kQ + 16>(runs[t])),
                               raw_weight<Code::mul1>(window<kTwiceK, kQ + 20>(runs[t])),
                               raw_weight<Code::mul1>(window<kTwiceK, kQ + 24>(runs[t])),
                               raw_weight<Code::mul1>(window<kTwiceK, kQ + 28>(runs[t]))};
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            multiply(sums[t][n], c, b[n][2], b[n][3]);
        }
    }
}

template <int kTwiceK, int kBlocks>
__device__ __forceinline__ void exact_unit(const uint32_t (&runs)[4][run_registers(kTwiceK)],
                                           const uint32_t (&x)[kBlocks][4],
                                           int (&sums)[4][kBlocks][4]) {
    exact_step<kTwiceK, kBlocks, 0>(runs, x, sums);
    exact_step<kTwiceK, kBlocks, 1>(runs, x, sums);
    exact_step<kTwiceK, kBlocks, 2>(runs, x, sums);
    exact_step<kTwiceK, kBlocks, 3>(runs, x, sums);
}

/// Rows of x that a block stages.
struct RowSource {
    const void* x;
    int64_t stride;
    Element element;
    const uint16_t* suh;
    int row0, k, in;
};

/// Channels [first, first + count) of a range of k that begins at `begin` and goes round at its
/// end.
struct StagedPart {
    int begin, length, first, count;
};

// Rotates rows and writes the digits of a part. The largest value of a row is that of all of k, so
// every thread block rotates whole rows. Ends without a barrier.
__device__ __forceinline__ void stage_exact(const RowSource& s, int rows, const StagedPart& part,
                                            ExactHeader& h, uint8_t* staged) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int blocks = s.k / kBlock;
    const int tasks = rows * blocks;  // of one row and 128 channels, eight lanes each
    const int tile = tile_bytes(false, rows);
    const auto rotate = [&](int task, float(&v)[16]) {
        if (task < tasks) {
            const int row = task / blocks;
            const int at = (task - row * blocks) * kBlock + 16 * (lane % 8);
            load_x16(s.x, s.element, (s.row0 + row) * s.stride + at, s.in - at, v);
            scale16(s.suh + at, v);
        }
        rotate_eighth(v, lane);
        const unsigned int most = largest16(v);
        if (task < tasks && lane % 8 == 0) {
            atomicMax(&h.most[task / blocks], most);
        }
    };
    const auto put = [&](int task, const float(&v)[16]) {
        const int row = min(task / blocks, rows - 1);
        int at = (task - row * blocks) * kBlock + 16 * (lane % 8) - part.begin;
        const bool inside = at >= 0 && at < part.length;
        at += at < part.first ? part.length - part.first : -part.first;
        uint4 high, low;
        const int sum = sum_of_eight(digits16(v, __uint_as_float(h.most[row]), &high, &low));
        if (task < tasks) {
            if (inside && at < part.count) {
                uint8_t* to = staged + at / 16 * tile + 32 * row;
                *reinterpret_cast<uint4*>(to) = high;
                *reinterpret_cast<uint4*>(to + 16) = low;
            }
            if (lane % 8 == 0) {
                atomicAdd(&h.total[row], sum);
            }
        }
    };
    constexpr int kTurn = 4 * kExactWarps;
    constexpr int kHeld = 2;  // turns that stay in registers; others are rotated twice
    float v[kHeld][16] = {};
#pragma unroll 1
    for (int first = kHeld * kTurn + 4 * warp; first < tasks; first += kTurn) {
        rotate(first + lane / 8, v[0]);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        if (i * kTurn + 4 * warp < tasks) {
            rotate(i * kTurn + 4 * warp + lane / 8, v[i]);
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        if (i * kTurn + 4 * warp < tasks) {
            put(i * kTurn + 4 * warp + lane / 8, v[i]);
        }
    }
#pragma unroll 1
    for (int first = kHeld * kTurn + 4 * warp; first < tasks; first += kTurn) {
        rotate(first + lane / 8, v[0]);
        put(first + lane / 8, v[0]);
    }
}

// A lane's column of 16 channels; columns beyond 2 rows are zero.
__device__ __forceinline__ void load_digits(const uint8_t* tile, int rows, uint32_t (&x)[4]) {
    const int column = threadIdx.x % 32 / 4;
    uint4 quad = make_uint4(0, 0, 0, 0);
    if (column < 2 * rows) {
        quad = *reinterpret_cast<const uint4*>(tile + 16 * column);
    }
    x[0] = quad.x;
    x[1] = quad.y;
    x[2] = quad.z;
    x[3] = quad.w;
}

// Hands a warp's sums of 64 columns to its block.
template <int kBlocks>
__device__ __forceinline__ void put_sums(const int (&sums)[4][kBlocks][4], int rows, uint8_t* slots,
                                         int split, int half) {
    const int lane = threadIdx.x % 32;
    if constexpr (kBlocks == 1) {
        const int row = lane % 4;
        if (row < rows) {
            auto* to = reinterpret_cast<int2*>(slots) + (split * rows + row) * kSlotStride +
                       kUnit * half + lane / 4;
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                to[16 * t] = make_int2(sums[t][0][0], sums[t][0][1]);
                to[16 * t + 8] = make_int2(sums[t][0][2], sums[t][0][3]);
            }
        }
    } else {
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            if (4 * n + lane % 4 < rows) {
#pragma unroll
                for (int t = 0; t < 4; ++t) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        atomicAdd(reinterpret_cast<int*>(slots) +
                                      (8 * n + 2 * (lane % 4) + (i & 1)) * kSlotStride +
                                      kUnit * half + 16 * t + lane / 4 + 8 * (i >> 1),
                                  sums[t][n][i]);
                    }
                }
            }
        }
    }
}

// Sums of a row over the block's warps, four columns a lane. Slots of several n8 blocks are
// cleared.
template <int kBlocks>
__device__ __forceinline__ void take_sums(uint8_t* slots, int rows, int row, long long (&sum)[4]) {
    const int lane = threadIdx.x % 32;
    if constexpr (kBlocks == 1) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            sum[j] = 0;
        }
#pragma unroll
        for (int s = 0; s < kExactSplits; ++s) {
            const auto* from = reinterpret_cast<const int4*>(
                reinterpret_cast<const int2*>(slots) + (s * rows + row) * kSlotStride + 4 * lane);
            const int4 a = from[0];
            const int4 b = from[1];
            sum[0] += 256LL * a.x + a.y;
            sum[1] += 256LL * a.z + a.w;
            sum[2] += 256LL * b.x + b.y;
            sum[3] += 256LL * b.z + b.w;
        }
    } else {
        auto* high = reinterpret_cast<int4*>(reinterpret_cast<int*>(slots) + 2 * row * kSlotStride +
                                             4 * lane);
        auto* low = reinterpret_cast<int4*>(reinterpret_cast<int*>(high) + kSlotStride);
        const int4 a = *high;
        const int4 b = *low;
        *high = make_int4(0, 0, 0, 0);
        *low = make_int4(0, 0, 0, 0);
        sum[0] = 256LL * a.x + b.x;
        sum[1] = 256LL * a.y + b.y;
        sum[2] = 256LL * a.z + b.z;
        sum[3] = 256LL * a.w + b.w;
    }
}

// Copies the digits of a part from memory, and scales and sums of rows. Ends without a barrier of
// the block.
template <int kBlocks>
__device__ __forceinline__ void load_staged(const StagedSet& set, int rows, int k,
                                            const StagedPart& part, ExactHeader& h,
                                            uint8_t* staged) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int straight = min(part.count, part.length - part.first);
    if (threadIdx.x == 0) {
        barrier_expect(&h.staged, kBlocks * part.count * 8);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            uint8_t* to = staged + n * part.count * 8;
            const uint8_t* from = set.digits + (int64_t{n} * k + part.begin) * 8;
            bulk_load_kept(to, from + int64_t{part.first} * 8, straight * 8, &h.staged);
            if (part.count > straight) {
                bulk_load_kept(to + straight * 8, from, (part.count - straight) * 8, &h.staged);
            }
        }
        loads_sent(&h.staged);
    }
    if (warp < rows) {
        int sum = 0;
        for (int b = lane; b < k / kBlock; b += 32) {
            sum += set.sums[warp * (k / kBlock) + b];
        }
        sum = __reduce_add_sync(0xFFFFFFFFu, sum);
        if (lane == 0) {
            h.total[warp] = sum;
            h.most[warp] = __float_as_uint(set.most[warp]);
        }
    }
    barrier_wait(&h.staged, 0);
}

inline __host__ __device__ StagedSet staged_set(void* scratch, int index, int rows, int k) {
    auto* at = static_cast<uint8_t*>(scratch) + index * staged_set_bytes(rows, k);
    StagedSet set;
    set.most = reinterpret_cast<float*>(at);
    set.sums = reinterpret_cast<int32_t*>(at + 4 * kMostStagedRows);
    set.digits = at + 4 * kMostStagedRows * (1 + k / kBlock);
    return set;
}

/// Exact sums that thread blocks share, behind the sets of all jobs; cleared where rows are
/// rotated. Of each job shared_sums_of its column blocks, or all of them where k has ranges; each
/// [rows][128].
inline __host__ __device__ uint64_t* exact_sums(const LinearCall& call) {
    const int rows = call.rows < kMostStagedRows ? call.rows : kMostStagedRows;
    auto* at =
        static_cast<uint8_t*>(call.scratch) + call.job_count * staged_set_bytes(rows, call.k);
    return reinterpret_cast<uint64_t*>(at);
}

/// First unit of a place, of a list that is cut evenly.
TENON_HD constexpr int exact_cut(int list, int places, int place) {
    const int each = list / places;
    return each * place + (list - each * places) * place / places;
}

// Shared sums of a column block.
__device__ __forceinline__ uint64_t* shared_sums(const LinearCall& call, const ExactPlan& plan,
                                                 int block, int rows) {
    const Job& job = call.jobs[blockIdx.z];
    int index = block;
    if (plan.ranges == 1 && job.blocks > kMostPlaces) {  // by the place that finishes it
        const int length = plan.range[0].length;
        const int places = plan.range[0].places;
        const int list = job.blocks * length;
        index = static_cast<int>(int64_t{block} * length * places / list);
        while (exact_cut(list, places, index) > block * length) {
            --index;
        }
        while (exact_cut(list, places, index + 1) <= block * length) {
            ++index;
        }
    }
    uint64_t* sums = job.sums;
    if (plan.rotated) {
        sums = exact_sums(call);
        for (int j = 0; j < static_cast<int>(blockIdx.z); ++j) {
            const int blocks = call.jobs[j].blocks;
            index += plan.ranges == 1 ? shared_sums_of(blocks) : blocks;
        }
    }
    return sums + int64_t{index} * rows * kBlock;
}

// Sums that several thread blocks share, as kCountBit says: of a row's columns 4 i + j in place
// 32 j + i.
__device__ __forceinline__ void add_shared_sum(uint64_t* to, long long sum, int units) {
    const uint64_t value = static_cast<uint64_t>(sum) + (static_cast<uint64_t>(units) << kCountBit);
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ __forceinline__ void load_shared_sums(const uint64_t* from, uint64_t (&v)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                     : "=l"(v[j])
                     : "l"(from + 32 * j)
                     : "memory");
    }
}
__device__ __forceinline__ long long shared_sum(uint64_t v) {
    return static_cast<long long>(v << (64 - kCountBit)) >> (64 - kCountBit);
}
__device__ __forceinline__ bool are_in(const uint64_t (&v)[4], int units) {
    bool all = true;
#pragma unroll
    for (const uint64_t one : v) {
        all = all && static_cast<int>((one - static_cast<uint64_t>(shared_sum(one))) >>
                                      kCountBit) == units;
    }
    return all;
}

// Exact sums of a row become outputs: four columns a lane.
__device__ __forceinline__ void finish_exact(const Job& job, float most, int total, int64_t y_row,
                                             int column, uint2 scale, const long long (&sum)[4]) {
    const long long shift = 905216LL * total;  // the weight times 2^18 is 1774 S - 905216
    const float unit = most * (1.0f / kFixedMax) * 0x1p-18f * 0x1p-7f;
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        v[j] = __fmul_rn(static_cast<float>(1774LL * sum[j] - shift), unit);
    }
    rotate128(v, static_cast<int>(threadIdx.x % 32));
    scale_by(scale, v);
    if (job.bias != nullptr) {
        const float4 b = *reinterpret_cast<const float4*>(job.bias + column);
        v[0] += b.x;
        v[1] += b.y;
        v[2] += b.z;
        v[3] += b.w;
    }
    store_y(job.y, job.y_element, y_row * job.y_stride + column, v, job.out - column);
}

// After sums of `units` units of a column block lie in slots: adds those of each row and finishes
// it, or hands them to who does. A warp takes row `first` modulo sixteen and so on; the others are
// ahead meanwhile, in the next column block.
template <int kBlocks>
__device__ __forceinline__ void finish_block(const LinearCall& call, const ExactPlan& plan,
                                             ExactHeader& h, uint8_t* slots, int slot,
                                             uint32_t slot_parity, int first, int block, int units,
                                             bool finishes, int row0, int rows) {
    const Job& job = call.jobs[blockIdx.z];
    const int units_k = call.k / kUnit;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int row = first & (kExactWarps - 1); row < rows; row += kExactWarps) {
        uint64_t* mine = nullptr;
        uint64_t others[4];
        if (units < units_k) {
            mine = shared_sums(call, plan, block, rows) + row * kBlock + lane;
            if (finishes) {
                load_shared_sums(mine, others);
            }
        }
        const uint2 scale = *reinterpret_cast<const uint2*>(job.svh + block * kBlock + 4 * lane);
        barrier_wait(h.merged + slot, slot_parity);
        long long sum[4];
        take_sums<kBlocks>(slots, rows, row, sum);
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(h.taken + slot);
        }
        if (units < units_k) {
            if (!finishes) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    add_shared_sum(mine + 32 * j, sum[j], units);
                }
                continue;
            }
            // As a warp, so that what follows stays uniform for the compiler.
            while (!__all_sync(0xFFFFFFFFu, are_in(others, units_k - units))) {
                load_shared_sums(mine, others);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                sum[j] += shared_sum(others[j]);
                mine[32 * j] = 0;  // for the next launch
            }
        }
        finish_exact(job, __uint_as_float(h.most[row]), h.total[row], row0 + row,
                     block * kBlock + 4 * lane, scale, sum);
    }
}

// Grid: (plan.places, 1, jobs).
template <int kTwiceK, int kBlocks>
__global__ void __launch_bounds__(kBlocks == 1 ? kExactBound : kExactThreads, 1)
    exact_kernel(const __grid_constant__ LinearCall call, const __grid_constant__ ExactPlan plan,
                 int row0, int rows) {
    extern __shared__ __align__(128) uint8_t smem[];
    constexpr int kUnitBytes = unit_words(kTwiceK) * 4;
    auto& h = *reinterpret_cast<ExactHeader*>(smem);
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);  // uniform for the compiler
    const int lane = threadIdx.x % 32;
    const Job& job = call.jobs[blockIdx.z];
    const int units_k = call.k / kUnit;
    // Who waits for sums waits for thread blocks of lower numbers, which have started before.
    int place = plan.places - 1 - static_cast<int>(blockIdx.x);
    int r = 0;
    while (place >= plan.range[r].places) {
        place -= plan.range[r++].places;
    }
    const ExactRange& range = plan.range[r];
    const int length = range.length;
    const int first = exact_cut(job.blocks * length, range.places, place);
    const int count = exact_cut(job.blocks * length, range.places, place + 1) - first;
    const ExactLayout layout = exact_layout(kTwiceK, kBlocks, rows, count, length, plan);
    int block = first / length;
    int unit = first - block * length;  // of the range, in this column block
    const bool whole = count >= length;
    const StagedPart part = {range.begin * kUnit, length * kUnit, whole ? 0 : unit * kUnit,
                             min(count, length) * kUnit};
    const int half = warp & 1;
    const int split = warp >> 1;

    // Units are fetched in the order in which they lie: every eighth pair.
    const uint8_t* next =
        reinterpret_cast<const uint8_t*>(job.words) +
        ((int64_t{block} * units_k + range.begin + unit + split) * 2 + half) * kUnitBytes;
    const int64_t jump = int64_t{2} * (units_k - length) * kUnitBytes;  // to the next column block
    int next_unit = unit + split;
    uint8_t* ring = smem + layout.ring + warp * plan.stages * kUnitBytes;
    uint64_t* full = h.full + warp * kMostStages;
    const bool leader = elect_lane();
    const uint64_t policy = read_once_policy();
    if (leader) {
#pragma unroll 1
        for (int i = 0; i < plan.stages; ++i) {
            barrier_init(full + i, 1);
        }
        if (warp == 0) {
            barrier_init(&h.staged, 1);
            for (int i = 0; i < 2; ++i) {
                barrier_init(h.merged + i, kExactWarps);
                barrier_init(h.taken + i, rows);
            }
        }
        fence_barrier_init();
    }
    __syncwarp();
    // `zero` depends on what must have happened before.
    const auto fetch = [&](int stage, uint32_t zero) {
        if (next_unit >= length) {
            next_unit -= length;
            next += jump;
        }
        next_unit += kExactSplits;
        if (leader) {
            barrier_expect(full + stage, kUnitBytes);
            bulk_load(ring + stage * kUnitBytes, next, kUnitBytes + zero, full + stage, policy);
            loads_sent(full + stage);
        }
        next += 2 * kExactSplits * kUnitBytes;
    };
    // More in flight would delay this kernel's rows, and shared sums of the one before.
    if (split < count) {
        fetch(0, 0);
    }
    if (threadIdx.x < kRowsExact) {
        h.most[threadIdx.x] = 0;
        h.total[threadIdx.x] = 0;
    }
    if constexpr (kBlocks > 1) {
        for (int i = threadIdx.x; i < plan.slots * layout.slot_bytes / 4; i += kExactThreads) {
            reinterpret_cast<int*>(smem + layout.slots)[i] = 0;
        }
    }
    __syncthreads();
    wait_for_previous_kernel();

    uint8_t* staged = smem + layout.staged;
    if (kBlocks > 1 || plan.rotated) {
        load_staged<kBlocks>(
            staged_set(call.scratch, blockIdx.z, min(call.rows, kMostStagedRows), call.k), rows,
            call.k, part, h, staged);
    } else {
        stage_exact({job.x, job.x_stride, call.x_element, job.suh, row0, call.k, call.in}, rows,
                    part, h, staged);
    }
#pragma unroll 1
    for (int i = 1; i < plan.stages && split + i * kExactSplits < count; ++i) {
        fetch(i, 0);
    }
    __syncthreads();
    // Not before: the next kernel's weights would delay this one's rows.
    let_next_kernel_start();

    const int staged_rows = plan.rotated ? 4 : rows;
    const int staged_tile = tile_bytes(plan.rotated, rows);
    const int staged_block = part.count / 16 * staged_tile;
    int stage = 0;
    uint32_t parity = 0;
    int slot = 0;
    uint32_t slot_parity = 0;
    int turn = kExactWarps - 1;  // the warp that finishes the first row; the last have fewer units
    int at = split;              // units are counted from the thread block's first
    int begin = 0;
#pragma unroll 1
    for (; begin < count; ++block) {
        const int end = min(count, begin + length - unit);
        int sums[4][kBlocks][4] = {};
        const uint8_t* digits =
            staged + ((at + (whole ? unit - begin : 0)) * 4 + lane % 4) * staged_tile;
#pragma unroll 1
        for (; at < end; at += kExactSplits) {
            barrier_wait(full + stage, parity);
            uint32_t runs[4][run_registers(kTwiceK)];
            load_runs<kTwiceK>(reinterpret_cast<const uint32_t*>(ring + stage * kUnitBytes), lane,
                               runs);
            __syncwarp();
            if (at + plan.stages * kExactSplits < count) {
                fetch(stage, runs_here<kTwiceK>(runs) & call.zero);
            }
            if (++stage == plan.stages) {
                stage = 0;
                parity ^= 1;
            }
            uint32_t x[kBlocks][4];
#pragma unroll
            for (int n = 0; n < kBlocks; ++n) {
                load_digits(digits + n * staged_block, staged_rows, x[n]);
            }
            digits += kExactSplits * (kUnit / 16) * staged_tile;
            exact_unit<kTwiceK, kBlocks>(runs, x, sums);
        }
        uint8_t* slots = smem + layout.slots + slot * layout.slot_bytes;
        barrier_wait(h.taken + slot, slot_parity ^ 1);
        put_sums<kBlocks>(sums, rows, slots, split, half);
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(h.merged + slot);
        }
        finish_block<kBlocks>(call, plan, h, slots, slot, slot_parity, (turn - warp), block,
                              end - begin, r == 0 && unit == 0, row0, rows);
        turn -= rows;
        if (++slot == plan.slots) {
            slot = 0;
            slot_parity ^= 1;
        }
        begin = end;
        unit = 0;
    }
}

}  // namespace tenon::exl3::cuda
