// SPDX-License-Identifier: MIT
// index.score over whole pages: a warpgroup takes 128 keys against all heads of up to eight rows of
// a slot, by int8 tensor-core products whose sums are exact.
//
// Twice an E2M1 value is an integer of at most 12. The four power-of-two scales of a key (a head)
// are folded into these integers relative to the largest: exact in int8 while they differ by at
// most 2^2 or 2^3 (2^3), and then one int32 sum of 128 products is the exact dot. A key or a row
// whose scales differ by more takes sums of single groups, added in f32, group 0 first: rows up to
// 2^14 by FP8 products as in score.cuh, others and keys by mma.sync. All ways give the same number
// wherever they apply.
//
// One byte permutation serves the positive codes of four columns and one the negative codes; each
// gives 0 for the others. For a single row (kSplit) both go to the tensor core, the second against
// the negated heads. Rows that share keys would make it the busy unit: there a key's bytes are 64
// above its integers and the sum of both permutations is one operand; 64 times the sum of a head's
// bytes is taken off in front of the relu. The non-negative int32 then counts as a denormal f32: it
// is d 2^-149, and the weight of the head carries the rest.
//
// Heads are summed as in score.cuh: four runs, each ascending by fma, (0 + 2) + (1 + 3).
#pragma once

#include "common/async.cuh"
#include "common/wgmma.cuh"
#include "index/group_scores.cuh"
#include "index/int8_sums.cuh"

namespace tenon::cuda::index {

/// Before async::bulk_load_kept: `bytes` more will come.
__device__ inline void expect_bytes(uint64_t* bar, unsigned bytes) {
    if constexpr (kHasBulkCopies) {
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(
                         score_shared_address(bar)),
                     "r"(bytes)
                     : "memory");
    }
}
/// The one arrival of a thread after any number of them.
__device__ inline void all_loads_sent(uint64_t* bar) {
    if constexpr (kHasBulkCopies) {
        async::barrier_arrive(bar);
    } else {
        async::loads_sent(bar);
    }
}

/// 128 keys.
struct PageStage {
    uint8_t codes[kStep * 64];
    uint8_t scales[kStep * 4];
};

/// Warps of a block, by the registers that they need.
template <int kBlocks, bool kSplit>
constexpr int kPageWarps = kBlocks == 1 ? 16 : 12;

/// The bytes of the rows' heads and the histograms follow.
template <int kTeams, int kBlocks, int kPageStages, int kShared>
struct PageShared {
    alignas(128) PageStage stage[kTeams][kPageStages];
    uint64_t full[kTeams][kPageStages];
    uint64_t empty[kTeams][kPageStages];
    const uint8_t* tile[kTeams][kPageStages][4];  // codes of the keys of a warp, or null
    int4 weight[kShared][kBlocks * 16];
    float4 factor[kShared][kBlocks * 32];  // of the groups of a head
    struct alignas(16) RowOut {
        float* out;
        float factor;
        int limit;  // columns with scores
    } row[kShared];
    int wide[kShared];
};

// Persistent: each block takes an equal run of the steps of all batches, each warpgroup (team) a
// run of the block's. kShared: rows of a segment that share one unpacking of a key.
template <int kBlocks, bool kSplit, int kPageStages, int kShared>
__global__ void __launch_bounds__(kPageWarps<kBlocks, kSplit> * 32, 1)
    score_pages_kernel(const __grid_constant__ ScoreArgs a) {
    constexpr int kThreads = kPageWarps<kBlocks, kSplit> * 32;
    constexpr int kTeams = kPageWarps<kBlocks, kSplit> / 4;
    constexpr int kPlanes = kSplit ? 2 : 1;
    constexpr int kOctaves = kSplit ? 3 : kKeyOctaves;  // scales of a key that its bytes hold
    extern __shared__ __align__(128) uint8_t page_bytes[];
    using Shared = PageShared<kTeams, kBlocks, kPageStages, kShared>;
    auto& sm = *reinterpret_cast<Shared*>(page_bytes);
    uint8_t* sm_q = page_bytes + sizeof(Shared);  // a multiple of 128
    constexpr int kHeads = kBlocks * 32;
    constexpr int kRowBytes = kHeads * kWidth;
    // a.share is kShared, but strides that the compiler knows would cost a single row the uniform
    // registers that keep the places of its heads, and its products would wait for them.
    const int share = kSplit ? a.share : kShared;
    unsigned* hist = reinterpret_cast<unsigned*>(sm_q + share * kRowBytes * kPlanes);
    const Prepared& p = a.prepared;
    const int tid = threadIdx.x;
    const int warp = tid / 32;
    const int lane = tid % 32;
    const int r = lane / 4;
    const int c = lane % 4;
    const int team = warp / 4;
    const bool loads = warp % 4 == 0 && lane == 0;
    const uint32_t step_bytes = share * kHeads * 32;  // of a k step
    const uint32_t plane_bytes = share * kRowBytes;
    const uint32_t q_at = score_shared_address(sm_q);
    // This lane ends with this key of a tile, and knows its scales.
    const int own = 16 * (c % 2) + 8 * (c / 2) + r;

    if (loads) {
#pragma unroll
        for (int s = 0; s < kPageStages; ++s) {
            async::barrier_init(&sm.full[team][s], 1);
            async::barrier_init(&sm.empty[team][s], 4);
        }
        if constexpr (kHasBulkCopies) {
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
    }
    int stage = 0;  // of the next step, and the phase of its barriers
    unsigned phase = 0;
    const uint32_t one = blockDim.y;
    start_when_ready();

    auto [at, end, batch] = run_of_block(p, a.T);
    for (; at < end; ++batch) {
        const Batch b = p.batch[batch];  // of one row in kSplit
        const int base = p.first_tile[batch];
        const int first = at - base;
        const int last = min(end, p.first_tile[batch + 1]) - base;
        at = base + last;
        const int most = b.most;  // rows ascend
        const int columns = static_cast<int>(a.N < most ? a.N : most);
        const int each = (last - first + kTeams - 1) / kTeams;
        const int run = min(first + team * each, last);
        const int run_end = min(run + each, last);

        // The loading lane asks for the page of the step after the one it loads.
        const bool whole_steps = a.keys.rows_per_page % kStep == 0;
        int fetch = run;
        int fetch_stage = stage;
        int next_page = -1;
        const auto page_at = [&](int key) {
            const int index = a.keys.page_of(key);
            return index < a.keys.table_width
                       ? a.keys.table[int64_t{b.slot} * a.keys.table_width + index]
                       : -1;
        };
        const auto load = [&] {
            PageStage& s = sm.stage[team][fetch_stage];
            uint64_t* full = &sm.full[team][fetch_stage];
            const uint8_t** tile = sm.tile[team][fetch_stage];
            const auto copy = [&](int page, int key, int place, int keys) {
                const uint8_t* codes = nullptr;
                if (page >= 0 && page < a.keys.pages) {
                    const int row = key - a.keys.page_of(key) * a.keys.rows_per_page;
                    const uint8_t* from = a.keys.pool + page * a.keys.page_bytes;
                    codes = from + a.keys.codes_at + row * 64;
                    expect_bytes(full, keys * 68);
                    async::bulk_load_kept(s.codes + place * 64, codes, keys * 64, full);
                    async::bulk_load_kept(s.scales + place * 4, from + a.keys.scales_at + row * 4,
                                          keys * 4, full);
                } else if (a.faults != nullptr) {
                    atomicAdd(a.faults, 1ull);
                }
                for (int i = 0; i < keys; i += kTile) {
                    tile[(place + i) / kTile] = codes == nullptr ? nullptr : codes + i * 64;
                }
            };
            const int key = fetch * kStep;
            if (whole_steps) {
                copy(next_page, key, 0, kStep);
                next_page = page_at(key + kStep);
            } else {
                for (int i = 0; i < kStep; i += kTile) {
                    if (key + i < columns) {
                        copy(page_at(key + i), key + i, i, kTile);
                    }
                }
            }
            all_loads_sent(full);
            fetch_stage = fetch_stage + 1 == kPageStages ? 0 : fetch_stage + 1;
            ++fetch;
        };

        __syncthreads();  // the previous batch is done with q and hist, and with all stages
        if (loads && run < run_end) {
            next_page = page_at(run * kStep);
#pragma unroll 1
            for (int s = 0; s < kPageStages && fetch < run_end; ++s) {
                load();
            }
        }
        // [row][k step][head block] -> [plane][k step][row][head block], 1 KiB pieces of 32 heads
        for (int i = tid; i < b.rows * kRowBytes / 16; i += kThreads) {
            const int row = i / (kRowBytes / 16);
            const int in_row = i % (kRowBytes / 16);
            const int k = in_row / (kHeads * 2);
            const int rest = in_row % (kHeads * 2);
            const uint4 v = reinterpret_cast<const uint4*>(p.q + int64_t{b.row0} * kRowBytes)[i];
            auto* to = reinterpret_cast<uint4*>(sm_q) + (k * share + row) * kHeads * 2 + rest;
            *to = v;
            if constexpr (kSplit) {
                to[plane_bytes / 16] =
                    make_uint4(__vneg4(v.x), __vneg4(v.y), __vneg4(v.z), __vneg4(v.w));
            }
        }
        for (int i = tid; i < b.rows * kHeads / 2; i += kThreads) {
            (&sm.weight[0][0])[i] = p.pair[int64_t{b.row0} * (kHeads / 2) + i];
        }
        for (int i = tid; i < b.rows * kHeads; i += kThreads) {
            (&sm.factor[0][0])[i] =
                reinterpret_cast<const float4*>(p.factor)[int64_t{b.row0} * kHeads + i];
        }
        bool batch_wide = false;
        for (int i = 0; i < b.rows; ++i) {
            batch_wide = batch_wide || p.wide[b.row0 + i] != 0;
        }
        if (tid < b.rows) {
            const int row = b.row0 + tid;
            constexpr float kUnit = 1.0f / (1 << (kOctaves - kKeyOctaves));
            sm.row[tid] = {a.out + row * a.stride, p.row_factor[row] * kUnit,
                           min(columns, visible_rows(a.row[row].pos, a.keys.ratio))};
            sm.wide[tid] = p.wide[row];
        }
        const bool counts = a.hist_visible >= 0 && most > a.hist_visible;
        if (counts) {
            for (int i = tid; i < b.rows * kBins; i += kThreads) {
                hist[i] = 0;
            }
        }
        shared_to_async();  // q
        __syncthreads();

#pragma unroll 1
        for (int step = run; step < run_end; ++step) {
            const int tile = step * 4 + warp % 4;
            const PageStage& s = sm.stage[team][stage];
            async::barrier_wait(&sm.full[team][stage], phase);
            const uint8_t* codes_at =
                tile * kTile < columns ? sm.tile[team][stage][warp % 4] : nullptr;
            const uint8_t* keys_at = s.codes + warp % 4 * (kTile * 64) + r * 64 + c * 16;
            uint4 raw[2][2];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    raw[m][half] =
                        *reinterpret_cast<const uint4*>(keys_at + (16 * m + 8 * half) * 64);
                }
            }
            const uint32_t scales =
                *reinterpret_cast<const uint32_t*>(s.scales + (warp % 4 * kTile + own) * 4);
            const auto leave = [&] {
                __syncwarp();
                if (lane == 0) {
                    async::barrier_arrive(&sm.empty[team][stage]);
                }
            };
            const auto refill = [&](unsigned used) {
                if (loads && fetch < run_end) {
                    async::barrier_wait(&sm.empty[team][fetch_stage], used);
                    load();
                }
                __syncwarp();
            };
            if (!batch_wide) {
                leave();
            }
            if (kPageStages > 1 && step > run) {  // the stage of the step before
                refill(stage > 0 ? phase : phase ^ 1u);
            }

            const uint32_t pairs =
                __vmaxu2(__byte_perm(scales, 0, 0x4240), __byte_perm(scales, 0, 0x4341));
            const uint32_t largest = __vmaxu2(pairs, __byte_perm(pairs, 0, 0x1032)) & 0xFFFFu;
            const uint32_t below = largest * 0x01010101u - scales;  // octaves, a byte a group
            uint32_t down[2][2];                                    // of this lane's group
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                down[i / 2][i % 2] =
                    __byte_perm(__shfl_sync(~0u, below, r * 4 + i / 2 + i % 2 * 2), 0, 0x4440 + c);
            }
            // Keys whose scales differ too much, unless the small groups are zero.
            bool wide_key = false;
            const uint32_t over = kOctaves == 3 ? below : below | (below + 0x01010101u);
            if (__any_sync(~0u, (over & 0xFCFCFCFCu) != 0)) {
                unsigned bits = 0;
#pragma unroll
                for (int m = 0; m < 2; ++m) {
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const uint4& x = raw[m][half];
                        const bool wide = down[m][half] > kOctaves &&
                                          ((x.x | x.y | x.z | x.w) & 0x77777777u) != 0;
                        const unsigned vote = __ballot_sync(~0u, wide);
                        if ((vote >> (r * 4) & 15u) != 0) {
                            bits |= 1u << (m + 2 * half);  // m = c % 2, half = c / 2
                        }
                    }
                }
                wide_key = (bits >> c & 1u) != 0;
            }
            const bool any_wide = __any_sync(~0u, wide_key);
            const int column = tile * kTile + own;
            const float key_factor = __uint_as_float(largest == 0 ? 0x00400000u : largest << 23);

            const auto unpack = [&](uint32_t(&to)[kPlanes][16], int m) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const KeyTable table(__funnelshift_rc(1u << kOctaves, 0, down[m][half]), one);
                    const uint32_t x[4] = {raw[m][half].x, raw[m][half].y, raw[m][half].z,
                                           raw[m][half].w};
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        const int i = 4 * k + half;
                        if constexpr (kSplit) {
                            table.split(x[k], to[0][i], to[0][i + 2], to[1][i], to[1][i + 2]);
                        } else {
                            table.bytes(x[k], to[0][i], to[0][i + 2]);
                        }
                    }
                }
            };
            // halves[m]: sums of key r + 8 (c / 2) of tile half m over half of the heads.
            const auto finish = [&](int row, const float(&halves)[2]) {
                const bool odd = c % 2 != 0;
                float score = (odd ? halves[1] : halves[0]) +
                              __shfl_xor_sync(~0u, odd ? halves[0] : halves[1], 1);
                const int wide_row = batch_wide ? sm.wide[row] : 0;
                if (wide_row == kFp8Row) {
                    score = fp8_score<kBlocks>(
                        s.codes + warp % 4 * (kTile * 64), s.scales + warp % 4 * (kTile * 4),
                        q_at + row * kHeads * 32, step_bytes, sm.weight[row]);
                } else if ((any_wide || wide_row != 0) && codes_at != nullptr) {
                    const float other = group_score<kBlocks>(
                        codes_at,
                        codes_at + (a.keys.scales_at - a.keys.codes_at) -
                            (tile * kTile % a.keys.rows_per_page) * 60,
                        q_at + row * kHeads * 32, step_bytes, sm.weight[row], sm.factor[row]);
                    constexpr float kUnits = 1 << (kOctaves - kKeyOctaves);
                    score = wide_key || wide_row != 0 ? other * kUnits : score;
                }
                const auto info = sm.row[row];
                if (column < info.limit) {
                    const float value = codes_at == nullptr   ? kMinusInf
                                        : wide_row == kFp8Row ? score
                                                              : score * info.factor * key_factor;
                    info.out[column] = value;
                    if (counts && value > kMinusInf) {
                        const uint32_t u = __float_as_uint(value + 0.0f);  // -0 counts as 0
                        const uint32_t key =
                            u ^ (static_cast<uint32_t>(static_cast<int>(u) >> 31) | 0x80000000u);
                        atomicAdd(&hist[row * kBins + bin_of(key)], 1u);
                    }
                }
            };
            if constexpr (kSplit) {
                float halves[2];
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    uint32_t fragment[kPlanes][16];
                    int d[kHeads / 2];
                    unpack(fragment, m);
                    start_sums<kHeads, kPlanes>(d, fragment, q_at, step_bytes, plane_bytes, lane);
                    halves[m] = 0;
                    finish_sums<0>(d, halves[m]);
                    halves[m] = sum_heads<kBlocks, kSplit>(d, sm.weight[0], c);
                }
                finish(0, halves);
            } else {
                uint32_t fragment[2][kPlanes][16];
                unpack(fragment[0], 0);
                unpack(fragment[1], 1);
                // Two rows a turn, the second one beyond the end if their number is odd: two
                // products are always open.
#pragma unroll 1
                for (int row = 0; row < b.rows; row += 2) {
                    int d[2][kHeads / 2];
                    float halves[2][2] = {};
                    const auto start = [&](int m, int i) {
                        start_sums<kHeads, kPlanes>(d[m], fragment[m],
                                                    q_at + (row + i) * kHeads * 32, step_bytes,
                                                    plane_bytes, lane);
                    };
                    start(0, 0);
                    start(1, 0);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        float& before = halves[i < 1 ? 0 : (i - 1) / 2][i < 1 ? 0 : (i - 1) % 2];
                        if (i < 3) {
                            finish_sums<1>(d[i % 2], before);
                        } else {
                            finish_sums<0>(d[i % 2], before);
                        }
                        halves[i / 2][i % 2] =
                            sum_heads<kBlocks, kSplit>(d[i % 2], sm.weight[row + i / 2], c);
                        if (i < 2) {
                            start(i, 1);
                        }
                    }
                    finish(row, halves[0]);
                    if (row + 1 < b.rows) {
                        finish(row + 1, halves[1]);
                    }
                }
            }
            if (batch_wide) {
                leave();
            }
            if (kPageStages == 1) {
                refill(phase);
            }
            stage = stage + 1 == kPageStages ? 0 : stage + 1;
            phase ^= stage == 0 ? 1u : 0u;
        }
        __syncthreads();
        if (counts) {
            add_counts<kThreads>(p, b, hist);
        }
    }
}

}  // namespace tenon::cuda::index
