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
#include "index/score.cuh"

namespace tenon::cuda::index {

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
/// Before bulk_load: `bytes` more will come.
__device__ inline void expect_bytes(uint64_t* bar, unsigned bytes) {
    if constexpr (kHasBulkCopies) {
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(
                         score_shared_address(bar)),
                     "r"(bytes)
                     : "memory");
    }
}
/// The one arrival of a thread after any number of bulk_load.
__device__ inline void all_loads_sent(uint64_t* bar) {
    if constexpr (kHasBulkCopies) {
        async::barrier_arrive(bar);
    } else {
        async::loads_sent(bar);
    }
}

__device__ inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t r;  // __byte_perm would mask the sign bits of the selector
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(selector));
    return r;
}

/// Bytes of E2M1 codes times 2 and a factor. `one` is 1, unknown to the compiler: shifts and sums
/// as products leave the integer pipe, which is the busy one, to the permutations.
struct KeyTable {
    uint32_t up[2], one;
    __device__ KeyTable(uint32_t factor, uint32_t one_) : one(one_) {
        up[0] = kSteps[0] * factor;
        up[1] = kSteps[1] * factor;
    }
    __device__ uint32_t upper(uint32_t x) const { return __umulhi(x, one << 16); }
    /// Eight codes, columns 0..3 and columns 4..7: the positive ones, and the negative ones without
    /// their sign. A selector with a set sign bit replicates the sign of the byte: 0.
    __device__ void split(uint32_t x, uint32_t& low, uint32_t& high, uint32_t& minus_low,
                          uint32_t& minus_high) const {
        const uint32_t y = x ^ 0x88888888u;
        low = permute(up[0], up[1], x);
        high = permute(up[0], up[1], upper(x));
        minus_low = permute(up[0], up[1], y);
        minus_high = permute(up[0], up[1], upper(y));
    }
    /// The same in one number each, 64 above.
    __device__ void bytes(uint32_t x, uint32_t& low, uint32_t& high) const {
        const uint32_t above[2] = {up[0] + kZero, up[1] + kZero};
        const uint32_t below[2] = {kZero - up[0], kZero - up[1]};
        const uint32_t y = x ^ 0x88888888u;
        low = permute(above[0], above[1], x) * one + permute(below[0], below[1], y);
        high = permute(above[0], above[1], upper(x)) * one + permute(below[0], below[1], upper(y));
    }

  private:
    static constexpr uint32_t kZero = 0x40404040u;
    static constexpr uint32_t kSteps[2] = {0x03020100u, 0x0C080604u};
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

/// Starts d (+)= the sums of kSteps k steps, in kPlanes planes, of this warp's 16 keys with N heads
/// at shared address `q`, whose k steps lie kStepBytes apart and whose planes kPlaneBytes. kFresh:
/// d is overwritten.
template <int N, bool kFresh, int kStepBytes, int kPlaneBytes, int kPlanes, int kWords>
__device__ inline void start_sums(int (&d)[N / 2], const uint32_t (&a)[kPlanes][kWords], uint32_t q,
                                  int lane) {
    constexpr int kSteps = kWords / 4;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr uint64_t kLayout = uint64_t{128 / 16} << 16 | uint64_t{256 / 16} << 32;
    const uint32_t at = (q & 0x3FFFFu) >> 4;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
            wgmma_s8<N>(d, a[p] + 4 * s, kLayout | (at + (p * kPlaneBytes + s * kStepBytes) / 16),
                        !kFresh || s + p > 0);
        }
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
#pragma unroll
    for (int nt = 0; nt < N / 8; ++nt) {
        int e[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            e[k] = kFresh ? 0 : d[4 * nt + k];
        }
#pragma unroll
        for (int i = 0; i < kSteps * kPlanes; ++i) {
            const uint32_t at =
                q + i / kSteps * kPlaneBytes + i % kSteps * kStepBytes + nt * 256 + lane * 4;
            const uint32_t* from = a[i / kSteps] + i % kSteps * 4;
            const uint32_t f[4] = {from[0], from[1], from[2], from[3]};
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
    int step[kTeams][kPageStages];                // of the batch; its last one or more: no keys
    int4 weight[kShared][kBlocks * 16];
    float4 factor[kShared][kBlocks * 32];  // of the groups of a head
    struct alignas(16) RowOut {
        float* out;
        float factor;
        int limit;  // columns with scores
    } row[kShared];
    int wide[kShared];
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

/// Score of the key that this lane owns, by FP8 sums of single groups (score.cuh); `codes` and
/// `scales` are those of the tile, in shared memory. All four warps of a warpgroup call together.
template <int kBlocks>
__device__ __forceinline__ float fp8_score(const uint8_t* codes, const uint8_t* scales, uint32_t q,
                                           uint32_t group_bytes, const int4* weight) {
    const int lane = threadIdx.x % 32;
    const int r = lane / 4;
    const int c = lane % 4;
    float sum[2];
#pragma unroll 1
    for (int m = 0; m < 2; ++m) {
        uint32_t fragment[kGroups][1][4];
        float scale[2][kGroups];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int key = 16 * m + 8 * half + r;
            const uint32_t e = *reinterpret_cast<const uint32_t*>(scales + key * 4);
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                e2m1_to_e4m3(*reinterpret_cast<const uint32_t*>(codes + key * 64 + g * 16 + c * 4),
                             fragment[g][0][half], fragment[g][0][2 + half]);
                scale[half][g] = e8m0(e >> 8 * g & 255u);
            }
        }
        float part[2] = {0, 0};
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            float dot[16];  // one group at a time: registers
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                float d[1][16];
                group_sums(d, fragment[g], q + block * 1024 + g * group_bytes, 0, lane);
#pragma unroll
                for (int k = 0; k < 16; ++k) {
                    const float by = scale[k % 4 / 2][g];
                    dot[k] = g == 0 ? d[0][k] * by : __fmaf_rn(d[0][k], by, dot[k]);
                }
            }
#pragma unroll
            for (int nt = 0; nt < 4; ++nt) {
                const int4 w = weight[(4 * block + nt) * 4 + c];
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    part[k / 2] = __fmaf_rn(__int_as_float(k % 2 == 0 ? w.x : w.y),
                                            fmaxf(dot[4 * nt + k], 0.0f), part[k / 2]);
                }
            }
        }
        float half_sum =
            (c >= 2 ? part[1] : part[0]) + __shfl_xor_sync(~0u, c >= 2 ? part[0] : part[1], 2);
        half_sum += __shfl_xor_sync(~0u, half_sum, 1);
        if (m == 0) {
            sum[0] = half_sum;
        } else {
            sum[1] = half_sum;
        }
    }
    return c % 2 == 0 ? sum[0] : sum[1];
}

/// Sums of a row over this lane's heads for keys r and r + 8 of a tile half, then over half of the
/// lanes of a quad: the result is of key r + 8 (c / 2).
template <int kBlocks, bool kSplit>
__device__ inline float sum_heads(const int (&d)[16 * kBlocks], const int4* weight, int c) {
    float part[2] = {0, 0};
#pragma unroll
    for (int nt = 0; nt < 4 * kBlocks; ++nt) {
        const int4 w = weight[nt * 4 + c];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int dot = d[4 * nt + k];
            const int sum = kSplit ? max(dot, 0) : __viaddmax_s32(dot, k % 2 == 0 ? w.z : w.w, 0);
            part[k / 2] =
                __fmaf_rn(__int_as_float(k % 2 == 0 ? w.x : w.y), __int_as_float(sum), part[k / 2]);
        }
    }
    return (c >= 2 ? part[1] : part[0]) + __shfl_xor_sync(~0u, c >= 2 ? part[0] : part[1], 2);
}

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
    unsigned* hist = reinterpret_cast<unsigned*>(sm_q + kShared * kRowBytes * kPlanes);
    const Prepared& p = a.prepared;
    const int tid = threadIdx.x;
    const int warp = tid / 32;
    const int lane = tid % 32;
    const int r = lane / 4;
    const int c = lane % 4;
    const int team = warp / 4;
    const bool loads = warp % 4 == 0 && lane == 0;
    constexpr int kStepBytes = kShared * kHeads * 32;  // of a k step
    constexpr int kPlaneBytes = kShared * kRowBytes;
    const uint32_t q_at = score_shared_address(sm_q);
    // This lane ends with this key of a tile, and knows its scales.
    const int own = 16 * (c % 2) + 8 * (c / 2) + r;

    if (loads) {
#pragma unroll
        for (int s = 0; s < kPageStages; ++s) {
            mbarrier_init(&sm.full[team][s], 1);
            mbarrier_init(&sm.empty[team][s], 4);
        }
        if constexpr (kHasBulkCopies) {
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
    }
    int stage = 0;  // of the next step, and the phase of its barriers
    unsigned phase = 0;
    const uint32_t one = blockDim.y;
    start_when_ready();

    // The block's first batch comes in one round trip, if it is one of the first: lane i has number
    // i.
    const int start_here = p.first_tile[min(lane, a.T)];
    const Batch batch_here = p.batch[min(lane, a.T - 1)];
    const int batches = *p.batches;
    const bool few = batches < 32;
    const int total = few ? __shfl_sync(~0u, start_here, batches) : p.first_tile[batches];
    const int grid = static_cast<int>(gridDim.x);
    const int block = static_cast<int>(blockIdx.x);
    const int more = total % grid;  // the first `more` blocks take one step more
    int at = total / grid * block + min(block, more);
    const int end = at + total / grid + (block < more ? 1 : 0);
    int batch = 0;  // the last one that starts at or before `at`
    if (few) {
        batch = __popc(__ballot_sync(~0u, lane < batches && start_here <= at)) - 1;
    } else {
        for (int low = 0, high = batches; low < high;) {
            const int middle = (low + high) / 2;
            if (p.first_tile[middle] <= at) {
                batch = middle;
                low = middle + 1;
            } else {
                high = middle;
            }
        }
    }

    if (at >= end) {
        return;
    }
    Batch b;  // of one row in kSplit
    int base, next_base;
    if (few) {
        b.row0 = __shfl_sync(~0u, batch_here.row0, batch);
        b.rows = __shfl_sync(~0u, batch_here.rows, batch);
        b.slot = __shfl_sync(~0u, batch_here.slot, batch);
        b.most = __shfl_sync(~0u, batch_here.most, batch);
        base = __shfl_sync(~0u, start_here, batch);
        next_base = __shfl_sync(~0u, start_here, batch + 1);
    } else {
        b = p.batch[batch];
        base = p.first_tile[batch];
        next_base = p.first_tile[batch + 1];
    }

    for (;;) {
        const int first = at - base;
        const int last = min(end, next_base) - base;
        at = base + last;
        const int most = b.most;  // rows ascend
        const int columns = static_cast<int>(a.N < most ? a.N : most);

        // The loading lane asks for the page of the step after the one it loads.
        const bool whole_steps = a.keys.rows_per_page % kStep == 0;
        const int each = (last - first + kTeams - 1) / kTeams;
        int fetch = min(first + team * each, last);
        const int stop = min(fetch + each, last);
        int fetch_stage = stage;
        int next_page = -1;
        bool ended = false;
        const auto page_at = [&](int key) {
            const int index = a.keys.page_of(key);
            return index < a.keys.table_width
                       ? a.keys.table[int64_t{b.slot} * a.keys.table_width + index]
                       : -1;
        };
        const auto look_up = [&] { next_page = fetch < stop ? page_at(fetch * kStep) : -1; };
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
                    bulk_load(s.codes + place * 64, codes, keys * 64, full);
                    bulk_load(s.scales + place * 4, from + a.keys.scales_at + row * 4, keys * 4,
                              full);
                } else if (a.faults != nullptr) {
                    atomicAdd(a.faults, 1ull);
                }
                for (int i = 0; i < keys; i += kTile) {
                    tile[(place + i) / kTile] = codes == nullptr ? nullptr : codes + i * 64;
                }
            };
            const int key = fetch * kStep;
            ended = fetch >= stop;
            sm.step[team][fetch_stage] = ended ? last : fetch;
            if (ended) {
            } else if (whole_steps) {
                copy(next_page, key, 0, kStep);
            } else {
                for (int i = 0; i < kStep; i += kTile) {
                    if (key + i < columns) {
                        copy(page_at(key + i), key + i, i, kTile);
                    }
                }
            }
            all_loads_sent(full);
            fetch_stage = fetch_stage + 1 == kPageStages ? 0 : fetch_stage + 1;
        };

        __syncthreads();  // the previous batch is done with q and hist, and with all stages
        if (loads) {
            look_up();
#pragma unroll 1
            for (int s = 0; s < kPageStages && !ended; ++s) {
                load();
                ++fetch;
                look_up();
            }
        }
        // [row][k step][head block] -> [plane][k step][row][head block], 1 KiB pieces of 32 heads
        for (int i = tid; i < b.rows * kRowBytes / 16; i += kThreads) {
            const int row = i / (kRowBytes / 16);
            const int in_row = i % (kRowBytes / 16);
            const int k = in_row / (kHeads * 2);
            const int rest = in_row % (kHeads * 2);
            const uint4 v = reinterpret_cast<const uint4*>(p.q + int64_t{b.row0} * kRowBytes)[i];
            auto* to = reinterpret_cast<uint4*>(sm_q) + (k * kShared + row) * kHeads * 2 + rest;
            *to = v;
            if constexpr (kSplit) {
                to[kPlaneBytes / 16] =
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
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        asm volatile("fence.proxy.async.shared::cta;" ::
                         : "memory");  // q is read by the async proxy
#endif
        __syncthreads();

#pragma unroll 1
        for (bool fresh = true;; fresh = false) {
            const PageStage& s = sm.stage[team][stage];
            mbarrier_wait(&sm.full[team][stage], phase);
            const int step = sm.step[team][stage];
            const int tile = step * 4 + warp % 4;
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
            const auto advance = [&] {
                stage = stage + 1 == kPageStages ? 0 : stage + 1;
                phase ^= stage == 0 ? 1u : 0u;
            };
            const auto refill = [&](unsigned used) {
                if (loads && !ended) {
                    mbarrier_wait(&sm.empty[team][fetch_stage], used);
                    load();
                    ++fetch;
                    look_up();
                }
                __syncwarp();
            };
            if (step >= last) {
                leave();
                advance();
                break;
            }
            if (!batch_wide) {
                leave();
            }
            if (kPageStages > 1 && !fresh) {  // the stage of the step before
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

            // Words `first` .. of a tile half.
            const auto unpack = [&](auto& to, int m, int first) {
                constexpr int kWords = sizeof(to[0]) / 16;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const KeyTable table(__funnelshift_rc(1u << kOctaves, 0, down[m][half]), one);
                    const uint32_t x[4] = {raw[m][half].x, raw[m][half].y, raw[m][half].z,
                                           raw[m][half].w};
#pragma unroll
                    for (int k = 0; k < kWords; ++k) {
                        const int i = 4 * k + half;
                        if constexpr (kSplit) {
                            table.split(x[first + k], to[0][i], to[0][i + 2], to[1][i],
                                        to[1][i + 2]);
                        } else {
                            table.bytes(x[first + k], to[0][i], to[0][i + 2]);
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
                        q_at + row * kHeads * 32, kStepBytes, sm.weight[row]);
                } else if ((any_wide || wide_row != 0) && codes_at != nullptr) {
                    const float other = group_score<kBlocks>(
                        codes_at,
                        codes_at + (a.keys.scales_at - a.keys.codes_at) -
                            (tile * kTile % a.keys.rows_per_page) * 60,
                        q_at + row * kHeads * 32, kStepBytes, sm.weight[row], sm.factor[row]);
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
                float halves[2] = {};
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    uint32_t fragment[kPlanes][16];
                    int d[kHeads / 2];
                    unpack(fragment, m, 0);
                    start_sums<kHeads, true, kStepBytes, kPlaneBytes>(d, fragment, q_at, lane);
                    finish_sums<0>(d, halves[0]);
                    halves[m] = sum_heads<kBlocks, kSplit>(d, sm.weight[0], c);
                }
                finish(0, halves);
            } else {
                uint32_t fragment[2][kPlanes][16];
                unpack(fragment[0], 0, 0);
                unpack(fragment[1], 1, 0);
                // Two rows a turn, the second one beyond the end if their number is odd: two
                // products are always open.
#pragma unroll 1
                for (int row = 0; row < b.rows; row += 2) {
                    int d[2][kHeads / 2];
                    float halves[2][2] = {};
                    const auto start = [&](int m, int i) {
                        start_sums<kHeads, true, kStepBytes, kPlaneBytes>(
                            d[m], fragment[m], q_at + (row + i) * kHeads * 32, lane);
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
            advance();
        }
        __syncthreads();
        if (counts) {
            for (int i = tid; i < b.rows * kBins; i += kThreads) {
                if (hist[i] != 0) {
                    atomicAdd(&p.hist[int64_t{b.row0} * kBins + i], hist[i]);
                }
            }
        }
        if (at >= end) {
            break;
        }
        ++batch;
        b = p.batch[batch];
        base = next_base;
        next_base = p.first_tile[batch + 1];
    }
}

}  // namespace tenon::cuda::index
