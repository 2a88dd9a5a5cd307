// SPDX-License-Identifier: MIT
// attn.sparse and attn.sparse_turn in decode on Hopper: a cluster attends the 64 heads of one row,
// a CTA takes 128 keys.
//
// Window part and selected part are cut into chunks of 128 keys from their own start; CTA i of the
// cluster has chunk i of the window part or chunk i - windows of the selected part, so a row's bits
// depend on its list alone. Keys become bf16 in shared memory once and serve QK^T (each warpgroup
// 32 of the keys) and PV (each 128 of the columns) through wgmma. Probabilities enter PV as two
// bf16 terms, and so does their sum. The CTAs merge their parts in list order through distributed
// shared memory, each for some of the heads.
//
// A CTA's part of the output leaves its multiprocessor at 16 bytes a clock. While most of the
// multiprocessors are idle, two CTAs take the same keys and half of the columns of PV each
// (kHalves): every number is the same, and each of them writes, sends and merges half.
#pragma once

#include "attn/keys.cuh"
#include "attn/wgmma.cuh"
#include "common/cluster.cuh"
#include "common/dependent.cuh"

namespace tenon::cuda::sparse {

constexpr int kWideD = 512;
constexpr int kWideHeads = 64;
constexpr int kWideKeys = 128;
constexpr int kWideRanks = 8;  // CTAs of a cluster at most
constexpr int kWideThreads = 512;
constexpr int kWideWarps = kWideThreads / 32;
constexpr int kWideGroups = kWideWarps / 4;  // warpgroups
constexpr int kWideTerms = 2;  // of a probability; a third costs 7 % (docs/measurements.md)
constexpr int kGroupKeys = kWideKeys / kWideGroups;

template <int kHalves>
constexpr int kOutColumns = kWideD / kHalves;
template <int kHalves>
constexpr int kOutPitch = kOutColumns<kHalves> + 8;

struct WideShared {
    union {
        uint8_t q[kWideHeads * kWideD * 2];  // [64 columns][head], lines of 128 bytes
        uint8_t p[kWideTerms][kWideHeads * kWideKeys * 2];  // [64 keys][head], after QK^T
    };
    union {
        uint8_t k[kWideKeys * kWideD * 2];   // [64 columns][key]
        float o[kWideHeads * kOutPitch<1>];  // for the merge, in lines of kOutPitch
    };
    Key key[kWideKeys];
    float tops[kWideGroups][kWideHeads];
    float sums[kWideGroups][kWideHeads];
    float top[kWideHeads];
    float sum[kWideHeads];
    float part_top[kWideRanks][kWideHeads];
    float part_sum[kWideRanks][kWideHeads];
    float part_weight[kWideRanks][kWideHeads];

    __device__ float top_of(int head) const {
        float top = tops[0][head];
        for (int i = 1; i < kWideGroups; ++i) {
            top = fmaxf(top, tops[i][head]);
        }
        return top;
    }
};
constexpr size_t kWideBytes = sizeof(WideShared) + 1024;  // the start is aligned to 1024

/// Byte of 16-byte piece `piece` of a line in [block of 64 columns][line] order.
__device__ inline uint32_t piece_at(int lines, int line, int piece) {
    return (piece / 8 * lines + line) * 128 + (piece % 8 ^ line % 8) * 16;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The row's heads as bf16, turned if asked for; zeros beyond H.
template <bool kTurn>
struct WideQuery {
    static constexpr int kEach = kWideHeads * kWideD / 8 / kWideThreads;
    uint4 units[kEach];
    __device__ void load(const Args& a, int t) {
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
            const int i = threadIdx.x + k * kWideThreads;
            const int head = i / 64;
            units[k] = make_uint4(0, 0, 0, 0);
            if (head < a.H) {
                units[k] = *reinterpret_cast<const uint4*>(
                    a.q + (int64_t{t} * a.H + head) * kWideD + i % 64 * 8);
            }
        }
    }
    __device__ void store(const Args& a, int t, uint8_t* q) {
        const int piece = threadIdx.x % 64;  // of every unit
        const int column = piece * 8;
        if (kTurn && column >= kWideD - a.R) {
            const float* cs = a.cs + int64_t{t} * a.R + (column - (kWideD - a.R)) / 2;
            const float* sn = cs + a.R / 2;
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                uint4& v = units[k];
                v.x = turn(v.x, cs[0], sn[0]);
                v.y = turn(v.y, cs[1], sn[1]);
                v.z = turn(v.z, cs[2], sn[2]);
                v.w = turn(v.w, cs[3], sn[3]);
            }
        }
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
            const int head = threadIdx.x / 64 + k * (kWideThreads / 64);
            *reinterpret_cast<uint4*>(q + piece_at(kWideHeads, head, piece)) = units[k];
        }
    }
};

// Lane l stores columns 16 l .. 16 l + 15 of a key; odd quads store their second piece first, so
// that eight lanes meet eight pieces.
__device__ inline void store_key(uint8_t* k, int key, int lane, uint4 low, uint4 high) {
    const int second = lane / 4 % 2;
    *reinterpret_cast<uint4*>(k + piece_at(kWideKeys, key, 2 * lane + second)) =
        second != 0 ? high : low;
    *reinterpret_cast<uint4*>(k + piece_at(kWideKeys, key, 2 * lane + 1 - second)) =
        second != 0 ? low : high;
}

// The keys of a warp: number i is key i * kWideWarps + warp. Loads have no branches around them, so
// that all of them are in flight together.
template <int kFormat>
struct WideKeys {
    static constexpr int kEach = kWideKeys / kWideWarps;
    uint4 codes[kEach];
    uint32_t scale[kEach];
    __device__ void load(const Key* key, int lane) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const Key k = key[i * kWideWarps];
            codes[i] = make_uint4(0, 0, 0, 0);
            scale[i] = 0;
            if (k.format == kFormat) {
                if constexpr (kFormat == kQ4e) {
                    const uint2 c = __ldg(reinterpret_cast<const uint2*>(k.codes) + lane);
                    codes[i].x = c.x;
                    codes[i].y = c.y;
                    scale[i] = __ldg(k.scales + lane);
                } else {
                    codes[i] = __ldg(reinterpret_cast<const uint4*>(k.codes) + lane);
                    scale[i] = __ldg(k.scales + lane / 2);
                }
            }
        }
    }
    __device__ void store(uint8_t* to, int warp, int lane) const {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            uint4 low, high;
            if constexpr (kFormat == kQ4e) {
                low = unpack_q4e(codes[i].x, scale[i]);
                high = unpack_q4e(codes[i].y, scale[i]);
            } else {
                low = unpack_q8(make_uint2(codes[i].x, codes[i].y), scale[i]);
                high = unpack_q8(make_uint2(codes[i].z, codes[i].w), scale[i]);
            }
            store_key(to, i * kWideWarps + warp, lane, low, high);
        }
    }
};

// Rows of this call, and selected rows that are not q4e: keys that WideKeys left as zeros.
__device__ inline void store_others(WideShared& sm, int warp, int lane) {
#pragma unroll 4
    for (int i = warp; i < kWideKeys; i += kWideWarps) {
        const Key& key = sm.key[i];
        if (key.format == kBf16) {
            const auto* from = reinterpret_cast<const uint4*>(key.codes) + 2 * lane;
            store_key(sm.k, i, lane, from[0], from[1]);
        } else if (key.format == kQ4e) {
            const uint2 c = reinterpret_cast<const uint2*>(key.codes)[lane];
            const uint32_t s = key.scales[lane];
            store_key(sm.k, i, lane, unpack_q4e(c.x, s), unpack_q4e(c.y, s));
        }
    }
}

#endif

/// 1 / x within an ulp, for 0.5 < x < 2^20. A division calls a function, and around calls wgmma
/// would run one at a time.
__device__ inline float reciprocal(float x) {
    float r;
    asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/// CTAs for the window part of a row: 128 window keys and, in block mode, 64 rows of the call.
inline int wide_windows(int window, bool block_mode) {
    return (window + (block_mode ? 64 : 0) + kWideKeys - 1) / kWideKeys;
}

template <bool kTurn, int kHalves>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_kernel(const __grid_constant__ Args a, int windows) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t wide_bytes[];
    auto& sm = *reinterpret_cast<WideShared*>(wide_bytes +
                                              (1024 - (shared_address(wide_bytes) & 1023u)) % 1024);
    Cluster cluster = this_cluster();
    const int ranks = static_cast<int>(cluster.num_blocks()) / kHalves;
    const int rank = static_cast<int>(cluster.block_rank()) / kHalves;  // of the keys
    const int half = static_cast<int>(cluster.block_rank()) % kHalves;  // of the columns
    constexpr int kColumns = kOutColumns<kHalves>;
    constexpr int kGroupColumns = kColumns / kWideGroups;
    constexpr int kPitch = kOutPitch<kHalves>;
    const int t = blockIdx.y;
    const int tid = threadIdx.x;
    const int warp = tid / 32;
    const int lane = tid % 32;
    const int r = lane / 4;
    const int c = lane % 4;
    const int group = warp / 4;  // warpgroup
    wait_for_previous();
    let_next_start();

    // Lane i of a warp finds key i * kWideWarps + warp. Nothing of a selected key but its page
    // depends on the row's tables.
    const int mine = lane * kWideWarps + warp;
    const bool has_key = mine < kWideKeys;
    const int selected_at = (rank - windows) * kWideKeys + mine;
    const bool has_selected = rank >= windows && has_key && selected_at < a.K;
    const int g = has_selected ? a.sel[int64_t{t} * a.K + selected_at] : -1;
    const int page =
        has_selected ? page_of(a, a.row[t].slot < 0 ? a.table_slots : a.row[t].slot, g) : -1;
    WideQuery<kTurn> query;
    query.load(a, t);
    constexpr float kLog2e = 1.4426950408889634f;
    const float sink = tid % kWideHeads < a.H ? a.sink[tid % kWideHeads] * kLog2e : kMinusInf;
    const List list = list_of(a, t, cluster.block_rank() == 0 && tid == 0);
    const int first = (rank < windows ? rank : rank - windows) * kWideKeys;
    const int part = rank < windows ? list.window() : list.selected;
    const int keys = min(max(part - first, 0), kWideKeys);
    if (keys > 0) {
        if (has_key) {
            Key key{nullptr, nullptr, kNone, 0};
            if (mine < keys) {
                key = rank < windows ? window_key(a, list, first + mine, kWideD)
                                     : selected_key(a, g, page, kWideD, half == 0);
            }
            sm.key[mine] = key;
        }
        __syncwarp();
        if (rank >= windows && a.comp_format == kQ4e) {
            WideKeys<kQ4e> held;
            held.load(sm.key + warp, lane);
            query.store(a, t, sm.q);
            held.store(sm.k, warp, lane);
        } else {
            WideKeys<kQ8> held;
            held.load(sm.key + warp, lane);
            query.store(a, t, sm.q);
            held.store(sm.k, warp, lane);
            store_others(sm, warp, lane);
        }
        shared_to_async();
        __syncthreads();

        const uint32_t q_at = shared_address(sm.q);
        const uint32_t k_at = shared_address(sm.k);
        const uint32_t p_at = shared_address(sm.p[0]);
        float s[kGroupKeys / 2];
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < kWideD / 16; ++i) {
            wgmma<kGroupKeys, false>(
                s, swizzled(q_at + i / 4 * (kWideHeads * 128) + i % 4 * 32, 16, 1024),
                swizzled(k_at + i / 4 * (kWideKeys * 128) + group * (kGroupKeys * 128) + i % 4 * 32,
                         16, 1024),
                i > 0);
        }
        wgmma_end(s);

        // This thread: heads h and h + 8, keys 8 j + 2 c and the next of its warpgroup's 32.
        const int h = warp % 4 * 16 + r;
        float high[2] = {kMinusInf, kMinusInf};
#pragma unroll
        for (int j = 0; j < kGroupKeys / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& x = s[4 * j + i];
                x = sm.key[group * kGroupKeys + 8 * j + 2 * c + i % 2].format >= 0
                        ? x * a.scale_log2
                        : kMinusInf;
                high[i / 2] = fmaxf(high[i / 2], x);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            high[i] = fmaxf(high[i], __shfl_xor_sync(~0u, high[i], 1));
            high[i] = fmaxf(high[i], __shfl_xor_sync(~0u, high[i], 2));
            if (c == 0) {
                sm.tops[group][h + 8 * i] = high[i];
            }
        }
        __syncthreads();
        float sum[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int head = h + 8 * i;
            const float top = sm.top_of(head);
            const float shift = top == kMinusInf ? 0.0f : top;
#pragma unroll
            for (int j = 0; j < kGroupKeys / 8; ++j) {
                const Terms<kWideTerms> w(exp2f(s[4 * j + 2 * i] - shift),
                                          exp2f(s[4 * j + 2 * i + 1] - shift));
                sum[i] += w.sum();
                const uint32_t at =
                    piece_at(kWideHeads, head, group * (kGroupKeys / 8) + j) + c * 4;
#pragma unroll
                for (int k = 0; k < kWideTerms; ++k) {
                    *reinterpret_cast<uint32_t*>(sm.p[k] + at) = w.term[k];
                }
            }
            sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
            sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
            if (c == 0) {
                sm.sums[group][head] = sum[i];
            }
        }
        shared_to_async();
        __syncthreads();

        float o[kGroupColumns / 2];
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < kWideTerms * (kWideKeys / 16); ++i) {
            const int step = i % (kWideKeys / 16);
            const uint32_t term = i / (kWideKeys / 16) * (kWideHeads * kWideKeys * 2);
            wgmma<kGroupColumns, true>(
                o, swizzled(p_at + term + step / 4 * (kWideHeads * 128) + step % 4 * 32, 16, 1024),
                swizzled(k_at + (half * kColumns + group * kGroupColumns) / 64 * (kWideKeys * 128) +
                             step * (16 * 128),
                         kWideKeys * 128, 1024),
                i > 0);
        }
        wgmma_end(o);
        __syncthreads();  // all warpgroups are done with k and p
#pragma unroll
        for (int j = 0; j < kGroupColumns / 8; ++j) {
            float* at = sm.o + h * kPitch + group * kGroupColumns + 8 * j + 2 * c;
            *reinterpret_cast<float2*>(at) = make_float2(o[4 * j], o[4 * j + 1]);
            *reinterpret_cast<float2*>(at + 8 * kPitch) = make_float2(o[4 * j + 2], o[4 * j + 3]);
        }
    }
    if (tid < kWideHeads) {
        sm.top[tid] = keys > 0 ? sm.top_of(tid) : kMinusInf;
        float sum = 0;
        for (int i = 0; i < kWideGroups && keys > 0; ++i) {
            sum += sm.sums[i][tid];
        }
        sm.sum[tid] = sum;
    }
    cluster.sync();

    // Merge: this CTA finishes heads rank, rank + ranks, .. Thread i has head i % 64 of part i
    // / 64.
    static_assert(kWideRanks * kWideHeads <= kWideThreads);
    const int from_here = tid / kWideHeads;
    const int head_here = tid % kWideHeads;
    float top_here = kMinusInf;
    if (from_here < ranks) {
        const int other = from_here * kHalves + half;
        top_here = cluster.map_shared_rank(&sm.top[0], other)[head_here];
        sm.part_sum[from_here][head_here] = cluster.map_shared_rank(&sm.sum[0], other)[head_here];
        sm.part_top[from_here][head_here] = top_here;
    }
    __syncthreads();
    if (from_here < ranks) {
        float tops[kWideRanks];
        float most = sink;
#pragma unroll
        for (int i = 0; i < kWideRanks; ++i) {
            tops[i] = i < ranks ? sm.part_top[i][head_here] : kMinusInf;
            most = fmaxf(most, tops[i]);
        }
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kWideRanks; ++i) {
            if (i < ranks) {
                const float e = tops[i] > kMinusInf ? exp2f(tops[i] - most) : 0.0f;
                sum += sm.part_sum[i][head_here] * e;
            }
        }
        // Else the parts vanish beside the sink, or there is no key.
        const float each = sum > 0 ? reciprocal(sum + exp2f(sink - most)) : 0.0f;
        sm.part_weight[from_here][head_here] =
            top_here > kMinusInf ? exp2f(top_here - most) * each : 0.0f;
    }
    __syncthreads();
    constexpr int kQuads = kColumns / 4;
    const int heads = (a.H - rank + ranks - 1) / ranks;  // of this CTA
#pragma unroll 1
    for (int i = tid; i < heads * kQuads; i += kWideThreads) {
        const int head = rank + i / kQuads * ranks;
        const int place = i % kQuads * 4;
        const int column = half * kColumns + place;
        float4 part[kWideRanks];
#pragma unroll
        for (int from = 0; from < kWideRanks; ++from) {
            part[from] = make_float4(0, 0, 0, 0);
            if (from < ranks && sm.part_weight[from][head] != 0) {  // else the part may be anything
                const float* o =
                    from == rank ? sm.o : cluster.map_shared_rank(sm.o, from * kHalves + half);
                part[from] = *reinterpret_cast<const float4*>(o + head * kPitch + place);
            }
        }
        float x[4] = {0, 0, 0, 0};
#pragma unroll
        for (int from = 0; from < kWideRanks; ++from) {
            if (from < ranks) {
                const float w = sm.part_weight[from][head];
                x[0] = __fmaf_rn(w, part[from].x, x[0]);
                x[1] = __fmaf_rn(w, part[from].y, x[1]);
                x[2] = __fmaf_rn(w, part[from].z, x[2]);
                x[3] = __fmaf_rn(w, part[from].w, x[3]);
            }
        }
        uint2 out = make_uint2(pack(x[0], x[1]), pack(x[2], x[3]));
        if (kTurn && column >= kWideD - a.R) {
            const float* cs = a.cs + int64_t{t} * a.R + (column - (kWideD - a.R)) / 2;
            const float* sn = cs + a.R / 2;
            out.x = turn(out.x, cs[0], -sn[0]);
            out.y = turn(out.y, cs[1], -sn[1]);
        }
        *reinterpret_cast<uint2*>(a.out + (int64_t{t} * a.H + head) * kWideD + column) = out;
    }
    cluster.sync();  // others may still read this CTA's part
#endif
}

}  // namespace tenon::cuda::sparse
