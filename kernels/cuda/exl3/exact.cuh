// SPDX-License-Identifier: MIT
// y = x W^T for few rows and codebook mul1, in exact integers.
//
// Rotated rows become 16-bit fixed point with one scale a row over all of k, two signed 8-bit
// digits each. A weight's four product bytes times a digit are what one lane feeds to an integer
// tensor core, so the sum over k of a row and column is an exact integer: it does not matter how k
// is cut or in which order parts are added. Thread blocks, clusters and warps may therefore share
// the work as the machine likes, and a row's bits depend on the row alone.
//
// A cluster of `slices` blocks works on columns of one job, k cut between its blocks; it walks over
// its share of the job's column blocks while its rings of packed weights stay full.
#pragma once

#include <cuda_bf16.h>

#include <utility>

#include "async.cuh"
#include "decode.cuh"
#include "params.h"
#include "rotate.cuh"
#include "smem.h"
#include "tensor_core.cuh"

namespace tenon::exl3::cuda {

constexpr int kExactWarps = 16;
constexpr int kExactThreads = 32 * kExactWarps;
constexpr int kMostStages = 4;
constexpr int kSlotStride = kBlock + 4;

/// Whether two thread blocks share a multiprocessor: while one waits or starts, the other decodes.
/// Registers allow it for few rows and rates; higher rates wait for memory anyway.
TENON_HD constexpr bool exact_pairs(int twice_k, int n_blocks) {
    return n_blocks == 1 && twice_k <= 8;
}

/// How a launch shares its work; chosen by the host for speed only.
struct ExactPlan {
    int slices = 1;    ///< blocks of a cluster, each with its part of k
    int splits = 8;    ///< warps that share 64 columns: 8, or 4 for two column blocks at a time
    int stages = 4;    ///< units that a warp keeps in flight
    int clusters = 1;  ///< of a job
    int slice = 0;     ///< longest part of k
    bool by_parts = false;  ///< each block of a cluster rotates its part of a row
};

struct ExactHeader {
    uint64_t full[kExactWarps * kMostStages];
    uint64_t staged;
    unsigned int most[kRowsExact];  // bits of max |x|, by row
    int total[kRowsExact];          // sum of fixed-point values of this block's part of k, by row
    int x_row[kRowsExact];
    int rows;
    int tile_bytes;
};

/// Staged digits of 16 channels and one n8 block: 16 bytes for each of its columns, two a row.
TENON_HD constexpr int tile_bytes(int blocks, int rows) {
    return blocks == 1 ? 32 * rows : 128;
}

struct ExactLayout {
    int ring, staged, slots, parts, total;
};

/// Shared memory, in bytes. `blocks` n8 blocks carry `rows` rows.
TENON_HD constexpr ExactLayout exact_layout(int twice_k, int blocks, int rows, const ExactPlan& p) {
    ExactLayout l{};
    int at = (static_cast<int>(sizeof(ExactHeader)) + 127) / 128 * 128;
    l.ring = at;
    at += kExactWarps * p.stages * unit_words(twice_k) * 4;
    l.staged = at;
    at += blocks * (p.slice / 16) * tile_bytes(blocks, rows);
    l.slots = at;  // int [8 / splits column blocks][2 rows][128]
    at += 8 / p.splits * 2 * rows * kSlotStride * 4;
    l.parts = at;  // int64 [8 / splits column blocks][owned rows][slices][128]
    at += 8 / p.splits * ((rows + p.slices - 1) / p.slices) * p.slices * kBlock * 8;
    l.total = at;
    return l;
}

// Four products of a step: rows kRow and kRow + 1 of the lane's 16, columns g and g + 8.
template <int kTwiceK, int kBlocks, int kStep>
__device__ __forceinline__ void exact_step(const uint32_t (&runs)[4][run_registers(kTwiceK)],
                                           const uint32_t (&x)[kBlocks][4],
                                           int (&sums)[4][kBlocks][4]) {
    constexpr int kFirst = 8 * (kStep >> 1) + 2 * (kStep & 1);
    constexpr int kRow = run_row(kFirst);
    uint32_t b[kBlocks][2];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
        b[n][0] = __byte_perm(x[n][kRow / 4], 0, 0x1111 * (kRow % 4));
        b[n][1] = __byte_perm(x[n][kRow / 4], 0, 0x1111 * (kRow % 4 + 1));
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        const uint32_t a[4] = {raw_weight<Code::mul1>(window<kTwiceK, kFirst>(runs[t])),
                               raw_weight<Code::mul1>(window<kTwiceK, kFirst + 4>(runs[t])),
                               raw_weight<Code::mul1>(window<kTwiceK, kFirst + 1>(runs[t])),
                               raw_weight<Code::mul1>(window<kTwiceK, kFirst + 5>(runs[t]))};
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            multiply(sums[t][n], a, b[n][0], b[n][1]);
        }
    }
}

template <int kTwiceK, int kBlocks, int... kSteps>
__device__ __forceinline__ void exact_steps(const uint32_t (&runs)[4][run_registers(kTwiceK)],
                                            const uint32_t (&x)[kBlocks][4],
                                            int (&sums)[4][kBlocks][4],
                                            std::integer_sequence<int, kSteps...>) {
    (exact_step<kTwiceK, kBlocks, kSteps>(runs, x, sums), ...);
}

/// Rows of x that a block stages.
struct RowSource {
    const void* x;
    int64_t stride;
    Element element;
    const uint16_t* suh;
    int k, in;
};

/// Tasks of one row and 128 channels whose loads are in flight together.
constexpr int kTaskBatch = 4;

// Task t is row t / blocks, channels k0 + t % blocks * 128, four of them a lane; scaled.
__device__ __forceinline__ void load_task(const RowSource& s, const ExactHeader& h, int k0,
                                          int blocks, int task, float (&v)[4]) {
    const int at = k0 + task % blocks * kBlock + 4 * (threadIdx.x % 32);
    load_x4(s.x, s.element, h.x_row[task / blocks] * s.stride + at, s.in - at, v);
    scale_by(s.suh + at, v);
}

// Four values as fixed point, two signed digits each: a = 256 high + low. Returns the sum of a.
__device__ __forceinline__ int digits_of(const float (&v)[4], float most, uint32_t* high,
                                         uint32_t* low) {
    // Smaller rows are zero in any output format; NaN and infinity reach y through the scale.
    const float inverse = most > 1e-30f ? __fdiv_rn(kFixedMax, most) : 0.0f;
    int sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int a = __float2int_rn(v[j] * inverse);
        const int top = (a + 128) >> 8;
        *high |= (static_cast<uint32_t>(top) & 0xFF) << (8 * j);
        *low |= (static_cast<uint32_t>(a - 256 * top) & 0xFF) << (8 * j);
        sum += a;
    }
    return sum;
}

// Writes four rotated values of a row at channel `at` of a part of k, as two digits each, and adds
// to the row's sum. All lanes of a warp take part, with one row.
__device__ __forceinline__ void write_digits(float4 v, int row, int at, int slice, ExactHeader& h,
                                             uint8_t* staged) {
    const float values[4] = {v.x, v.y, v.z, v.w};
    uint32_t high = 0, low = 0;
    int sum = digits_of(values, __uint_as_float(h.most[row]), &high, &low);
    uint8_t* tile = staged + ((row / 4) * (slice / 16) + at / 16) * h.tile_bytes + at % 16;
    *reinterpret_cast<uint32_t*>(tile + (2 * (row % 4)) * 16) = high;
    *reinterpret_cast<uint32_t*>(tile + (2 * (row % 4) + 1) * 16) = low;
    sum = __reduce_add_sync(0xFFFFFFFFu, sum);
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&h.total[row], sum);
    }
}

__device__ __forceinline__ unsigned int largest(const float (&v)[4]) {
    unsigned int most = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        most = max(most, __float_as_uint(v[j]) & 0x7FFFFFFFu);
    }
    return __reduce_max_sync(0xFFFFFFFFu, most);
}

// Rotates rows and writes the digits of [k0, k0 + slice). The largest value of a row is that of all
// of k: few rows are rotated by every block of a cluster, more by parts, whose maxima are
// exchanged. Ends with a barrier of the block.
__device__ __forceinline__ void stage_exact(const RowSource& s, int k0, int slice, int slices,
                                            bool by_parts, ExactHeader& h, uint8_t* staged) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int all = by_parts ? slice : s.k;
    const int blocks = all / kBlock;
    const int tasks = h.rows * blocks;
    const int from = by_parts ? k0 : 0;
    if (tasks <= kTaskBatch * kExactWarps) {  // rotated once, kept in registers
        float v[kTaskBatch][4];
#pragma unroll
        for (int i = 0; i < kTaskBatch; ++i) {
            const int task = warp + i * kExactWarps;
            if (task < tasks) {
                load_task(s, h, from, blocks, task, v[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kTaskBatch; ++i) {
            const int task = warp + i * kExactWarps;
            if (task < tasks) {
                rotate128(v[i], lane);
                const unsigned int most = largest(v[i]);
                if (lane < (by_parts ? slices : 1)) {
                    max_cluster(&h.most[task / blocks], lane, by_parts ? slices : 1, most);
                }
            }
        }
        cluster_sync(by_parts ? slices : 1);
#pragma unroll
        for (int i = 0; i < kTaskBatch; ++i) {
            const int task = warp + i * kExactWarps;
            const int at = from + task % blocks * kBlock - k0;
            if (task < tasks && at >= 0 && at < slice) {
                write_digits(make_float4(v[i][0], v[i][1], v[i][2], v[i][3]), task / blocks,
                             at + 4 * lane, slice, h, staged);
            }
        }
    } else {  // rotated twice
#pragma unroll 1
        for (int task = warp; task < tasks; task += kExactWarps) {
            float v[4];
            load_task(s, h, from, blocks, task, v);
            rotate128(v, lane);
            const unsigned int most = largest(v);
            if (lane < (by_parts ? slices : 1)) {
                max_cluster(&h.most[task / blocks], lane, by_parts ? slices : 1, most);
            }
        }
        cluster_sync(by_parts ? slices : 1);
        const int mine = slice / kBlock;
#pragma unroll 1
        for (int task = warp; task < h.rows * mine; task += kExactWarps) {
            float v[4];
            load_task(s, h, k0, mine, task, v);
            rotate128(v, lane);
            write_digits(make_float4(v[0], v[1], v[2], v[3]), task / mine,
                         task % mine * kBlock + 4 * lane, slice, h, staged);
        }
    }
    __syncthreads();
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

// Adds a warp's sums to those of the other warps that share its columns.
template <int kBlocks>
__device__ __forceinline__ void add_sums(const int (&sums)[4][kBlocks][4], int rows, int* slot,
                                         int half) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
        if (4 * n + lane % 4 < rows) {
#pragma unroll
            for (int t = 0; t < 4; ++t) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    atomicAdd(slot + (8 * n + 2 * (lane % 4) + (i & 1)) * kSlotStride + 64 * half +
                                  16 * t + lane / 4 + 8 * (i >> 1),
                              sums[t][n][i]);
                }
            }
        }
    }
}

// Sum over a block's part of k of a (1774 S - 905216), exact: the weight times 2^18. The slot is
// cleared for the next columns.
__device__ __forceinline__ long long take_sum(int* slots, int row, int column, int total) {
    int* slot = slots + 2 * row * kSlotStride + column;
    const int high = slot[0];
    const int low = slot[kSlotStride];
    slot[0] = 0;
    slot[kSlotStride] = 0;
    return 1774LL * (256LL * high + low) - 905216LL * total;
}

// Copies staged rows of [k0, k0 + slice) from memory. Ends with a barrier of the block.
template <int kBlocks>
__device__ __forceinline__ void load_staged(const StagedSet& set, int k, int k0, int slice,
                                            ExactHeader& h, uint8_t* staged) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int bytes = slice / 16 * 128;
    if (threadIdx.x == 0) {
        barrier_expect(&h.staged, kBlocks * bytes);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            bulk_load(staged + n * bytes, set.digits + (int64_t{n} * k + k0) / 16 * 128, bytes,
                      &h.staged);
        }
    }
    if (warp < h.rows) {
        int sum = 0;
        for (int b = lane; b < slice / kBlock; b += 32) {
            sum += set.sums[warp * (k / kBlock) + k0 / kBlock + b];
        }
        sum = __reduce_add_sync(0xFFFFFFFFu, sum);
        if (lane == 0) {
            h.total[warp] = sum;
            h.most[warp] = __float_as_uint(set.most[warp]);
        }
    }
    barrier_wait(&h.staged, 0);
    __syncthreads();
}

inline __host__ __device__ StagedSet staged_set(void* scratch, int index, int rows, int k) {
    auto* at = static_cast<uint8_t*>(scratch) + index * staged_set_bytes(rows, k);
    StagedSet set;
    set.most = reinterpret_cast<float*>(at);
    set.sums = reinterpret_cast<int32_t*>(at + 64);
    set.digits = at + 64 + 64 * (k / kBlock);
    return set;
}

template <int kTwiceK, int kBlocks>
__global__ void __launch_bounds__(kExactThreads, exact_pairs(kTwiceK, kBlocks) ? 2 : 1)
    exact_kernel(const __grid_constant__ LinearCall call, const ExactPlan plan, int row0) {
    extern __shared__ __align__(128) uint8_t smem[];
    constexpr int kUnitBytes = unit_words(kTwiceK) * 4;
    auto& h = *reinterpret_cast<ExactHeader*>(smem);
    const int rows = min(call.rows - row0, kBlocks * 4);
    const ExactLayout layout = exact_layout(kTwiceK, kBlocks, rows, plan);
    const int slices = plan.slices;
    const int rank = blockIdx.x;
    const int k0 = static_cast<int>(slice_begin(call.k, slices, rank));
    const int slice = static_cast<int>(slice_begin(call.k, slices, rank + 1)) - k0;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int split = warp % plan.splits;
    const int columns = warp / plan.splits;  // 64-column part that the warp works on
    const int wide = 8 / plan.splits;        // column blocks of an item
    const Job& job = call.jobs[blockIdx.z];
    const int blocks_n = job.blocks;
    const int items_all = (blocks_n + wide - 1) / wide;
    const int first = blockIdx.y;
    const int items =
        first < items_all ? (items_all - first + plan.clusters - 1) / plan.clusters : 0;
    if (items == 0) {
        return;  // the whole cluster
    }

    if (threadIdx.x < kRowsExact) {
        h.most[threadIdx.x] = 0;
        h.total[threadIdx.x] = 0;
        h.x_row[threadIdx.x] = row0 + threadIdx.x;
    }
    if (threadIdx.x == 0) {
        h.rows = rows;
        h.tile_bytes = tile_bytes(kBlocks, rows);
    }
    uint64_t* full = h.full + warp * kMostStages;
    if (lane == 0) {
        for (int i = 0; i < plan.stages; ++i) {
            barrier_init(full + i, 1);
        }
        if (warp == 0) {
            barrier_init(&h.staged, 1);
        }
        fence_barrier_init();
    }
    auto* slots = reinterpret_cast<int*>(smem + layout.slots);
    for (int i = threadIdx.x; i < wide * 2 * rows * kSlotStride; i += kExactThreads) {
        slots[i] = 0;
    }
    __syncthreads();
    cluster_arrive(slices);  // headers are set

    const int groups = slice / kUnit;
    const int mine = split < groups ? (groups - split + plan.splits - 1) / plan.splits : 0;
    const int units_k = call.k / kUnit;
    uint8_t* ring = smem + layout.ring + warp * plan.stages * kUnitBytes;
    // What lane 0 fetches next: `next`, `left` units of item `fetch_item`.
    const int64_t step = int64_t{plan.splits} * 2 * kUnitBytes;
    int fetch_item = 0, left = 0, fetch_stage = 0;
    const uint8_t* next = nullptr;
    const uint64_t policy = read_once_policy();
    const auto open_item = [&]() {
        const int block = (first + fetch_item * plan.clusters) * wide + columns / 2;
        left = fetch_item < items && block < blocks_n ? mine : 0;
        next = reinterpret_cast<const uint8_t*>(job.words) +
               unit_index(units_k, k0 / kUnit + split, 2 * block + columns % 2) * kUnitBytes;
    };
    const auto fetch = [&]() {
        barrier_expect(full + fetch_stage, kUnitBytes);
        bulk_load(ring + fetch_stage * kUnitBytes, next, kUnitBytes, full + fetch_stage, policy);
        next += step;
        fetch_stage = fetch_stage + 1 == plan.stages ? 0 : fetch_stage + 1;
        if (--left == 0) {
            ++fetch_item;
            open_item();
        }
    };
    open_item();
    if (lane == 0) {
        for (int i = 0; i < plan.stages && left > 0; ++i) {
            fetch();
        }
    }
    wait_for_previous_kernel();
    let_next_kernel_start();

    uint8_t* staged = smem + layout.staged;
    cluster_wait(slices);  // all blocks of the cluster run, so their memory may be written
    if constexpr (kBlocks > 1) {
        load_staged<kBlocks>(
            staged_set(call.scratch, blockIdx.z, min(call.rows, kMostStagedRows), call.k), call.k,
            k0, slice, h, staged);
    } else {
        stage_exact({job.x, job.x_stride, call.x_element, job.suh, call.k, call.in}, k0, slice,
                    slices, plan.by_parts, h, staged);
    }

    auto* parts = reinterpret_cast<long long*>(smem + layout.parts);
    const int owned = (rows + slices - 1) / slices;
    const int staged_tile = tile_bytes(kBlocks, rows);
    int stage = 0;
    uint32_t parity = 0;
    for (int item = 0; item < items; ++item) {
        const int block0 = (first + item * plan.clusters) * wide;
        const bool has_columns = block0 + columns / 2 < blocks_n;
        // Loaded early: this block's scales of the first row that the warp finishes.
        const int own_block = min(block0 + warp / owned, blocks_n - 1);
        const uint2 svh = *reinterpret_cast<const uint2*>(job.svh + own_block * kBlock + 4 * lane);
        int sums[4][kBlocks][4] = {};
        for (int i = 0; i < mine && has_columns; ++i) {
            barrier_wait(full + stage, parity);
            uint32_t runs[4][run_registers(kTwiceK)];
            load_runs<kTwiceK>(reinterpret_cast<const uint32_t*>(ring + stage * kUnitBytes), lane,
                               runs);
            __syncwarp();
            if (lane == 0 && left > 0) {
                fetch();
            }
            if (++stage == plan.stages) {
                stage = 0;
                parity ^= 1;
            }
            uint32_t x[kBlocks][4];
            const int tile = (split + i * plan.splits) * 4 + lane % 4;
#pragma unroll
            for (int n = 0; n < kBlocks; ++n) {
                load_digits(staged + (n * (slice / 16) + tile) * staged_tile,
                            kBlocks == 1 ? rows : 4, x[n]);
            }
            exact_steps<kTwiceK, kBlocks>(runs, x, sums, std::make_integer_sequence<int, 8>{});
        }
        add_sums<kBlocks>(sums, rows, slots + columns / 2 * 2 * rows * kSlotStride, columns % 2);
        __syncthreads();
        for (int i = threadIdx.x; i < wide * rows * kBlock; i += kExactThreads) {
            const int part = i / (rows * kBlock);
            const int row = i / kBlock % rows;
            const int column = i % kBlock;
            const long long sum = take_sum(slots + part * 2 * rows * kSlotStride, row, column,
                                           static_cast<int>(h.total[row]));
            store_cluster(parts + ((part * owned + row / slices) * slices + rank) * kBlock + column,
                          row % slices, slices, sum);
        }
        cluster_sync(slices);
        for (int i = warp; i < wide * owned; i += kExactWarps) {
            const int row = i % owned * slices + rank;
            const int block = block0 + i / owned;
            if (row >= rows || block >= blocks_n) {
                continue;
            }
            const int column = block * kBlock + 4 * lane;
            long long sum[4] = {};
            for (int s = 0; s < slices; ++s) {
                const long long* from = parts + (i * slices + s) * kBlock + 4 * lane;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    sum[j] += from[j];
                }
            }
            const float unit =
                __uint_as_float(h.most[row]) * (1.0f / kFixedMax) * 0x1p-18f * 0x1p-7f;
            float v[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                v[j] = static_cast<float>(sum[j]) * unit;
            }
            rotate128(v, lane);
            scale_by(i == warp ? svh : *reinterpret_cast<const uint2*>(job.svh + column), v);
            if (job.bias != nullptr) {
                const float4 b = *reinterpret_cast<const float4*>(job.bias + column);
                v[0] += b.x;
                v[1] += b.y;
                v[2] += b.z;
                v[3] += b.w;
            }
            store_y(job.y, job.y_element, (row0 + row) * job.y_stride + column, v,
                    job.out - column);
        }
        if (item + 1 < items && slices > 1) {
            cluster_sync(slices);  // parts are read before they are written again
        }
    }
}

}  // namespace tenon::exl3::cuda
