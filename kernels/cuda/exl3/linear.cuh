// SPDX-License-Identifier: MIT
// y = x W^T for few rows: weights are decoded in registers and multiplied by tensor cores.
//
// A cluster of `slices` thread blocks makes 128 output columns. Each block rotates its slice of x,
// scales it to fixed point (mul1: two signed 8-bit digits; others: half), decodes its part of the
// weight once for all rows and hands [rows, 128] partial sums to the block that owns a row, which
// adds them in slice order, rotates and scales. mul1 sums are exact integers inside a slice, so
// bits depend neither on rows nor on how warps share the work.
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

struct Header {
    uint64_t full[kWarps * kStages];
    unsigned int most[kMaxRows];  // bits of max |x|, by row
    int total[kMaxRows];          // sum of digits, by row
    int x_row[kMaxRows], y_row[kMaxRows];
    int rows;
};
static_assert(sizeof(Header) <= kHeaderBytes);

// Rotates rows of x into shared memory, then writes them as digits (or halves) in the order in
// which lanes read them. Warps take (row, 128 channels) tasks; a lane sees its own values only.
template <Code kCode>
__device__ __forceinline__ void stage_rows(const void* x, int64_t x_stride, Element element,
                                           const uint16_t* suh, int in, int k0, int slice,
                                           Header& h, float* rotated, uint8_t* staged) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int blocks = slice / kBlock;
    const int tasks = h.rows * blocks;
    for (int task = warp; task < tasks; task += kWarps) {
        const int row = task / blocks;
        const int at = task % blocks * kBlock + 4 * lane;
        float v[4];
        load_x4(x, element, h.x_row[row] * x_stride + k0 + at, in - k0 - at, v);
        scale_by(suh + k0 + at, v);
        rotate128(v, lane);
        *reinterpret_cast<float4*>(rotated + row * slice + at) =
            make_float4(v[0], v[1], v[2], v[3]);
        unsigned int most = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            most = max(most, __float_as_uint(v[i]) & 0x7FFFFFFFu);
        }
        most = __reduce_max_sync(0xFFFFFFFFu, most);
        if (lane == 0) {
            atomicMax(&h.most[row], most);
        }
    }
    __syncthreads();
    for (int task = warp; task < tasks; task += kWarps) {
        const int row = task / blocks;
        const int at = task % blocks * kBlock + 4 * lane;
        const float4 v = *reinterpret_cast<const float4*>(rotated + row * slice + at);
        const float most = __uint_as_float(h.most[row]);
        if constexpr (kCode == Code::mul1) {
            const float inverse = most > 0 ? kFixedMax / most : 0.0f;
            const int a[4] = {__float2int_rn(v.x * inverse), __float2int_rn(v.y * inverse),
                              __float2int_rn(v.z * inverse), __float2int_rn(v.w * inverse)};
            uint32_t high = 0, low = 0;
            int sum = 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int top = (a[i] + 128) >> 8;
                high |= (static_cast<uint32_t>(top) & 0xFF) << (8 * i);
                low |= (static_cast<uint32_t>(a[i] - 256 * top) & 0xFF) << (8 * i);
                sum += a[i];
            }
            uint8_t* tile =
                staged + ((row / 4) * (slice / 16) + at / 16) * staged_tile_bytes(kCode) + at % 16;
            *reinterpret_cast<uint32_t*>(tile + (2 * (row % 4)) * 16) = high;
            *reinterpret_cast<uint32_t*>(tile + (2 * (row % 4) + 1) * 16) = low;
            sum = __reduce_add_sync(0xFFFFFFFFu, sum);
            if (lane == 0) {
                atomicAdd(&h.total[row], sum);
            }
        } else {
            const float inverse = most > 0 ? 1.0f / most : 0.0f;
            const __half2 a = __floats2half2_rn(v.x * inverse, v.y * inverse);
            const __half2 b = __floats2half2_rn(v.z * inverse, v.w * inverse);
            uint8_t* tile = staged +
                            ((row / 8) * (slice / 16) + at / 16) * staged_tile_bytes(kCode) +
                            (row % 8) * 32 + at % 16 * 2;
            *reinterpret_cast<uint2*>(tile) = make_uint2(*reinterpret_cast<const uint32_t*>(&a),
                                                         *reinterpret_cast<const uint32_t*>(&b));
        }
    }
}

template <Code kCode>
struct Sum {
    using Type = float;
};
template <>
struct Sum<Code::mul1> {
    using Type = int;
};

// Four products of a step: rows kRow and kRow + 1 of the lane's 16, columns g and g + 8.
template <int kTwiceK, Code kCode, int kBlocks, int kStep>
__device__ __forceinline__ void step(const uint32_t (&runs)[4][run_registers(kTwiceK)],
                                     const uint32_t (&x)[kBlocks][kCode == Code::mul1 ? 4 : 8],
                                     typename Sum<kCode>::Type (&sums)[4][kBlocks][4]) {
    constexpr int kFirst = 8 * (kStep >> 1) + 2 * (kStep & 1);
    constexpr int kRow = run_row(kFirst);
    uint32_t b[kBlocks][2];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
        if constexpr (kCode == Code::mul1) {
            b[n][0] = __byte_perm(x[n][kRow / 4], 0, 0x1111 * (kRow % 4));
            b[n][1] = __byte_perm(x[n][kRow / 4], 0, 0x1111 * (kRow % 4 + 1));
        } else {
            b[n][0] = __byte_perm(x[n][kRow / 2], 0, 0x1010);
            b[n][1] = __byte_perm(x[n][kRow / 2], 0, 0x3232);
        }
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        const uint32_t a[4] = {raw_weight<kCode>(window<kTwiceK, kFirst>(runs[t])),
                               raw_weight<kCode>(window<kTwiceK, kFirst + 4>(runs[t])),
                               raw_weight<kCode>(window<kTwiceK, kFirst + 1>(runs[t])),
                               raw_weight<kCode>(window<kTwiceK, kFirst + 5>(runs[t]))};
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            multiply(sums[t][n], a, b[n][0], b[n][1]);
        }
    }
}

template <int kTwiceK, Code kCode, int kBlocks, int... kSteps>
__device__ __forceinline__ void steps(const uint32_t (&runs)[4][run_registers(kTwiceK)],
                                      const uint32_t (&x)[kBlocks][kCode == Code::mul1 ? 4 : 8],
                                      typename Sum<kCode>::Type (&sums)[4][kBlocks][4],
                                      std::integer_sequence<int, kSteps...>) {
    (step<kTwiceK, kCode, kBlocks, kSteps>(runs, x, sums), ...);
}

// The products of one thread block; filled from a job or from an expert.
struct Product {
    const uint32_t* words;
    const uint16_t* suh;
    const uint16_t* svh;
    const float* bias;
    const void* x;
    int64_t x_stride;
    void* y;
    int64_t y_stride;
    Element y_element;
    int out;
    int block;
};

// Finds the product of this thread block and its rows, at most `rows_most` after the first `row0`.
// False: nothing to do (for the whole cluster).
__device__ __forceinline__ bool find_product(const LinearCall& call, int row0, int rows_most,
                                             Header& h, Product& p) {
    if (call.job_count > 0) {
        const int index = blockIdx.y;
        int j = 0;
        while (index >= call.jobs[j].block_end) {
            ++j;
        }
        const Job& job = call.jobs[j];
        p = {job.words,
             job.suh,
             job.svh,
             job.bias,
             job.x,
             job.x_stride,
             job.y,
             job.y_stride,
             job.y_element,
             job.out,
             index - (j == 0 ? 0 : call.jobs[j - 1].block_end)};
        if (threadIdx.x < kMaxRows) {
            h.x_row[threadIdx.x] = h.y_row[threadIdx.x] = row0 + threadIdx.x;
        }
        if (threadIdx.x == 0) {
            h.rows = min(call.rows - row0, rows_most);
        }
        __syncthreads();
        return true;
    }
    wait_for_previous_kernel();  // it may have written ids
    const ExpertCall& e = call.experts;
    const int entry = blockIdx.z;  // (row, slot), then the shared expert
    const int routed = call.rows * e.k;
    const int id = entry < routed ? e.ids[entry] : e.experts;
    if (id < 0 || (entry < routed && id >= e.experts)) {
        return false;  // an empty slot
    }
    const Weight w = e.table[id];
    if (w.words == nullptr || w.twice_k != call.twice_k || w.code != call.code) {
        return false;
    }
    p = {w.words,
         w.suh,
         w.svh,
         nullptr,
         e.x,
         e.x_stride,
         e.y,
         e.y_stride,
         Element::f32,
         w.out,
         static_cast<int>(blockIdx.y)};
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x;
        int found = 0;
        bool is_first = true;
        const auto note = [&](int at, int token, int slot) {
            if (at >= row0 && at < row0 + rows_most) {
                h.y_row[at - row0] = token * (e.k + 1) + slot;
                h.x_row[at - row0] = e.x_by_entry ? token * (e.k + 1) + slot : token;
            }
        };
        if (entry >= routed) {
            for (int row = lane; row < call.rows; row += 32) {
                note(row, row, e.k);
            }
            found = call.rows;
        } else {
            for (int base = 0; base < routed; base += 32) {
                const int i = base + lane;
                const bool match = i < routed && e.ids[i] == id;
                const unsigned int mask = __ballot_sync(0xFFFFFFFFu, match);
                if (entry >= base + 32) {
                    is_first = is_first && mask == 0;
                } else if (entry >= base) {
                    is_first = is_first && (mask & ((1u << (entry - base)) - 1)) == 0;
                }
                if (match) {
                    note(found + __popc(mask & ((1u << lane) - 1)), i / e.k, i % e.k);
                }
                found += __popc(mask);
            }
        }
        if (lane == 0) {
            h.rows = is_first ? max(0, min(found - row0, rows_most)) : 0;
        }
    }
    __syncthreads();
    return h.rows > 0;
}

// What a block does for one slice; without clusters it takes all of them, one after the other, and
// adds up their parts in the same order.
template <int kTwiceK, Code kCode, int kBlocks>
__device__ __forceinline__ void linear_slice(const LinearCall& call, int row0, int rows_most,
                                             int slice_most, int stages, int slice_index) {
    extern __shared__ __align__(128) uint8_t smem[];
    using SumType = typename Sum<kCode>::Type;
    constexpr int kUnitBytes = unit_words(kTwiceK) * 4;
    auto& h = *reinterpret_cast<Header*>(smem);
    const SmemLayout layout = smem_layout(kCode, kTwiceK, kBlocks, rows_most, slice_most, stages);
    const int slices = kHasClusters ? call.slices : 1;  // blocks of the cluster
    const int rank = kHasClusters ? slice_index : 0;
    const int k0 = static_cast<int>(slice_begin(call.k, call.slices, slice_index));
    const int slice = static_cast<int>(slice_begin(call.k, call.slices, slice_index + 1)) - k0;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int half_block = warp & 1;
    const int split = warp >> 1;
    const int groups = slice / kUnit;
    const int mine = (groups - split + kSplits - 1) / kSplits;

    cluster_arrive(slices);
    if (threadIdx.x < kMaxRows) {
        h.most[threadIdx.x] = 0;
        h.total[threadIdx.x] = 0;
    }
    if (lane == 0) {
        for (int i = 0; i < stages; ++i) {
            barrier_init(&h.full[warp * kStages + i], 1);
        }
        fence_barrier_init();
    }
    Product p;
    if (!find_product(call, row0, rows_most, h, p)) {
        cluster_wait(slices);
        return;
    }

    uint8_t* ring = smem + layout.ring + warp * stages * kUnitBytes;
    const int in_ring = stages - 1;  // stages is a power of two
    const int turn = stages == 4 ? 2 : stages - 1;
    const auto fetch = [&](int i, uint32_t zero) {
        const int64_t unit =
            unit_index(call.k / kUnit, k0 / kUnit + split + i * kSplits, 2 * p.block + half_block);
        uint64_t* full = &h.full[warp * kStages + (i & in_ring)];
        barrier_expect(full, kUnitBytes);
        bulk_load(ring + (i & in_ring) * kUnitBytes, p.words + unit * unit_words(kTwiceK),
                  kUnitBytes + zero, full);
        loads_sent(full);
    };
    if (lane == 0) {
        for (int i = 0; i < stages && i < mine; ++i) {
            fetch(i, 0);
        }
    }
    wait_for_previous_kernel();
    let_next_kernel_start();

    uint8_t* staged = smem + layout.staged;
    stage_rows<kCode>(p.x, p.x_stride, call.x_element, p.suh, call.in, k0, slice, h,
                      reinterpret_cast<float*>(smem + layout.rotated), staged);
    __syncthreads();

    SumType sums[4][kBlocks][4] = {};
    for (int i = 0; i < mine; ++i) {
        const int stage = (i & in_ring);
        barrier_wait(&h.full[warp * kStages + stage], (i >> turn) & 1);
        uint32_t runs[4][run_registers(kTwiceK)];
        load_runs<kTwiceK>(reinterpret_cast<const uint32_t*>(ring + stage * kUnitBytes), lane,
                           runs);
        __syncwarp();
        if (lane == 0 && i + stages < mine) {
            fetch(i + stages, runs_here<kTwiceK>(runs) & call.zero);
        }
        uint32_t x[kBlocks][kCode == Code::mul1 ? 4 : 8];
        const int tile = (split + i * kSplits) * 4 + lane % 4;
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            const uint8_t* at = staged + (n * (slice / 16) + tile) * staged_tile_bytes(kCode) +
                                lane / 4 * (staged_tile_bytes(kCode) / 8);
#pragma unroll
            for (int v = 0; v < (kCode == Code::mul1 ? 1 : 2); ++v) {
                const uint4 quad = reinterpret_cast<const uint4*>(at)[v];
                x[n][4 * v] = quad.x;
                x[n][4 * v + 1] = quad.y;
                x[n][4 * v + 2] = quad.z;
                x[n][4 * v + 3] = quad.w;
            }
        }
        steps<kTwiceK, kCode, kBlocks>(runs, x, sums, std::make_integer_sequence<int, 8>{});
    }

    // Sums of the warps meet in shared memory: [split][tensor core column][weight column].
    __syncthreads();
    auto* slots = reinterpret_cast<SumType*>(smem + layout.ring);
    const int used = kCode == Code::mul1 ? 2 * h.rows : h.rows;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int column = 8 * n + 2 * (lane % 4) + (i & 1);
                if (column < used) {
                    slots[(split * 8 * kBlocks + column) * kSumStride + 64 * half_block + 16 * t +
                          lane / 4 + 8 * (i >> 1)] = sums[t][n][i];
                }
            }
        }
    }
    __syncthreads();
    cluster_wait(slices);  // the other blocks of the cluster run, so their memory may be written
    auto* partial = reinterpret_cast<float*>(smem + layout.sums);
    for (int i = threadIdx.x; i < h.rows * kBlock; i += kThreads) {
        const int row = i / kBlock;
        const int column = i % kBlock;
        const float most = __uint_as_float(h.most[row]);
        float value;
        if constexpr (kCode == Code::mul1) {
            int high = 0, low = 0;
#pragma unroll
            for (int s = 0; s < kSplits; ++s) {
                high += slots[(s * 8 * kBlocks + 2 * row) * kSumStride + column];
                low += slots[(s * 8 * kBlocks + 2 * row + 1) * kSumStride + column];
            }
            // sum a (1774 S - 905216) 2^-18, exact until the conversion
            const long long exact = 1774LL * (256LL * high + low) - 905216LL * h.total[row];
            value = static_cast<float>(exact) * (most * (1.0f / kFixedMax) * 0x1p-18f);
        } else {
            float sum = 0;
#pragma unroll
            for (int s = 0; s < kSplits; ++s) {
                sum += slots[(s * 8 * kBlocks + row) * kSumStride + column];
            }
            value = sum * most;
        }
        float* to = partial + ((row / slices) * slices + rank) * kBlock + column;
        store_cluster(to, row % slices, slices,
                      kHasClusters || slice_index == 0 ? value : *to + value);
    }
    cluster_sync(slices);
    if (!kHasClusters && slice_index + 1 < call.slices) {
        return;
    }
    for (int row = rank + slices * warp; row < h.rows; row += slices * kWarps) {
        float v[4] = {};
        for (int s = 0; s < slices; ++s) {
            const float4 part = *reinterpret_cast<const float4*>(
                partial + ((row / slices) * slices + s) * kBlock + 4 * lane);
            v[0] += part.x;
            v[1] += part.y;
            v[2] += part.z;
            v[3] += part.w;
        }
        for (float& a : v) {
            a *= 0x1p-7f;
        }
        rotate128(v, lane);
        const int column = p.block * kBlock + 4 * lane;
        scale_by(p.svh + column, v);
        if (p.bias != nullptr) {
            const float4 b = *reinterpret_cast<const float4*>(p.bias + column);
            v[0] += b.x;
            v[1] += b.y;
            v[2] += b.z;
            v[3] += b.w;
        }
        store_y(p.y, p.y_element, h.y_row[row] * p.y_stride + column, v, p.out - column);
    }
}

template <int kTwiceK, Code kCode, int kBlocks>
__global__ void __launch_bounds__(kThreads)
    linear_kernel(const __grid_constant__ LinearCall call, int row0, int rows_most, int slice_most,
                  int stages) {
    if constexpr (kHasClusters) {
        linear_slice<kTwiceK, kCode, kBlocks>(call, row0, rows_most, slice_most, stages,
                                              static_cast<int>(blockIdx.x));
    } else {
        extern __shared__ __align__(128) uint8_t smem[];
        uint64_t* full = reinterpret_cast<Header*>(smem)->full + threadIdx.x / 32 * kStages;
        for (int slice = 0; slice < call.slices; ++slice) {
            linear_slice<kTwiceK, kCode, kBlocks>(call, row0, rows_most, slice_most, stages, slice);
            for (int i = 0; threadIdx.x % 32 == 0 && i < stages; ++i) {
                barrier_end(full + i);
            }
        }
    }
}

}  // namespace tenon::exl3::cuda
