// SPDX-License-Identifier: MIT
// attn.sparse and attn.sparse_turn: one CTA attends 16 or 32 heads of one row to chunks of 64 keys.
//
// Keys of a chunk are gathered from the ring, this call's rows or the page pool, become bf16 in
// shared memory once, and serve QK^T and PV through mma.sync m16n8k16 with f32 accumulation.
// Probabilities enter PV as bf16 terms, and so does their sum. Chunks are cut from the row's own
// list (window part, then selected part), so a row's bits depend on its list alone.
//
// Decode: a cluster of CTAs shares the chunks of a row in contiguous runs and merges the parts in
// list order through distributed shared memory. Prefill: one CTA walks the whole list.
#pragma once

#include "attn/keys.cuh"
#include "common/cluster.cuh"

namespace tenon::cuda::sparse {

constexpr int kChunk = 64;
constexpr int kMostRanks = 16;  // CTAs of a cluster

// Locating a key takes two dependent loads, the compressed row and its page; both are asked for
// ahead.
__device__ inline int selected_row(const Args& a, const List& l, int t, int chunk, int i) {
    const int at = (chunk - (l.window() + kChunk - 1) / kChunk) * kChunk + i;
    return at >= 0 && at < l.selected ? a.sel[int64_t{t} * a.K + at] : -1;
}

// Where key i of chunk `chunk` lies, given its row and page if it is a selected one; format kNone
// beyond the end of its part and for a missing page.
__device__ inline Key key_of(const Args& a, const List& l, int chunk, int i, int g, int page, int D,
                             bool report) {
    const int window_chunks = (l.window() + kChunk - 1) / kChunk;
    if (chunk < window_chunks) {
        return window_key(a, l, chunk * kChunk + i, D);
    }
    if ((chunk - window_chunks) * kChunk + i >= l.selected) {
        return Key{nullptr, nullptr, kNone, 0};
    }
    return selected_key(a, g, page, D, report);
}

__device__ inline void ldmatrix4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
__device__ inline void ldmatrix4_trans(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <int kD, int kTiles>
struct Shared {
    static constexpr int kRows = kTiles * 16;
    static constexpr int kPitch = kD + 8;  // 16 bytes of padding: ldmatrix without bank conflicts
    static constexpr int kGroups = kWarps / kTiles;
    static constexpr int kPPitch = kChunk + 8;
    // Three terms are a probability's 24 bits. With 32 heads (rows of 512) a third plane would
    // leave room for one block on a multiprocessor instead of two.
    static constexpr int kTerms = kTiles == 1 ? 3 : 2;
    __nv_bfloat16 q[kRows * kPitch];
    union {
        __nv_bfloat16 k[kChunk * kPitch];
        float o[kRows * kD];  // after the last chunk, for the merge
    };
    __nv_bfloat16 p[kRows * kPPitch];
    Key key[kChunk];
    float tops[kGroups][kRows];
    float sums[kGroups][kRows];
    float top[2][kRows];
    float sum[kRows];
    union {
        __nv_bfloat16 p_low[kTerms - 1][kRows * kPPitch];  // further terms of p
        struct {                                           // merge: one line a CTA of the cluster
            float part_top[kMostRanks][kRows];
            float part_sum[kMostRanks][kRows];
        };
    };
};

// Heads [h0, h0 + 16 kTiles) of row t as bf16, turned if asked for; zeros beyond H.
template <int kD, int kTiles, bool kTurn>
__device__ void load_q(const Args& a, Shared<kD, kTiles>& sm, int t, int h0) {
    constexpr int kUnits = kD / 8;
    constexpr int kEach = (Shared<kD, kTiles>::kRows * kUnits + kThreads - 1) / kThreads;
    uint4 units[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        const int i = threadIdx.x + k * kThreads;
        const int head = h0 + i / kUnits;
        units[k] = make_uint4(0, 0, 0, 0);
        if (i < sm.kRows * kUnits && head < a.H) {
            units[k] = *reinterpret_cast<const uint4*>(a.q + (int64_t{t} * a.H + head) * kD +
                                                       i % kUnits * 8);
        }
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        const int i = threadIdx.x + k * kThreads;
        const int column = i % kUnits * 8;
        if (kTurn && column >= kD - a.R) {
            const float* c = a.cs + int64_t{t} * a.R + (column - (kD - a.R)) / 2;
            const float* s = c + a.R / 2;
            uint4& v = units[k];
            v.x = turn(v.x, c[0], s[0]);
            v.y = turn(v.y, c[1], s[1]);
            v.z = turn(v.z, c[2], s[2]);
            v.w = turn(v.w, c[3], s[3]);
        }
        if (i < sm.kRows * kUnits) {
            *reinterpret_cast<uint4*>(sm.q + i / kUnits * sm.kPitch + column) = units[k];
        }
    }
}

// The chunk's keys as bf16; rows without a key become zeros, so that no poison meets a zero weight.
template <int kD, int kTiles>
__device__ void load_k(Shared<kD, kTiles>& sm, int warp, int lane) {
    constexpr int kUnits = kD / 8;
    constexpr int kPerKey = (kUnits + 31) / 32;
    constexpr int kBatch = 4;  // keys whose loads are in flight together
#pragma unroll
    for (int first = 0; first < kChunk / kWarps; first += kBatch) {
        uint4 raw[kBatch][kPerKey];
        uint32_t scale[kBatch][kPerKey];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
            const Key& key = sm.key[(first + b) * kWarps + warp];
#pragma unroll
            for (int j = 0; j < kPerKey; ++j) {
                const int u = lane + 32 * j;
                raw[b][j] = make_uint4(0, 0, 0, 0);
                scale[b][j] = 0;
                if (u < kUnits && key.format >= 0) {
                    if (key.format == kQ4e) {
                        raw[b][j].x = reinterpret_cast<const uint32_t*>(key.codes)[u];
                        scale[b][j] = key.scales[u / 2];
                    } else if (key.format == kQ8) {
                        const uint2 c = reinterpret_cast<const uint2*>(key.codes)[u];
                        raw[b][j].x = c.x;
                        raw[b][j].y = c.y;
                        scale[b][j] = key.scales[u / 4];
                    } else {
                        raw[b][j] = reinterpret_cast<const uint4*>(key.codes)[u];
                    }
                }
            }
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
            const int i = (first + b) * kWarps + warp;
            const int format = sm.key[i].format;
#pragma unroll
            for (int j = 0; j < kPerKey; ++j) {
                const int u = lane + 32 * j;
                if (u < kUnits) {
                    uint4 v = raw[b][j];
                    if (format == kQ4e) {
                        v = unpack_q4e(v.x, scale[b][j]);
                    } else if (format == kQ8) {
                        v = unpack_q8(make_uint2(v.x, v.y), scale[b][j]);
                    }
                    *reinterpret_cast<uint4*>(sm.k + i * sm.kPitch + u * 8) = v;
                }
            }
        }
    }
}

// As load_k for a chunk of selected q4e rows: all loads of a warp's keys are in flight together.
template <int kD, int kTiles>
__device__ void load_q4e(Shared<kD, kTiles>& sm, int warp, int lane) {
    constexpr int kUnits = kD / 8;
    constexpr int kPerKey = (kUnits + 31) / 32;
    constexpr int kKeys = kChunk / kWarps;
    uint32_t codes[kKeys][kPerKey];
    uint32_t scale[kKeys][kPerKey];
#pragma unroll
    for (int b = 0; b < kKeys; ++b) {
        const Key& key = sm.key[b * kWarps + warp];
        const bool there = key.format >= 0;
#pragma unroll
        for (int j = 0; j < kPerKey; ++j) {
            const int u = lane + 32 * j;
            codes[b][j] = 0;
            scale[b][j] = 0;
            if (there && u < kUnits) {
                codes[b][j] = __ldg(reinterpret_cast<const uint32_t*>(key.codes) + u);
                scale[b][j] = __ldg(key.scales + u / 2);
            }
        }
    }
#pragma unroll
    for (int b = 0; b < kKeys; ++b) {
#pragma unroll
        for (int j = 0; j < kPerKey; ++j) {
            const int u = lane + 32 * j;
            if (u < kUnits) {
                *reinterpret_cast<uint4*>(sm.k + (b * kWarps + warp) * sm.kPitch + u * 8) =
                    unpack_q4e(codes[b][j], scale[b][j]);
            }
        }
    }
}

template <int kD, int kTiles, bool kTurn>
__global__ void __launch_bounds__(kThreads, 2) sparse_kernel(const Args a) {
    using S = Shared<kD, kTiles>;
    extern __shared__ __align__(128) uint8_t shared_bytes[];
    S& sm = *reinterpret_cast<S*>(shared_bytes);
    constexpr int kRows = S::kRows;
    constexpr int kPitch = S::kPitch;
    constexpr int kGroups = S::kGroups;
    constexpr int kOut = kD >= 64 ? kD / 64 : 1;  // n tiles of 8 columns a warp owns in PV

    Cluster cluster = this_cluster();
    const int ranks = static_cast<int>(cluster.num_blocks());
    const int rank = static_cast<int>(cluster.block_rank());
    const int t = blockIdx.y;
    const int h0 = blockIdx.z * kRows;
    const int tid = threadIdx.x;
    const int warp = tid / 32;
    const int lane = tid % 32;
    const int r = lane / 4;
    const int c = lane % 4;
    const bool reports = blockIdx.z == 0 && tid == 0;

    const List list = list_of(a, t, reports && rank == 0);
    const int chunks =
        (list.window() + kChunk - 1) / kChunk + (list.selected + kChunk - 1) / kChunk;
    const int each = (chunks + ranks - 1) / ranks;
    const int first_chunk = min(rank * each, chunks);
    const int last_chunk = min(first_chunk + each, chunks);

    if (tid < kRows) {
        sm.top[0][tid] = sm.top[1][tid] = kMinusInf;
        sm.sum[tid] = 0;
    }
    float o[kTiles][kOut][4] = {};
    int parity = 0;
    const int window_chunks = (list.window() + kChunk - 1) / kChunk;
    int row_now = -1;  // of threads that locate a key: row and page of this chunk, row of the next
    int page_now = -1;
    int row_next = -1;
    if (tid < kChunk && first_chunk < last_chunk) {
        row_now = selected_row(a, list, t, first_chunk, tid);
        row_next = selected_row(a, list, t, first_chunk + 1, tid);
    }
    if (first_chunk < last_chunk) {
        load_q<kD, kTiles, kTurn>(a, sm, t, h0);
    }
    page_now = page_of(a, list.slot, row_now);

    const int mt = warp / kGroups;  // this warp's heads and keys in QK^T
    const int kg = warp % kGroups;
    const uint32_t q_at = shared_address(sm.q + (mt * 16 + lane % 16) * kPitch + lane / 16 * 8);
    const uint32_t k_at =
        shared_address(sm.k + (kg * 8 * kTiles + lane % 8) * kPitch + lane / 8 * 8);
    const uint32_t p_at = shared_address(sm.p + lane % 16 * S::kPPitch + lane / 16 * 8);
    const uint32_t low_at = shared_address(sm.p_low[0] + lane % 16 * S::kPPitch + lane / 16 * 8);
    const int n0 = warp * kOut * 8;  // this warp's columns in PV
    const uint32_t v_at = shared_address(sm.k + lane % 16 * kPitch + n0 + lane / 16 * 8);

    for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
        if (tid < kChunk) {
            sm.key[tid] = key_of(a, list, chunk, tid, row_now, page_now, kD, blockIdx.z == 0);
        }
        __syncthreads();  // keys located; the previous chunk's PV is done
        row_now = row_next;
        page_now = page_of(a, list.slot, row_now);
        row_next = tid < kChunk ? selected_row(a, list, t, chunk + 2, tid) : -1;
        if (chunk >= window_chunks && a.comp_format == kQ4e) {
            load_q4e<kD, kTiles>(sm, warp, lane);
        } else {
            load_k<kD, kTiles>(sm, warp, lane);
        }
        __syncthreads();

        float s[kTiles][4] = {};
        float odd[kTiles][4] = {};  // every other 16 columns, for two chains of products
#pragma unroll 4
        for (int kk = 0; kk < kD; kk += 32) {
            uint32_t a0[4];
            uint32_t a1[4];
            ldmatrix4(a0, q_at + kk * 2);
            ldmatrix4(a1, q_at + kk * 2 + 32);
#pragma unroll
            for (int nt = 0; nt < kTiles; ++nt) {
                uint32_t b[4];
                ldmatrix4(b, k_at + nt * 8 * kPitch * 2 + kk * 2);
                mma(s[nt], a0, b[0], b[1]);
                mma(odd[nt], a1, b[2], b[3]);
            }
        }
        float high[2] = {kMinusInf, kMinusInf};
#pragma unroll
        for (int nt = 0; nt < kTiles; ++nt) {
            const int key = kg * 8 * kTiles + nt * 8 + 2 * c;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[nt][i] = sm.key[key + i % 2].format >= 0 ? (s[nt][i] + odd[nt][i]) * a.scale_log2
                                                           : kMinusInf;
                high[i / 2] = fmaxf(high[i / 2], s[nt][i]);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            high[i] = fmaxf(high[i], __shfl_xor_sync(~0u, high[i], 1));
            high[i] = fmaxf(high[i], __shfl_xor_sync(~0u, high[i], 2));
            if (c == 0) {
                sm.tops[kg][mt * 16 + r + 8 * i] = high[i];
            }
        }
        __syncthreads();
        float part[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = mt * 16 + r + 8 * i;
            float top = sm.top[parity][row];
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                top = fmaxf(top, sm.tops[g][row]);
            }
            if (kg == 0 && c == 0) {
                sm.top[parity ^ 1][row] = top;
            }
            const float shift = top == kMinusInf ? 0.0f : top;
#pragma unroll
            for (int nt = 0; nt < kTiles; ++nt) {
                const Terms<S::kTerms> w(exp2f(s[nt][2 * i] - shift),
                                         exp2f(s[nt][2 * i + 1] - shift));
                part[i] += w.sum();
                const int at = row * S::kPPitch + kg * 8 * kTiles + nt * 8 + 2 * c;
                *reinterpret_cast<uint32_t*>(sm.p + at) = w.term[0];
#pragma unroll
                for (int k = 1; k < S::kTerms; ++k) {
                    *reinterpret_cast<uint32_t*>(sm.p_low[k - 1] + at) = w.term[k];
                }
            }
            part[i] += __shfl_xor_sync(~0u, part[i], 1);
            part[i] += __shfl_xor_sync(~0u, part[i], 2);
            if (c == 0) {
                sm.sums[kg][row] = part[i];
            }
        }
        __syncthreads();
        const auto factor_of = [&](int row) {
            const float before = sm.top[parity][row];
            const float after = sm.top[parity ^ 1][row];
            return before == after ? 1.0f : exp2f(before - after);
        };
        if (tid < kRows) {
            float sum = sm.sum[tid] * factor_of(tid);
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                sum += sm.sums[g][tid];
            }
            sm.sum[tid] = sum;
        }
        if (n0 < kD) {
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
                const float f0 = factor_of(m * 16 + r);
                const float f1 = factor_of(m * 16 + r + 8);
#pragma unroll
                for (int nt = 0; nt < kOut; ++nt) {
                    o[m][nt][0] *= f0;
                    o[m][nt][1] *= f0;
                    o[m][nt][2] *= f1;
                    o[m][nt][3] *= f1;
                }
            }
#pragma unroll
            for (int ks = 0; ks < kChunk / 16; ++ks) {
                uint32_t w[kTiles][S::kTerms][4];
#pragma unroll
                for (int m = 0; m < kTiles; ++m) {
                    const int at = (m * 16 * S::kPPitch + ks * 16) * 2;
                    ldmatrix4(w[m][0], p_at + at);
#pragma unroll
                    for (int k = 1; k < S::kTerms; ++k) {
                        ldmatrix4(w[m][k], low_at + (k - 1) * sizeof(sm.p_low[0]) + at);
                    }
                }
#pragma unroll
                for (int nt = 0; nt < kOut; nt += 2) {
                    // With one n tile the second half of the load reads into the row's padding.
                    uint32_t b[4];
                    ldmatrix4_trans(b, v_at + (ks * 16 * kPitch + nt * 8) * 2);
#pragma unroll
                    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
                        for (int k = 0; k < S::kTerms; ++k) {
                            mma(o[m][nt], w[m][k], b[0], b[1]);
                        }
                        if constexpr (kOut > 1) {
#pragma unroll
                            for (int k = 0; k < S::kTerms; ++k) {
                                mma(o[m][nt + 1], w[m][k], b[2], b[3]);
                            }
                        }
                    }
                }
            }
        }
        parity ^= 1;
    }
    __syncthreads();

    // Writes one pair of neighbouring columns of head h.
    const auto store = [&](int head, int column, float x, float y) {
        if (head < a.H) {
            uint32_t w = pack(x, y);
            if (kTurn && column >= kD - a.R) {
                const float* cs = a.cs + int64_t{t} * a.R + (column - (kD - a.R)) / 2;
                w = turn(w, cs[0], -cs[a.R / 2]);
            }
            *reinterpret_cast<uint32_t*>(a.out + (int64_t{t} * a.H + head) * kD + column) = w;
        }
    };
    constexpr float kLog2e = 1.4426950408889634f;
    const auto sink_of = [&](int head) { return head < a.H ? a.sink[head] * kLog2e : kMinusInf; };

    if (ranks == 1) {
        if (n0 < kD) {
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int row = m * 16 + r + 8 * i;
                    const float top = sm.top[parity][row];
                    const float sink = sink_of(h0 + row);
                    const float most = fmaxf(top, sink);
                    float weight = 0;
                    if (top > kMinusInf) {
                        const float e = exp2f(top - most);
                        weight = e / (sm.sum[row] * e + exp2f(sink - most));
                    }
#pragma unroll
                    for (int nt = 0; nt < kOut; ++nt) {
                        const float x = o[m][nt][2 * i];
                        const float y = o[m][nt][2 * i + 1];
                        store(h0 + row, n0 + nt * 8 + 2 * c, weight == 0 ? 0.0f : x * weight,
                              weight == 0 ? 0.0f : y * weight);
                    }
                }
            }
        }
        return;
    }

    // Merge: every CTA leaves its part in shared memory and finishes a slice of the columns.
    if (n0 < kD) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int nt = 0; nt < kOut; ++nt) {
                float* at = sm.o + (m * 16 + r) * kD + n0 + nt * 8 + 2 * c;
                *reinterpret_cast<float2*>(at) = make_float2(o[m][nt][0], o[m][nt][1]);
                *reinterpret_cast<float2*>(at + 8 * kD) = make_float2(o[m][nt][2], o[m][nt][3]);
            }
        }
    }
    if (tid < kRows) {
        sm.top[0][tid] = sm.top[parity][tid];
    }
    cluster.sync();
    for (int i = tid; i < ranks * kRows; i += kThreads) {
        const int from = i / kRows;
        const int row = i % kRows;
        sm.part_top[from][row] = cluster.map_shared_rank(&sm.top[0][0], from)[row];
        sm.part_sum[from][row] = cluster.map_shared_rank(&sm.sum[0], from)[row];
    }
    __syncthreads();
    if (tid < kRows) {  // weights of the parts, in place of their tops
        const float sink = sink_of(h0 + tid);
        float most = sink;
        for (int i = 0; i < ranks; ++i) {
            most = fmaxf(most, sm.part_top[i][tid]);
        }
        float sum = 0;
        for (int i = 0; i < ranks; ++i) {
            const float top = sm.part_top[i][tid];
            const float e = top > kMinusInf ? exp2f(top - most) : 0.0f;
            sum += sm.part_sum[i][tid] * e;
            sm.part_top[i][tid] = e;
        }
        if (sum > 0) {
            sum += exp2f(sink - most);
            for (int i = 0; i < ranks; ++i) {
                sm.part_top[i][tid] /= sum;
            }
        } else {  // the parts vanish beside the sink, or there is no key
            for (int i = 0; i < ranks; ++i) {
                sm.part_top[i][tid] = 0;
            }
        }
    }
    __syncthreads();
    constexpr int kPairs = kD / 2;
    const int slice = (kPairs + ranks - 1) / ranks;
    for (int i = tid; i < kRows * slice; i += kThreads) {
        const int row = i / slice;
        const int pair = rank * slice + i % slice;
        if (pair >= kPairs) {
            continue;
        }
        float2 part[kMostRanks];
#pragma unroll
        for (int from = 0; from < kMostRanks; ++from) {
            part[from] = make_float2(0, 0);
            if (from < ranks && sm.part_top[from][row] != 0) {  // else the part may be anything
                part[from] = *reinterpret_cast<const float2*>(cluster.map_shared_rank(sm.o, from) +
                                                              row * kD + 2 * pair);
            }
        }
        float x = 0;
        float y = 0;
#pragma unroll
        for (int from = 0; from < kMostRanks; ++from) {
            if (from < ranks) {
                x = __fmaf_rn(sm.part_top[from][row], part[from].x, x);
                y = __fmaf_rn(sm.part_top[from][row], part[from].y, y);
            }
        }
        store(h0 + row, 2 * pair, x, y);
    }
    cluster.sync();  // others may still read this CTA's part
}

}  // namespace tenon::cuda::sparse
