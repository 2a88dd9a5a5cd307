// SPDX-License-Identifier: MIT
// y = x W^T for few rows and codebook mul1, in exact integers.
//
// Rotated rows become 16-bit fixed point with one scale a row over all of k, two signed 8-bit
// digits each. A weight's four product bytes times a digit are what one lane feeds to an integer
// tensor core, so the sum over k of a row and column is an exact integer: it does not matter how k
// is cut or in which order parts are added. Thread blocks, clusters and warps may therefore share
// the work as the machine likes, and a row's bits depend on the row alone.
//
// A cluster walks over a few column blocks while its rings of packed weights stay full; its blocks
// share the k of each. The warps of a block take its units in turn.
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
constexpr int kExactSplits = kExactWarps / 2;  ///< warps that share 64 columns
constexpr int kMostStages = 4;
constexpr int kMostCluster = 8;
constexpr int kSlotStride = kBlock + 4;

/// How a launch shares its work; chosen by the host for speed only.
struct ExactPlan {
    int cluster = 1;       ///< blocks that share the k of a column block
    int each = 1;          ///< column blocks of a cluster, one after the other
    int clusters = 1;      ///< of a job
    int stages = 2;        ///< units that a warp keeps in flight
    bool rotated = false;  ///< rows come from scratch; always with more than one n8 block
};

struct ExactHeader {
    uint64_t full[kExactWarps * kMostStages];
    uint64_t staged;
    unsigned int most[kRowsExact];  // bits of max |x|, by row
    int total[kRowsExact];          // sum of fixed-point values, by row
};

/// Staged digits of 16 channels and one n8 block: 16 bytes for each of its columns, two a row.
TENON_HD constexpr int tile_bytes(bool rotated, int rows) {
    return rotated ? 128 : 32 * rows;
}

struct ExactLayout {
    int ring, staged, slots, slot_bytes, sums, sum_bytes, total;
};

/// Shared memory, in bytes. `blocks` n8 blocks carry `rows` rows.
TENON_HD constexpr ExactLayout exact_layout(int twice_k, int blocks, int rows, int k,
                                            const ExactPlan& p) {
    ExactLayout l{};
    int at = (static_cast<int>(sizeof(ExactHeader)) + 127) / 128 * 128;
    l.ring = at;
    at += kExactWarps * p.stages * unit_words(twice_k) * 4;
    l.staged = at;
    const int units = (k / kUnit + p.cluster - 1) / p.cluster;
    at += blocks * units * (kUnit / 16) * tile_bytes(p.rotated, rows);
    l.slots = at;  // one n8 block: int2 [split][row][column]; more: int [2 rows][column]
    l.slot_bytes = blocks == 1 ? kExactSplits * rows * kSlotStride * 8 : 2 * rows * kSlotStride * 4;
    at += (p.each > 1 ? 2 : 1) * l.slot_bytes;
    l.sums = at;  // int64 [owned rows][column], of two column blocks if there are more
    l.sum_bytes = p.cluster > 1 ? (rows + p.cluster - 1) / p.cluster * kBlock * 8 : 0;
    at += (p.each > 1 ? 2 : 1) * l.sum_bytes;
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

// Rotates rows and writes the digits of channels [k0, k0 + count). The largest value of a row is
// that of all of k, so every block of a cluster rotates whole rows. Ends without a barrier.
__device__ __forceinline__ void stage_exact(const RowSource& s, int rows, int k0, int count,
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
        const int at = (task - row * blocks) * kBlock + 16 * (lane % 8) - k0;
        uint4 high, low;
        const int sum = sum_of_eight(digits16(v, __uint_as_float(h.most[row]), &high, &low));
        if (task < tasks) {
            if (at >= 0 && at < count) {
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

// Copies staged channels [k0, k0 + count) from memory, and scales and sums of rows. Ends without a
// barrier of the block.
template <int kBlocks>
__device__ __forceinline__ void load_staged(const StagedSet& set, int rows, int k, int k0,
                                            int count, ExactHeader& h, uint8_t* staged) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int bytes = count * 8;
    if (threadIdx.x == 0) {
        barrier_expect(&h.staged, kBlocks * bytes);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            bulk_load(staged + n * bytes, set.digits + (int64_t{n} * k + k0) * 8, bytes, &h.staged);
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
    set.sums = reinterpret_cast<int32_t*>(at + 64);
    set.digits = at + 64 + 64 * (k / kBlock);
    return set;
}

// Exact sums of a row become outputs: four columns a lane.
__device__ __forceinline__ void finish_exact(const Job& job, const ExactHeader& h, int row,
                                             int64_t y_row, int column, const long long (&sum)[4]) {
    const long long shift = 905216LL * h.total[row];  // the weight times 2^18 is 1774 S - 905216
    const float unit = __uint_as_float(h.most[row]) * (1.0f / kFixedMax) * 0x1p-18f * 0x1p-7f;
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        v[j] = __fmul_rn(static_cast<float>(1774LL * sum[j] - shift), unit);
    }
    rotate128(v, static_cast<int>(threadIdx.x % 32));
    scale_by(job.svh + column, v);
    if (job.bias != nullptr) {
        const float4 b = *reinterpret_cast<const float4*>(job.bias + column);
        v[0] += b.x;
        v[1] += b.y;
        v[2] += b.z;
        v[3] += b.w;
    }
    store_y(job.y, job.y_element, y_row * job.y_stride + column, v, job.out - column);
}

template <int kTwiceK, int kBlocks>
__global__ void __launch_bounds__(kExactThreads, kBlocks == 1 ? 2 : 1)
    exact_kernel(const __grid_constant__ LinearCall call, const __grid_constant__ ExactPlan plan,
                 int row0, int rows) {
    extern __shared__ __align__(128) uint8_t smem[];
    constexpr int kUnitBytes = unit_words(kTwiceK) * 4;
    auto& h = *reinterpret_cast<ExactHeader*>(smem);
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);  // uniform for the compiler
    const int lane = threadIdx.x % 32;
    const Job& job = call.jobs[blockIdx.z];
    const int block0 = static_cast<int>(blockIdx.y) * plan.each;
    const int each = min(plan.each, job.blocks - block0);
    if (each <= 0) {
        return;  // the whole cluster
    }
    const ExactLayout layout = exact_layout(kTwiceK, kBlocks, rows, call.k, plan);
    const int cluster = plan.cluster;
    const int rank = static_cast<int>(blockIdx.x);
    const int units_k = call.k / kUnit;
    const int begin = units_k * rank / cluster;  // of the k of a column block
    const int mine = units_k * (rank + 1) / cluster - begin;
    const int half = warp & 1;
    const int split = warp >> 1;

    // Units are fetched in the order in which they lie: every eighth pair of a column block.
    int at = split;
    int fetch_at = split;
    int left = each;  // column blocks with units to fetch
    const int step = mine;
    int fetch_stage = 0;
    const uint8_t* next = reinterpret_cast<const uint8_t*>(job.words) +
                          ((int64_t{block0} * units_k + begin + split) * 2 + half) * kUnitBytes;
    uint8_t* ring = smem + layout.ring + warp * plan.stages * kUnitBytes;
    uint64_t* full = h.full + warp * kMostStages;
    const bool leader = elect_lane();
    const uint64_t policy = read_once_policy();
    if (leader) {
#pragma unroll 1
        for (int i = 0; i < plan.stages; ++i) {
            barrier_init(full + i, 1);
        }
        if (plan.rotated && warp == 0) {
            barrier_init(&h.staged, 1);
        }
        fence_barrier_init();
    }
    __syncwarp();
    const auto fetch = [&]() {
        if (leader) {
            barrier_expect(full + fetch_stage, kUnitBytes);
            bulk_load(ring + fetch_stage * kUnitBytes, next, kUnitBytes, full + fetch_stage,
                      policy);
            loads_sent(full + fetch_stage);
        }
        fetch_stage = fetch_stage + 1 == plan.stages ? 0 : fetch_stage + 1;
        fetch_at += kExactSplits;
        next += 2 * kExactSplits * kUnitBytes;
        if (fetch_at >= step) {  // to this warp's first unit of the next column block
            next += int64_t{2} * (units_k - fetch_at + split) * kUnitBytes;
            fetch_at = split;
            --left;
        }
    };
    left = split < mine ? left : 0;
#pragma unroll 1
    for (int i = 0; i < plan.stages && left > 0; ++i) {
        fetch();
    }
    if (threadIdx.x < kRowsExact) {
        h.most[threadIdx.x] = 0;
        h.total[threadIdx.x] = 0;
    }
    if constexpr (kBlocks > 1) {
        for (int i = threadIdx.x; i < (layout.sums - layout.slots) / 4; i += kExactThreads) {
            reinterpret_cast<int*>(smem + layout.slots)[i] = 0;
        }
    }
    for (int i = threadIdx.x; i < (layout.total - layout.sums) / 8; i += kExactThreads) {
        reinterpret_cast<long long*>(smem + layout.sums)[i] = 0;
    }
    __syncthreads();
    cluster_arrive(cluster);
    wait_for_previous_kernel();

    uint8_t* staged = smem + layout.staged;
    if (kBlocks > 1 || plan.rotated) {
        load_staged<kBlocks>(
            staged_set(call.scratch, blockIdx.z, min(call.rows, kMostStagedRows), call.k), rows,
            call.k, begin * kUnit, mine * kUnit, h, staged);
    } else {
        stage_exact({job.x, job.x_stride, call.x_element, job.suh, row0, call.k, call.in}, rows,
                    begin * kUnit, mine * kUnit, h, staged);
    }
    __syncthreads();
    // Not before: the next kernel's weights would delay this one's rows.
    let_next_kernel_start();

    const int staged_rows = plan.rotated ? 4 : rows;
    const int staged_tile = tile_bytes(plan.rotated, rows);
    int stage = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int item = 0; item < each; ++item) {
        int sums[4][kBlocks][4] = {};
        const uint8_t* digits = staged + (split * 4 + lane % 4) * staged_tile;
#pragma unroll 1
        for (at = split; at < mine; at += kExactSplits) {
            barrier_wait(full + stage, parity);
            uint32_t runs[4][run_registers(kTwiceK)];
            load_runs<kTwiceK>(reinterpret_cast<const uint32_t*>(ring + stage * kUnitBytes), lane,
                               runs);
            __syncwarp();
            if (left > 0) {
                fetch();
            }
            if (++stage == plan.stages) {
                stage = 0;
                parity ^= 1;
            }
            uint32_t x[kBlocks][4];
#pragma unroll
            for (int n = 0; n < kBlocks; ++n) {
                load_digits(digits + n * mine * (kUnit / 16) * staged_tile, staged_rows, x[n]);
            }
            digits += kExactSplits * (kUnit / 16) * staged_tile;
            exact_unit<kTwiceK, kBlocks>(runs, x, sums);
        }
        uint8_t* slots = smem + layout.slots + (item & 1) * layout.slot_bytes;
        put_sums<kBlocks>(sums, rows, slots, split, half);
        __syncthreads();
        // Slots and parts of this column block are written again two column blocks later, behind a
        // barrier that comes after their last use here.
        if (cluster == 1) {
            for (int row = warp; row < rows; row += kExactWarps) {
                long long sum[4];
                take_sums<kBlocks>(slots, rows, row, sum);
                finish_exact(job, h, row, row0 + row, (block0 + item) * kBlock + 4 * lane, sum);
            }
            continue;
        }
        if (item == 0) {
            cluster_wait(cluster);  // all blocks have cleared their parts
        }
        auto* parts =
            reinterpret_cast<long long*>(smem + layout.sums + (item & 1) * layout.sum_bytes);
        for (int row = warp; row < rows; row += kExactWarps) {
            long long sum[4];
            take_sums<kBlocks>(slots, rows, row, sum);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                add_cluster(parts + row / cluster * kBlock + 4 * lane + j, row % cluster, sum[j]);
            }
        }
        cluster_sync(cluster);
        for (int row = rank + warp * cluster; row < rows; row += kExactWarps * cluster) {
            long long sum[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                long long* part = parts + row / cluster * kBlock + 4 * lane + j;
                sum[j] = *part;
                *part = 0;
            }
            finish_exact(job, h, row, row0 + row, (block0 + item) * kBlock + 4 * lane, sum);
        }
    }
}

}  // namespace tenon::exl3::cuda
