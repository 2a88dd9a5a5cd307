// SPDX-License-Identifier: MIT
// Products of many small jobs as one flat list of units, cut evenly between the warps of the
// device.
//
// A unit is 64 x 64 weights of one item, for up to four rows. A warp decodes a contiguous range of
// the list and adds its exact integer sums to memory whenever the columns change: how the list is
// cut shows in no bit. Warps never wait for each other. Each has a ring of stages that hold a unit
// and the digits of its rows, filled by bulk copies.
#pragma once

#include "exact.cuh"
#include "experts_exact.h"

namespace tenon::exl3::cuda {

constexpr int kStreamWarps = 16;
constexpr int kStreamThreads = 32 * kStreamWarps;
constexpr int kStreamStages = 1;  ///< two blocks a multiprocessor keep enough in flight
constexpr int kRowDigits = 128;   ///< bytes of a row's digits of one unit
constexpr int kStreamHeader = 512;

struct UnitStream {
    const int32_t* groups;
    const ExpertItem* items;
    int projections, first;  ///< of the three of a group
    int units_k, units_n;    ///< of 64 rows and 64 columns
    int twice_k;             ///< largest rate
    /// The list was complete before the previous kernel started: weights need not wait for it.
    bool listed;
    const uint8_t* digits;  ///< [entries][projections][units_k][kRowDigits]
    int64_t* sums;          ///< [entries][projections][64 units_n]
};

constexpr int stream_bytes(int twice_k) {
    return kStreamHeader +
           kStreamWarps * kStreamStages * (unit_words(twice_k) * 4 + kGroupRows * kRowDigits);
}

struct StreamRing {
    uint64_t* full;
    uint8_t* data;
    int stage_bytes, digits_at;
    int stage, fetch_stage;
    uint32_t parity;
};

// What is fetched next.
struct StreamCursor {
    int at, end;  // in the list
    int left;     // in this item's columns
    const uint8_t* words;
    int bytes, rows;
    const uint8_t* digits[kGroupRows];
};

template <int kTwiceK, class Fetch>
__device__ __forceinline__ void decode_units(StreamRing& r, int count, int rows, Fetch&& fetch,
                                             int (&sums)[4][1][4]) {
    const int lane = threadIdx.x % 32;
    const int column = lane / 4;  // of the tensor core: row column / 2, digit column % 2
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        const uint8_t* stage = r.data + r.stage * r.stage_bytes;
        barrier_wait(r.full + r.stage, r.parity);
        uint32_t runs[4][run_registers(kTwiceK)];
        load_runs<kTwiceK>(reinterpret_cast<const uint32_t*>(stage), lane, runs);
        uint4 quad = make_uint4(0, 0, 0, 0);
        if (column < 2 * rows) {
            quad = *reinterpret_cast<const uint4*>(stage + r.digits_at + column / 2 * kRowDigits +
                                                   lane % 4 * 32 + column % 2 * 16);
        }
        __syncwarp();
        fetch();
        if (++r.stage == kStreamStages) {
            r.stage = 0;
            r.parity ^= 1;
        }
        const uint32_t x[1][4] = {{quad.x, quad.y, quad.z, quad.w}};
        exact_unit<kTwiceK, 1>(runs, x, sums);
    }
}

template <class Fetch>
__device__ __forceinline__ void decode_any(int twice_k, StreamRing& r, int count, int rows,
                                           Fetch&& fetch, int (&sums)[4][1][4]) {
    switch (twice_k) {
        case 2:
            return decode_units<2>(r, count, rows, fetch, sums);
        case 3:
            return decode_units<3>(r, count, rows, fetch, sums);
        case 4:
            return decode_units<4>(r, count, rows, fetch, sums);
        case 5:
            return decode_units<5>(r, count, rows, fetch, sums);
        case 6:
            return decode_units<6>(r, count, rows, fetch, sums);
        case 7:
            return decode_units<7>(r, count, rows, fetch, sums);
        case 8:
            return decode_units<8>(r, count, rows, fetch, sums);
        case 10:
            return decode_units<10>(r, count, rows, fetch, sums);
        case 12:
            return decode_units<12>(r, count, rows, fetch, sums);
        case 14:
            return decode_units<14>(r, count, rows, fetch, sums);
        default:
            return decode_units<16>(r, count, rows, fetch, sums);
    }
}

// Grid: any number of blocks. The list of items may be written by the kernel before.
__global__ void __launch_bounds__(kStreamThreads, 2)
    stream_kernel(const __grid_constant__ UnitStream c) {
    extern __shared__ __align__(128) uint8_t smem[];
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);  // uniform for the compiler
    const int lane = threadIdx.x % 32;
    const bool leader = elect_lane();
    StreamRing r{};
    r.digits_at = unit_words(c.twice_k) * 4;
    r.stage_bytes = r.digits_at + kGroupRows * kRowDigits;
    r.full = reinterpret_cast<uint64_t*>(smem) + warp * kStreamStages;
    r.data = smem + kStreamHeader + warp * kStreamStages * r.stage_bytes;
    if (leader) {
#pragma unroll 1
        for (int i = 0; i < kStreamStages; ++i) {
            barrier_init(r.full + i, 1);
        }
        fence_barrier_init();
    }
    __syncwarp();
    if (!c.listed) {
        wait_for_previous_kernel();
        let_next_kernel_start();
    }
    const int64_t all = int64_t{*c.groups} * c.projections * c.units_n * c.units_k;
    const int warps = static_cast<int>(gridDim.x) * kStreamWarps;
    const int me = static_cast<int>(blockIdx.x) * kStreamWarps + warp;
    int at = static_cast<int>(all * me / warps);
    const int end = static_cast<int>(all * (me + 1) / warps);
    const uint64_t policy = read_once_policy();

    // Place `position` of the list: column unit and item.
    const auto find = [&](int position, int* k_unit, int* n_unit, int* projection) {
        const int strip = position / c.units_k;
        *k_unit = position - strip * c.units_k;
        const int product = strip / c.units_n;
        *n_unit = strip - product * c.units_n;
        *projection = product % c.projections;
        return c.items + 3 * (product / c.projections) + c.first + *projection;
    };
    bool ready = !c.listed;
    StreamCursor f{};
    f.at = at;
    f.end = end;
    const auto fetch = [&]() {
        if (f.at >= f.end) {
            return;
        }
        if (f.left == 0) {
            int k_unit, n_unit, projection;
            const ExpertItem& item = *find(f.at, &k_unit, &n_unit, &projection);
            f.left = min(c.units_k - k_unit, f.end - f.at);
            f.bytes = unit_words(item.twice_k) * 4;
            f.words = reinterpret_cast<const uint8_t*>(item.words) +
                      unit_index(c.units_k, k_unit, n_unit) * f.bytes;
            f.rows = item.rows;
#pragma unroll
            for (int i = 0; i < kGroupRows; ++i) {
                if (i < f.rows) {
                    f.digits[i] =
                        c.digits +
                        ((int64_t{item.entry[i]} * c.projections + projection) * c.units_k +
                         k_unit) *
                            kRowDigits;
                }
            }
        }
        if (leader) {
            uint8_t* to = r.data + r.fetch_stage * r.stage_bytes;
            uint64_t* full = r.full + r.fetch_stage;
            barrier_expect(full, f.bytes + f.rows * kRowDigits);
            bulk_load(to, f.words, f.bytes, full, policy);
            if (!ready) {
                wait_for_previous_kernel();
                ready = true;
            }
#pragma unroll
            for (int i = 0; i < kGroupRows; ++i) {
                if (i < f.rows) {
                    bulk_load(to + r.digits_at + i * kRowDigits, f.digits[i], kRowDigits, full,
                              policy);
                }
            }
            loads_sent(full);
        }
#pragma unroll
        for (int i = 0; i < kGroupRows; ++i) {
            f.digits[i] += kRowDigits;
        }
        f.words += 2 * f.bytes;
        r.fetch_stage = r.fetch_stage + 1 == kStreamStages ? 0 : r.fetch_stage + 1;
        --f.left;
        ++f.at;
    };
#pragma unroll 1
    for (int i = 0; i < kStreamStages; ++i) {
        fetch();
    }
    if (c.listed) {
        wait_for_previous_kernel();
        let_next_kernel_start();
    }
#pragma unroll 1
    while (at < end) {
        int k_unit, n_unit, projection;
        const ExpertItem& item = *find(at, &k_unit, &n_unit, &projection);
        const int count = min(c.units_k - k_unit, end - at);
        int sums[4][1][4] = {};
        decode_any(item.twice_k, r, count, item.rows, fetch, sums);
        const int row = lane % 4;
        if (row < item.rows) {
            auto* to = reinterpret_cast<unsigned long long*>(c.sums) +
                       (int64_t{item.entry[row]} * c.projections + projection) * kUnit * c.units_n +
                       kUnit * n_unit + lane / 4;
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                atomicAdd(to + 16 * t,
                          static_cast<unsigned long long>(256LL * sums[t][0][0] + sums[t][0][1]));
                atomicAdd(to + 16 * t + 8,
                          static_cast<unsigned long long>(256LL * sums[t][0][2] + sums[t][0][3]));
            }
        }
        at += count;
    }
}

}  // namespace tenon::exl3::cuda
