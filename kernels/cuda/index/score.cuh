// SPDX-License-Identifier: MIT
// index.score: 32 keys a warp against all heads of up to four rows, by FP8 tensor-core products.
//
// E2M1 codes become E4M3 bytes by shifts alone. A group of 32 products of two E2M1 values is a
// multiple of 1/4 below 2^11, so the sum of one group is exact even with 14 kept bits; groups are
// added in f32, group 0 first. The four power-of-two scales of a query head are folded into its
// E4M3 bytes relative to one exponent a head, which goes into the head's weight; a row whose scales
// differ by more than 2^14 within a head is `wide` and takes the plain path. Heads are summed in
// four runs of equal length, each ascending by fma, then (run 0 + run 2) + (run 1 + run 3): at most
// 2^-20.3 times the sum of absolute terms from the exact sum. The order does not depend on T,
// column or tile.
//
// On Hopper the products are wgmma m64n32k32 (four warps of 16 keys, queries in shared memory),
// since its mma.sync emulates FP8; elsewhere mma.sync m16n8k32.
#pragma once

#include "common/wgmma.cuh"
#include "index/runs.cuh"

namespace tenon::cuda::index {

constexpr int kShare = 4;  // rows of a segment that share one unpacking of the keys
constexpr int kScoreThreads = 256;
constexpr int kScoreWarps = kScoreThreads / 32;
constexpr int kStages = 3;

__device__ inline uint32_t score_shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
/// Four E4M3 values as halves, exactly.
__device__ inline uint2 halves_of(uint32_t e4m3) {
    uint32_t out[2] = {__byte_perm(e4m3, 0, 0x1404), __byte_perm(e4m3, 0, 0x3424)};
#pragma unroll
    for (uint32_t& x : out) {  // 2^-8 times the values, subnormals included
        x = (x & 0x80008000u) | (x >> 1 & 0x3F803F80u);
        asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(x) : "r"(0x5C005C00u));
    }
    return make_uint2(out[0], out[1]);
}
/// The E4M3 product of group_sums where the tensor core has only halves. The sums are exact in
/// both.
__device__ inline void sum_as_halves(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const uint2 w[6] = {halves_of(a[0]), halves_of(a[1]), halves_of(a[2]),
                        halves_of(a[3]), halves_of(b0),   halves_of(b1)};
    d[0] = d[1] = d[2] = d[3] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // two columns of every four
        const auto of = [&](int i) { return half == 0 ? w[i].x : w[i].y; };
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(of(0)), "r"(of(1)), "r"(of(2)), "r"(of(3)), "r"(of(4)), "r"(of(5)));
    }
}

/// d[g][4 nt + k]: sums of group g of this warp's 16 keys with 32 heads; `q` is the shared address
/// of the heads' bytes of the first group, groups lie `group_bytes` apart. All four warps of a
/// warpgroup call together.
template <int kCount>
__device__ inline void group_sums(float (&d)[kCount][16], const uint32_t (&a)[kCount][4],
                                  uint32_t q, uint32_t group_bytes, int lane) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    // Bricks of 8 heads x 16 bytes, 128 bytes apart along k and 256 along heads, no swizzle.
    constexpr uint64_t kLayout = uint64_t{128 / 16} << 16 | uint64_t{256 / 16} << 32;
    wgmma_fence();
#pragma unroll
    for (int g = 0; g < kCount; ++g) {
        const uint64_t at = kLayout | ((q + g * group_bytes) & 0x3FFFFu) >> 4;
        asm volatile(
            "{\n.reg .pred none;\nsetp.ne.b32 none, 0, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, "
            "none, 1, "
            "1;\n}"
            : "+f"(d[g][0]), "+f"(d[g][1]), "+f"(d[g][2]), "+f"(d[g][3]), "+f"(d[g][4]),
              "+f"(d[g][5]), "+f"(d[g][6]), "+f"(d[g][7]), "+f"(d[g][8]), "+f"(d[g][9]),
              "+f"(d[g][10]), "+f"(d[g][11]), "+f"(d[g][12]), "+f"(d[g][13]), "+f"(d[g][14]),
              "+f"(d[g][15])
            : "r"(a[g][0]), "r"(a[g][1]), "r"(a[g][2]), "r"(a[g][3]), "l"(at));
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int g = 0; g < kCount; ++g) {
        hold(d[g]);
    }
#else
#pragma unroll
    for (int g = 0; g < kCount; ++g) {
#pragma unroll
        for (int nt = 0; nt < 4; ++nt) {
            uint32_t b0, b1;
            const uint32_t at = q + g * group_bytes + nt * 256 + lane * 4;
            asm("ld.shared.b32 %0, [%1];" : "=r"(b0) : "r"(at));
            asm("ld.shared.b32 %0, [%1];" : "=r"(b1) : "r"(at + 128));
            float* e = d[g] + 4 * nt;
            if constexpr (kHasE4m3Products) {
                asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, "
                    "{%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                    : "=f"(e[0]), "=f"(e[1]), "=f"(e[2]), "=f"(e[3])
                    : "r"(a[g][0]), "r"(a[g][1]), "r"(a[g][2]), "r"(a[g][3]), "r"(b0), "r"(b1),
                      "f"(0.0f));
            } else {
                sum_as_halves(e, a[g], b0, b1);
            }
        }
    }
#endif
}

// Eight E2M1 nibbles as two registers of E4M3 bytes, times 2^-6: even columns, odd columns.
__device__ inline void e2m1_to_e4m3(uint32_t x, uint32_t& even, uint32_t& odd) {
    even = (x << 4 & 0x80808080u) | (x << 2 & 0x1C1C1C1Cu);
    odd = (x & 0x80808080u) | (x >> 2 & 0x1C1C1C1Cu);
}

struct Stage {
    uint8_t codes[kTile * 64];  // 16-byte pieces of a row swizzled by row / 2
    uint32_t scales[kTile];
};

template <int kTiles>
struct ScoreShared {
    alignas(128) uint8_t q[kShare][kTiles * 8 * kWidth];
    float weight[kShare][kTiles * 8];
    Stage stage[kScoreWarps][kStages];
    uint32_t present[kScoreWarps][kStages];
    int visible[kShare];
};

// The score of compressed row `id` for row t by plain arithmetic with the sums of score_kernel;
// -inf where there is none.
__device__ inline float plain_score(const ScoreArgs& a, int t, int id, int Hp, bool bf16_keys) {
    const Row row = a.row[t];
    if (row.slot < 0 || id < 0 || id >= visible_rows(row.pos, a.keys.ratio)) {
        return kMinusInf;
    }
    const int index = a.keys.page_of(id);
    int page = -1;
    if (index < a.keys.table_width) {
        page = a.keys.table[int64_t{row.slot} * a.keys.table_width + index];
    }
    if (page < 0 || page >= a.keys.pages) {
        if (a.faults != nullptr) {
            atomicAdd(a.faults, 1ull);
        }
        return kMinusInf;
    }
    const int64_t code_bytes = bf16_keys ? a.Di * 2 : a.Di / 2;
    const int64_t scale_bytes = bf16_keys ? 0 : a.Di / 32;
    const uint8_t* base = a.keys.pool + page * a.keys.page_bytes;
    const int in_page = id - index * a.keys.rows_per_page;
    const uint8_t* codes = base + a.keys.codes_at + in_page * code_bytes;
    const uint8_t* scales = base + a.keys.scales_at + in_page * scale_bytes;
    float run[4] = {0, 0, 0, 0};
    const int each = Hp / 4;
#pragma unroll 1
    for (int h = 0; h < a.Hi; ++h) {
        const __nv_bfloat16* q = a.iq + (int64_t{t} * a.Hi + h) * a.Di;
        float dot = 0;
#pragma unroll 1
        for (int g = 0; g < a.Di / 32; ++g) {
            float sum = 0;
#pragma unroll 4
            for (int k = g * 32; k < g * 32 + 32; ++k) {
                float key;
                if (bf16_keys) {
                    key = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(codes)[k]);
                } else {
                    const uint32_t n = codes[k / 2] >> (k % 2 * 4) & 15u;
                    const uint32_t e4m3 = (n & 8u) << 28 | (n & 7u) << 22;  // 2^-6 times 2^-120
                    key = __uint_as_float(e4m3) * 0x1p126f * e8m0(scales[g]);
                }
                sum = __fmaf_rn(__bfloat162float(q[k]), key, sum);
            }
            dot = g == 0 ? sum : dot + sum;
        }
        const float w = __bfloat162float(a.w[int64_t{t} * a.Hi + h]) * a.w_scale;
        const int which = h / each;
        dot = fmaxf(dot, 0.0f);
        run[0] = which == 0 ? __fmaf_rn(w, dot, run[0]) : run[0];
        run[1] = which == 1 ? __fmaf_rn(w, dot, run[1]) : run[1];
        run[2] = which == 2 ? __fmaf_rn(w, dot, run[2]) : run[2];
        run[3] = which == 3 ? __fmaf_rn(w, dot, run[3]) : run[3];
    }
    return (run[0] + run[2]) + (run[1] + run[3]);
}

// A batch with a wide row, tiles [first, last).
__device__ inline void score_plain_batch(const ScoreArgs& a, const Batch& b, int first, int last,
                                         int Hp, unsigned* hist) {
    for (int i = 0; i < b.rows; ++i) {
        const int t = b.row0 + i;
        const int64_t end = min(scored_columns(a, t), int64_t{last} * kTile);
        const Columns map{a.cand == nullptr ? nullptr : a.cand + int64_t{t} * a.C, a.block};
        for (int64_t j = int64_t{first} * kTile + threadIdx.x; j < end; j += blockDim.x) {
            const float score = plain_score(a, t, map.id(static_cast<int>(j)), Hp, false);
            a.out[t * a.stride + j] = score;
            const uint32_t key = order_key(score);
            if (hist != nullptr && key != 0) {
                atomicAdd(&hist[int64_t{t} * kBins + bin_of(key)], 1u);
            }
        }
    }
}

// Persistent: each block takes an equal run of the tiles of all batches. kPaged: columns are rows
// in order and a tile never crosses pages.
template <int kTiles, bool kPaged>
__global__ void __launch_bounds__(kScoreThreads, 2)
    score_kernel(const __grid_constant__ ScoreArgs a) {
    extern __shared__ __align__(128) uint8_t score_bytes[];
    auto& sm = *reinterpret_cast<ScoreShared<kTiles>*>(score_bytes);
    unsigned* hist = reinterpret_cast<unsigned*>(score_bytes + sizeof(ScoreShared<kTiles>));
    constexpr int kHeads = kTiles * 8;
    const Prepared& p = a.prepared;
    const int tid = threadIdx.x;
    const int warp = tid / 32;
    const int lane = tid % 32;
    const int r = lane / 4;
    const int c = lane % 4;

    start_when_ready();
    auto [at, end, batch] = run_of_block(p, a.T);

    for (; at < end; ++batch) {
        const Batch b = p.batch[batch];
        const int tile_base = p.first_tile[batch];
        const int first = at - tile_base;
        const int last = min(end, p.first_tile[batch + 1]) - tile_base;
        at = tile_base + last;
        const int most = visible_rows(a.row[b.row0 + b.rows - 1].pos, a.keys.ratio);  // rows ascend
        bool wide = false;
        for (int i = 0; i < b.rows; ++i) {
            wide = wide || p.wide[b.row0 + i] != 0;
        }
        if (wide) {
            score_plain_batch(a, b, first, last, kHeads,
                              most > a.hist_visible && a.hist_visible >= 0 ? p.hist : nullptr);
            continue;
        }
        const int columns = static_cast<int>(a.cand != nullptr || a.N < most ? a.N : most);
        const Columns map{a.cand == nullptr ? nullptr : a.cand + int64_t{b.row0} * a.C, a.block};

        // Pages of the next tile to load are looked up one step ahead of their use.
        constexpr int kLookups = kPaged ? 1 : 4;
        int page[kLookups];
        const auto id_of = [&](int column) {
            const int id = column >= columns ? -1 : kPaged ? column : map.id(column);
            return id < most ? id : -1;
        };
        const auto locate = [&](int tile) {
#pragma unroll
            for (int i = 0; i < kLookups; ++i) {
                const int id = tile < last ? id_of(tile * kTile + (kPaged ? 0 : 8 * i + r)) : -1;
                page[i] = -1;
                if (id >= 0) {
                    const int index = a.keys.page_of(id);
                    if (index < a.keys.table_width) {
                        page[i] = a.keys.table[int64_t{b.slot} * a.keys.table_width + index];
                    }
                }
            }
        };
        const auto load = [&](int tile, int stage) {
            Stage& s = sm.stage[warp][stage];
            bool mine = false;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = 8 * i + r;
                const int id = tile < last ? id_of(tile * kTile + key) : -1;
                const int where = page[kPaged ? 0 : i];
                const bool there = id >= 0 && where >= 0 && where < a.keys.pages;
                if (c == 0 && id >= 0 && !there && a.faults != nullptr) {
                    atomicAdd(a.faults, 1ull);
                }
                const uint8_t* base = a.keys.pool;
                int in_page = 0;
                if (there) {
                    base += where * a.keys.page_bytes;
                    in_page = id - a.keys.page_of(id) * a.keys.rows_per_page;
                }
                const uint32_t to =
                    score_shared_address(s.codes + key * 64 + ((c ^ (key >> 1 & 3)) * 16));
                const uint8_t* from = there ? base + a.keys.codes_at + in_page * 64 + c * 16 : base;
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                             "r"(there ? 16 : 0));
                if (i == c) {
                    const uint32_t scale_to = score_shared_address(&s.scales[key]);
                    const uint8_t* scale = there ? base + a.keys.scales_at + in_page * 4 : base;
                    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(scale_to),
                                 "l"(scale), "r"(there ? 4 : 0));
                    mine = there;
                }
            }
            const uint32_t present = __ballot_sync(~0u, mine);  // bit: key lane / 4 + 8 (lane % 4)
            if (lane == 0) {
                sm.present[warp][stage] = present;
            }
            asm volatile("cp.async.commit_group;");
        };

        __syncthreads();  // the previous batch is done with q and hist
        if (tid < b.rows) {
            sm.visible[tid] = visible_rows(a.row[b.row0 + tid].pos, a.keys.ratio);
        }
        locate(first + warp);
#pragma unroll
        for (int s = 0; s < kStages - 1; ++s) {
            load(first + warp + s * kScoreWarps, s);
            locate(first + warp + (s + 1) * kScoreWarps);
        }
        for (int i = tid; i < b.rows * kHeads * kWidth / 16; i += kScoreThreads) {
            reinterpret_cast<uint4*>(sm.q)[i] =
                reinterpret_cast<const uint4*>(p.q + int64_t{b.row0} * kHeads * kWidth)[i];
        }
        for (int i = tid; i < b.rows * kHeads; i += kScoreThreads) {
            (&sm.weight[0][0])[i] = p.weight[int64_t{b.row0} * kHeads + i];
        }
        bool counts = false;
        if (a.hist_visible >= 0) {
            counts = most > a.hist_visible;
            if (counts) {
                for (int i = tid; i < b.rows * kBins; i += kScoreThreads) {
                    hist[i] = 0;
                }
            }
        }
        shared_to_async();  // q
        __syncthreads();

        int stage = 0;
        // All warps make the same rounds, since four of them share a product; a tile beyond the end
        // has no keys.
        for (int round = first; round < last; round += kScoreWarps) {
            const int tile = round + warp;
            asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
            __syncwarp();
            const Stage& s = sm.stage[warp][stage];
            const uint32_t present = sm.present[warp][stage];
            load(tile + (kStages - 1) * kScoreWarps,
                 (stage + kStages - 1) % kStages);  // of the last round
            locate(tile + kStages * kScoreWarps);
#pragma unroll 1
            for (int m = 0; m < 2; ++m) {
                uint32_t fragment[kGroups][4];
                float scale[2][kGroups];
#pragma unroll
                for (int g = 0; g < kGroups; g += 2) {
                    const int key = m * 16 + lane % 16;
                    const int piece = (g + lane / 16) ^ (key >> 1 & 3);
                    uint32_t w[4];
                    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                                 : "r"(score_shared_address(s.codes + key * 64 + piece * 16)));
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        e2m1_to_e4m3(w[k], fragment[g + k / 2][k % 2],
                                     fragment[g + k / 2][2 + k % 2]);
                    }
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const uint32_t codes = s.scales[m * 16 + half * 8 + r];
                    scale[half][0] = __uint_as_float(codes << 23 & 0x7F800000u);
                    scale[half][1] = __uint_as_float(codes << 15 & 0x7F800000u);
                    scale[half][2] = __uint_as_float(codes << 7 & 0x7F800000u);
                    scale[half][3] = __uint_as_float(codes >> 1 & 0x7F800000u);
                }
                // After the sum over a quad, lanes 0 and 1 hold key r, lanes 2 and 3 key r + 8.
                const int eight = 2 * m + c / 2;
                const int column = tile * kTile + 8 * eight + r;
                const int id_here = tile < last ? id_of(column) : -1;
                const bool there = (present >> (r * 4 + eight) & 1u) != 0;  // implies an id
#pragma unroll 1
                for (int i = 0; i < b.rows; ++i) {
                    float part[2] = {0, 0};
#pragma unroll
                    for (int eights = 0; eights < kTiles; eights += 4) {
                        float d[kGroups][16];
                        group_sums(d, fragment, score_shared_address(sm.q[i]) + eights * 256,
                                   kTiles * 256, lane);
#pragma unroll
                        for (int nt = 0; nt < 4; ++nt) {
                            const float2 weight = *reinterpret_cast<const float2*>(
                                &sm.weight[i][c * 2 * kTiles + 2 * (eights + nt)]);
#pragma unroll
                            for (int k = 0; k < 4; ++k) {
                                float dot = d[0][4 * nt + k] * scale[k / 2][0];
#pragma unroll
                                for (int g = 1; g < kGroups; ++g) {
                                    dot = __fmaf_rn(d[g][4 * nt + k], scale[k / 2][g], dot);
                                }
                                part[k / 2] = __fmaf_rn(k % 2 == 0 ? weight.x : weight.y,
                                                        fmaxf(dot, 0.0f), part[k / 2]);
                            }
                        }
                    }
                    const bool upper = c >= 2;
                    float score = upper ? part[1] : part[0];
                    score += __shfl_xor_sync(~0u, upper ? part[0] : part[1], 2);
                    score += __shfl_xor_sync(~0u, score, 1);
                    const int visible = sm.visible[i];
                    const int limit = a.cand != nullptr ? columns : min(columns, visible);
                    if (tile < last && column < limit && c % 2 == 0) {
                        const float value = there && id_here < visible ? score : kMinusInf;
                        a.out[(b.row0 + i) * a.stride + column] = value;
                        if (counts) {
                            const uint32_t key = order_key(value);
                            if (key != 0) {
                                atomicAdd(&hist[i * kBins + bin_of(key)], 1u);
                            }
                        }
                    }
                }
            }
            stage = (stage + 1) % kStages;
        }
        asm volatile("cp.async.wait_all;");
        __syncthreads();
        if (counts) {
            add_counts<kScoreThreads>(p, b, hist);
        }
    }
}

// Any width in whole groups and bf16 keys: one thread a column, the sums of score_kernel.
__global__ void __launch_bounds__(256)
    score_plain_kernel(const __grid_constant__ ScoreArgs a, int Hp, bool bf16_keys) {
    start_when_ready();
    const int t = blockIdx.y;
    const Columns map{a.cand == nullptr ? nullptr : a.cand + int64_t{t} * a.C, a.block};
    for (int64_t j = int64_t{blockIdx.x} * 256 + threadIdx.x; j < a.N;
         j += int64_t{gridDim.x} * 256) {
        a.out[t * a.stride + j] = plain_score(a, t, map.id(static_cast<int>(j)), Hp, bf16_keys);
    }
}

}  // namespace tenon::cuda::index
