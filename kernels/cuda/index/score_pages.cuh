// SPDX-License-Identifier: MIT
// index.score over whole pages: 32 keys a warp against all heads of up to eight rows of a slot, by
// int8 tensor-core products whose sums are exact.
//
// Twice an E2M1 value is an integer of at most 12. The four power-of-two scales of a key (a head)
// are folded into these integers relative to the largest: exact in int8 while they differ by at
// most 2^2 (2^3), and then one int32 sum of 128 products is the exact dot. A key or a row whose
// scales differ by more takes sums of single groups, added in f32, group 0 first. Both give the
// same number wherever both apply, and the one of the FP8 kernel (score.cuh).
//
// A key's bytes are 64 above its integers, so that one byte permutation each serves positive and
// negative codes (the other one gives 0), and 64 times the sum of a head's bytes is taken off in
// front of the relu. The non-negative int32 then counts as a denormal f32: it is d 2^-149, and the
// weight of the head carries the rest.
//
// Heads are summed as in score.cuh: four runs, each ascending by fma, (0 + 2) + (1 + 3).
#pragma once

#include "common/async.cuh"
#include "index/score.cuh"

namespace tenon::cuda::index {

constexpr int kRowsShared = 8;  // rows of a segment that share one unpacking of a key

__device__ inline void mbarrier_init(uint64_t* bar, unsigned count) {
    async::barrier_init(bar, count);
}
__device__ inline void mbarrier_wait(uint64_t* bar, unsigned phase) {
    if constexpr (kHasBulkCopies) {
        asm volatile(
            "{\n.reg .pred done;\nagain:\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
                score_shared_address(bar)),
            "r"(phase)
            : "memory");
    } else {
        async::barrier_wait(bar, phase);
    }
}
__device__ inline void bulk_load(void* to, const void* from, unsigned bytes, uint64_t* bar) {
    async::bulk_load_kept(to, from, bytes, bar);
}

__device__ inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t r;  // __byte_perm would mask the sign bits of the selector
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(selector));
    return r;
}

/// Bytes of E2M1 codes times 2 and a factor, plus 64. `one` is 1, unknown to the compiler: shifts
/// and sums as products leave the integer pipe, which is the busy one, to the permutations.
struct KeyTable {
    uint32_t up[2], down[2], one;
    __device__ KeyTable(uint32_t factor, uint32_t one_) : one(one_) {
        constexpr uint32_t kZero = 0x40404040u;
        constexpr uint32_t kSteps[2] = {0x03020100u, 0x0C080604u};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            up[i] = kSteps[i] * factor + kZero;
            down[i] = (0u - kSteps[i]) * factor + kZero;
        }
    }
    __device__ uint32_t upper(uint32_t x) const {
        return __umulhi(x, one << 16);
    }
    /// Eight codes: columns 0..3, columns 4..7.
    __device__ void bytes(uint32_t x, uint32_t& low, uint32_t& high) const {
        const uint32_t y = x ^ 0x88888888u;
        // A selector with a set sign bit replicates the sign of the byte: 0.
        low = permute(up[0], up[1], x) * one + permute(down[0], down[1], y);
        high = permute(up[0], up[1], upper(x)) * one + permute(down[0], down[1], upper(y));
    }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// d += a b over 32 columns, b at the descriptor; all four warps of a warpgroup call together.
template <int N>
__device__ inline void wgmma_s8(int (&d)[N / 2], const uint32_t* a, uint64_t b, int add);

template <>
__device__ inline void wgmma_s8<32>(int (&d)[16], const uint32_t* a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p;\n}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
          "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
          "+r"(d[14]), "+r"(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
template <>
__device__ inline void wgmma_s8<64>(int (&d)[32], const uint32_t* a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, %36, p;\n}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
          "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
          "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]),
          "+r"(d[21]), "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]),
          "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
#endif

__device__ inline void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline uint32_t shared_word(uint32_t at) {
    uint32_t w;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w) : "r"(at));
    return w;
}

/// Starts d = the sums over 128 columns of this warp's 16 keys with N heads at shared address `q`,
/// whose k steps lie `step` bytes apart.
template <int N>
__device__ inline void start_sums(int (&d)[N / 2], const uint32_t (&a)[16], uint32_t q,
                                  uint32_t step, int lane) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr uint64_t kLayout = uint64_t{128 / 16} << 16 | uint64_t{256 / 16} << 32;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        wgmma_s8<N>(d, a + 4 * s, kLayout | ((q + s * step) & 0x3FFFFu) >> 4, s > 0);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
#pragma unroll
    for (int nt = 0; nt < N / 8; ++nt) {
        int e[4] = {0, 0, 0, 0};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            const uint32_t at = q + s * step + nt * 256 + lane * 4;
            const uint32_t f[4] = {a[4 * s], a[4 * s + 1], a[4 * s + 2], a[4 * s + 3]};
            mma_s8(e, f, shared_word(at), shared_word(at + 128));
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            d[4 * nt + k] = e[k];
        }
    }
#endif
}
/// Waits until at most `kOpen` started sums are open; d is one of the others. Not before `after`.
template <int kOpen, int N>
__device__ inline void finish_sums(int (&d)[N], float& after) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.wait_group.sync.aligned %1;" : "+f"(after) : "n"(kOpen) : "memory");
#pragma unroll
    for (int i = 0; i < N; ++i) {
        asm volatile("" : "+r"(d[i])::"memory");  // no use may move above the wait
    }
#endif
}

struct PageStage {
    uint8_t codes[kTile * 64];
    uint8_t scales[kTile * 4];
};

/// Warps of a block, by the registers that a product with 32 kProducts heads needs.
template <int kProducts>
constexpr int kPageWarps = kProducts == 1 ? 16 : 12;

/// The bytes of the rows' heads and the histograms follow.
template <int kWarps, int kBlocks, int kPageStages>
struct PageShared {
    alignas(128) PageStage stage[kWarps][kPageStages];
    uint64_t full[kWarps][kPageStages];
    const uint8_t* tile[kWarps][kPageStages];  // codes of the keys, or null
    int4 weight[kRowsShared][kBlocks * 16];
    float4 factor[kRowsShared][kBlocks * 32];  // of the groups of a head
    struct alignas(16) RowOut {
        float* out;
        float factor;
        int limit;  // columns with scores
    } row[kRowsShared];
    int wide[kRowsShared];
};

/// Score of key lane / 4 + 8 (lane % 4 / 2) + 16 (lane % 2) of a tile by sums of single groups,
/// before the factors of row and key. `q` is the shared address of the row's heads, `codes` and
/// `scales` are those of the tile's first key, `largest` the largest scale of the keys r, r + 8,
/// r + 16, r + 24.
template <int kBlocks>
__device__ __forceinline__ float group_score(const uint8_t* codes, const uint8_t* scales,
                                             uint32_t q, uint32_t step, const int4* weight,
                                             const float4* factor) {
    const int lane = threadIdx.x % 32;
    const int r = lane / 4;
    const int c = lane % 4;
    float sum[2] = {0, 0};
#pragma unroll 1
    for (int m = 0; m < 2; ++m) {
        uint32_t a[kGroups][4];
        float scale[2][kGroups];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int key = 16 * m + 8 * half + r;
            const uint32_t e = *reinterpret_cast<const uint32_t*>(scales + key * 4);
            int largest = 0;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                largest = max(largest, static_cast<int>(e >> 8 * g & 255u));
            }
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                // Word c of the group: columns 8 c .. 8 c + 7.
                const uint32_t x =
                    *reinterpret_cast<const uint32_t*>(codes + key * 64 + g * 16 + c * 4);
                uint32_t low, high;
                KeyTable(1, 1).bytes(x, low, high);
                a[g][half] = __vadd4(low, 0xC0C0C0C0u);
                a[g][2 + half] = __vadd4(high, 0xC0C0C0C0u);
                scale[half][g] =
                    ldexpf(1.0f, static_cast<int>(e >> 8 * g & 255u) - largest + kKeyOctaves - 49);
            }
        }
        float part[2] = {0, 0};
#pragma unroll 1
        for (int nt = 0; nt < 4 * kBlocks; ++nt) {
            const float4* of_head = factor + c * 8 * kBlocks + 2 * nt;
            const float4 both[2] = {of_head[0], of_head[1]};
            float dot[4] = {0, 0, 0, 0};
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                // The bytes of these columns stand in k step c, bytes 4 g .. 4 g + 3 of each half.
                const uint32_t at = q + c * step + nt * 256 + r * 16 + g * 4;
                int d[4] = {0, 0, 0, 0};
                mma_s8(d, a[g], shared_word(at), shared_word(at + 128));
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const float4& f = both[k % 2];
                    const float s = static_cast<float>(d[k]) * (g == 0   ? f.x
                                                                : g == 1 ? f.y
                                                                : g == 2 ? f.z
                                                                         : f.w);
                    dot[k] = g == 0 ? s * scale[k / 2][g] : __fmaf_rn(s, scale[k / 2][g], dot[k]);
                }
            }
            const int4 w = weight[nt * 4 + c];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float wk = __int_as_float(k % 2 == 0 ? w.x : w.y) * 0x1p-100f;
                part[k / 2] = __fmaf_rn(wk, fmaxf(dot[k], 0.0f), part[k / 2]);
            }
        }
        float s = c >= 2 ? part[1] : part[0];
        s += __shfl_xor_sync(~0u, c >= 2 ? part[0] : part[1], 2);
        s += __shfl_xor_sync(~0u, s, 1);
        sum[m] = s;
    }
    return c % 2 == 0 ? sum[0] : sum[1];
}

// Persistent: each block takes an equal run of the tiles of all batches. kRows: rows of a product.
template <int kRows, int kBlocks, int kPageStages>
__global__ void __launch_bounds__(kPageWarps<kRows * kBlocks> * 32, 1)
    score_pages_kernel(const __grid_constant__ ScoreArgs a) {
    constexpr int kWarps = kPageWarps<kRows * kBlocks>;
    constexpr int kThreads = kWarps * 32;
    extern __shared__ __align__(128) uint8_t page_bytes[];
    using Shared = PageShared<kWarps, kBlocks, kPageStages>;
    auto& sm = *reinterpret_cast<Shared*>(page_bytes);
    uint8_t* sm_q = page_bytes + sizeof(Shared);  // a multiple of 128
    constexpr int kHeads = kBlocks * 32;
    constexpr int kColumns = kRows * kHeads;  // of a product
    constexpr int kRowBytes = kHeads * kWidth;
    unsigned* hist = reinterpret_cast<unsigned*>(sm_q + a.share * kRowBytes);
    const Prepared& p = a.prepared;
    const int tid = threadIdx.x;
    const int warp = tid / 32;
    const int lane = tid % 32;
    const int r = lane / 4;
    const int c = lane % 4;
    const uint32_t step = a.share * kHeads * 32;  // bytes of a k step

    if (lane == 0) {
#pragma unroll
        for (int s = 0; s < kPageStages; ++s) {
            mbarrier_init(&sm.full[warp][s], 1);
        }
        if constexpr (kHasBulkCopies) {
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
    }
    __syncwarp();
    int stage = 0;  // of the next tile to use, and its phase
    unsigned phase = 0;
    int fetch_stage = 0;  // of the next tile to load
    const uint32_t one = blockDim.y;
    start_when_ready();

    const int batches = *p.batches;
    const int total = p.first_tile[batches];
    const int grid = static_cast<int>(gridDim.x);
    const int block = static_cast<int>(blockIdx.x);
    const int more = total % grid;  // the first `more` blocks take one tile more
    int at = total / grid * block + min(block, more);
    const int end = at + total / grid + (block < more ? 1 : 0);
    int batch = 0;
    for (int low = 0, high = batches; low < high;) {  // last batch that starts at or before `at`
        const int middle = (low + high) / 2;
        if (p.first_tile[middle] <= at) {
            batch = middle;
            low = middle + 1;
        } else {
            high = middle;
        }
    }

    for (; at < end; ++batch) {
        const Batch b = p.batch[batch];
        const int tile_base = p.first_tile[batch];
        const int first = at - tile_base;
        const int last = min(end, p.first_tile[batch + 1]) - tile_base;
        at = tile_base + last;
        const int most = visible_rows(a.row[b.row0 + b.rows - 1].pos, a.keys.ratio);  // rows ascend
        const int columns = static_cast<int>(a.N < most ? a.N : most);

        // A warp takes a run of tiles, so that it looks up a page once. Lane 0 asks for the next
        // page while it loads from this one.
        const int rounds = (last - first + kWarps - 1) / kWarps;
        const int run = first + warp * rounds;
        const int run_end = min(run + rounds, last);
        int fetch = run;     // next tile to load
        int left = 0;        // tiles of its page from it on
        int page_index = 0;  // of the page after its own
        int next_page = -1;
        const uint8_t* codes_from = nullptr;  // null: the page is missing
        const uint8_t* scales_from = nullptr;
        const auto look_up = [&](int index) {
            return index < a.keys.table_width
                       ? a.keys.table[int64_t{b.slot} * a.keys.table_width + index]
                       : -1;
        };
        const auto turn_page = [&](int page, int row) {
            codes_from = nullptr;
            if (page >= 0 && page < a.keys.pages) {
                const uint8_t* base = a.keys.pool + page * a.keys.page_bytes;
                codes_from = base + a.keys.codes_at + row * 64;
                scales_from = base + a.keys.scales_at + row * 4;
            }
            left = (a.keys.rows_per_page - row) / kTile;
            next_page = look_up(page_index);
        };
        const auto load = [&] {  // by lane 0
            if (fetch >= run_end) {
                return;
            }
            uint64_t* full = &sm.full[warp][fetch_stage];
            sm.tile[warp][fetch_stage] = codes_from;
            if (codes_from != nullptr) {
                PageStage& s = sm.stage[warp][fetch_stage];
                async::barrier_expect(full, sizeof(PageStage));
                bulk_load(s.codes, codes_from, sizeof(s.codes), full);
                bulk_load(s.scales, scales_from, sizeof(s.scales), full);
                async::loads_sent(full);
                codes_from += sizeof(s.codes);
                scales_from += sizeof(s.scales);
            } else {
                if (a.faults != nullptr) {
                    atomicAdd(a.faults, 1ull);
                }
                asm volatile(
                    "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(score_shared_address(full))
                    : "memory");
            }
            fetch_stage = fetch_stage + 1 == kPageStages ? 0 : fetch_stage + 1;
            ++fetch;
            if (--left == 0) {
                ++page_index;
                turn_page(next_page, 0);
            }
        };

        __syncthreads();  // the previous batch is done with q and hist
        if (lane == 0 && run < run_end) {
            page_index = a.keys.page_of(run * kTile);
            const int row = run * kTile - page_index * a.keys.rows_per_page;
            const int page = look_up(page_index);
            ++page_index;
            turn_page(page, row);
#pragma unroll 1
            for (int s = 0; s < kPageStages; ++s) {
                load();
            }
        }
        // [row][k step][head block] -> [k step][row][head block], 1 KiB pieces of 32 heads
        for (int i = tid; i < b.rows * kRowBytes / 16; i += kThreads) {
            const int row = i / (kRowBytes / 16);
            const int in_row = i % (kRowBytes / 16);
            const int k = in_row / (kHeads * 2);
            const int rest = in_row % (kHeads * 2);
            reinterpret_cast<uint4*>(sm_q)[(k * a.share + row) * kHeads * 2 + rest] =
                reinterpret_cast<const uint4*>(p.q + int64_t{b.row0} * kRowBytes)[i];
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
            sm.row[tid] = {a.out + row * a.stride, p.row_factor[row],
                           min(columns, visible_rows(a.row[row].pos, a.keys.ratio))};
            sm.wide[tid] = p.wide[row];
        }
        const bool counts = a.hist_visible >= 0 && most > a.hist_visible;
        if (counts) {
            for (int i = tid; i < b.rows * kBins; i += kThreads) {
                hist[i] = 0;
            }
        }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        asm volatile("fence.proxy.async.shared::cta;" ::
                         : "memory");  // q is read by the async proxy
#endif
        __syncthreads();

        // All warps make the same rounds, since four of them share a product; a tile beyond the
        // run has no keys.
#pragma unroll 1
        for (int round = 0; round < rounds; ++round) {
            const int tile = run + round;
            const bool there = tile < run_end;
            const PageStage& s = sm.stage[warp][stage];
            if (there) {
                mbarrier_wait(&sm.full[warp][stage], phase);
            }
            const uint8_t* codes_at = there ? sm.tile[warp][stage] : nullptr;
            uint4 raw[2][2];
            uint32_t scale[2];  // of keys r (low half) and r + 8
#pragma unroll
            for (int m = 0; m < 2; ++m) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    raw[m][half] = *reinterpret_cast<const uint4*>(
                        s.codes + (16 * m + 8 * half + r) * 64 + c * 16);
                }
                scale[m] = s.scales[(16 * m + r) * 4 + c] |
                           static_cast<uint32_t>(s.scales[(16 * m + 8 + r) * 4 + c]) << 16;
            }
            __syncwarp();  // the stage is read
            if (lane == 0) {
                load();
            }
            if (there) {
                stage = stage + 1 == kPageStages ? 0 : stage + 1;
                phase ^= stage == 0 ? 1u : 0u;
            }

            uint32_t largest[2];
            uint32_t below[2];  // octaves below the largest
            uint32_t fragment[2][16];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                largest[m] = __vmaxu2(scale[m], __shfl_xor_sync(~0u, scale[m], 1));
                largest[m] = __vmaxu2(largest[m], __shfl_xor_sync(~0u, largest[m], 2));
                below[m] = largest[m] - scale[m];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const uint32_t down = half == 0 ? below[m] & 0xFFFFu : below[m] >> 16;
                    const KeyTable table(__funnelshift_rc(1u << kKeyOctaves, 0, down), one);
                    const uint32_t x[4] = {raw[m][half].x, raw[m][half].y, raw[m][half].z,
                                           raw[m][half].w};
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        table.bytes(x[k], fragment[m][4 * k + half], fragment[m][4 * k + 2 + half]);
                    }
                }
            }
            // Keys whose scales differ too much, unless the small groups are zero.
            bool wide_key = false;
            if (__any_sync(~0u, (((below[0] + 0x00010001u) | (below[1] + 0x00010001u)) &
                                 0xFFFCFFFCu) != 0)) {
                unsigned bits = 0;
#pragma unroll
                for (int m = 0; m < 2; ++m) {
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const uint32_t down = half == 0 ? below[m] & 0xFFFFu : below[m] >> 16;
                        const uint4& x = raw[m][half];
                        const bool wide =
                            down > kKeyOctaves && ((x.x | x.y | x.z | x.w) & 0x77777777u) != 0;
                        const unsigned vote = __ballot_sync(~0u, wide);
                        if ((vote >> (r * 4) & 15u) != 0) {
                            bits |= 1u << (m + 2 * half);  // m = c % 2, half = c / 2
                        }
                    }
                }
                wide_key = (bits >> c & 1u) != 0;
            }
            const bool any_wide = __any_sync(~0u, wide_key);

            // This lane ends with key r + 8 (c / 2) + 16 (c % 2) of the tile.
            const int column = tile * kTile + 16 * (c % 2) + 8 * (c / 2) + r;
            const uint32_t e = (c % 2 == 0 ? largest[0] : largest[1]) >> (c / 2 * 16) & 0xFFFFu;
            const float key_factor = __uint_as_float(e == 0 ? 0x00400000u : e << 23);

#pragma unroll 1
            for (int i0 = 0; i0 < b.rows; i0 += kRows) {
                int d[2][kColumns / 2];
                const uint32_t q = score_shared_address(sm_q) + i0 * kHeads * 32;
                start_sums<kColumns>(d[0], fragment[0], q, step, lane);
                start_sums<kColumns>(d[1], fragment[1], q, step, lane);
                float half_sum[kRows][2] = {};
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    if (m == 0) {
                        finish_sums<1>(d[0], half_sum[0][0]);
                    } else {
                        finish_sums<0>(d[1], half_sum[kRows - 1][0]);
                    }
#pragma unroll
                    for (int i = 0; i < kRows; ++i) {
                        float part[2] = {0, 0};
#pragma unroll
                        for (int nt = 0; nt < 4 * kBlocks; ++nt) {
                            const int4 w = sm.weight[i0 + i][nt * 4 + c];
#pragma unroll
                            for (int k = 0; k < 4; ++k) {
                                const int sum = __viaddmax_s32(d[m][16 * kBlocks * i + 4 * nt + k],
                                                               k % 2 == 0 ? w.z : w.w, 0);
                                part[k / 2] = __fmaf_rn(__int_as_float(k % 2 == 0 ? w.x : w.y),
                                                        __int_as_float(sum), part[k / 2]);
                            }
                        }
                        half_sum[i][m] = (c >= 2 ? part[1] : part[0]) +
                                         __shfl_xor_sync(~0u, c >= 2 ? part[0] : part[1], 2);
                    }
                }
#pragma unroll
                for (int i = 0; i < kRows; ++i) {
                    const bool odd = c % 2 != 0;
                    float score = (odd ? half_sum[i][1] : half_sum[i][0]) +
                                  __shfl_xor_sync(~0u, odd ? half_sum[i][0] : half_sum[i][1], 1);
                    const int row = i0 + i;
                    if (row >= b.rows) {
                        break;
                    }
                    if ((any_wide || (batch_wide && sm.wide[row] != 0)) && codes_at != nullptr) {
                        const float other = group_score<kBlocks>(
                            codes_at,
                            codes_at + (a.keys.scales_at - a.keys.codes_at) -
                                (tile * kTile % a.keys.rows_per_page) * 60,
                            q + i * kHeads * 32, step, sm.weight[row], sm.factor[row]);
                        score = wide_key || sm.wide[row] != 0 ? other : score;
                    }
                    const auto info = sm.row[row];
                    if (there && column < info.limit) {
                        const float value =
                            codes_at == nullptr ? kMinusInf : score * info.factor * key_factor;
                        info.out[column] = value;
                        if (counts && value > kMinusInf) {
                            const uint32_t u = __float_as_uint(value + 0.0f);  // -0 counts as 0
                            const uint32_t key =
                                u ^
                                (static_cast<uint32_t>(static_cast<int>(u) >> 31) | 0x80000000u);
                            atomicAdd(&hist[row * kBins + bin_of(key)], 1u);
                        }
                    }
                }
            }
        }
        __syncthreads();
        if (counts) {
            for (int i = tid; i < b.rows * kBins; i += kThreads) {
                if (hist[i] != 0) {
                    atomicAdd(&p.hist[int64_t{b.row0} * kBins + i], hist[i]);
                }
            }
        }
    }
}

}  // namespace tenon::cuda::index
