// SPDX-License-Identifier: MIT
// draft.step: logits of the Markov head for all segments in one pass over the head, judged at once.
//
// Where head and embedding are bf16 and r is a multiple of 32, sixteen ids at a time meet up to 64
// segments in mma.sync m16n8k16 (exact products, f32 sums in one order); else one thread a logit
// with f32 fma. Blocks leave their best of every segment; the finish joins them. A maximum with
// ties to the lower id has no order, so neither the grid nor S can change a result.
#pragma once

#include "common/dependent.cuh"
#include "sample/noise.cuh"
#include "tenon/ops/draft.h"

namespace tenon::cuda::draft {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct StepArgs {
    const float* base;  // [S, V], rows at base_stride
    int64_t base_stride;
    const int* prev;
    int64_t prev_stride;
    const void* embed;
    const void* head;
    bool embed_bf16, head_bf16;
    int64_t embed_rows, V;
    int r;
    const uint32_t* forbid;
    const SampleParams* params;
    const SegInfo* seg;
    int S;      // segments of this call
    int first;  // segment of column 0
    int step, vocab_at;
    DraftBest* parts;  // [blocks, S_total]
    int S_total;
    unsigned long long* faults;
};

struct Judge {
    double temperature;
    uint64_t seed;
    int pos;
    int prev;  // -1: a dead segment
};

__device__ inline Judge judge_of(const StepArgs& a, int s, bool report) {
    Judge j{0, 0, 0, -1};
    const SegInfo seg = a.seg[s];
    if (seg.slot < 0) {
        return j;
    }
    const int prev = a.prev[s * a.prev_stride];
    if (prev < 0 || prev >= a.embed_rows) {
        if (report) {
            fault(a.faults);
        }
        return j;
    }
    j.prev = prev;
    j.pos = seg.pos0 + a.step + 1;
    if (a.params != nullptr) {
        j.temperature = a.params[s].temperature;
        j.seed = a.params[s].seed;
    }
    return j;
}

__device__ inline DraftBest better_draft(DraftBest a, DraftBest b) {
    const bool second =
        b.id >= 0 && (a.id < 0 || b.value > a.value || (b.value == a.value && b.id < a.id));
    return second ? b : a;
}

// Judges local id v with logit L (ops.md 3.10); the number is rounded to f32 before it is compared.
__device__ inline void offer(const StepArgs& a, const Judge& j, int64_t v, float L,
                             DraftBest& best) {
    const int id = static_cast<int>(a.vocab_at + v);
    float value = L;
    if (j.temperature > 0) {
        const double x = static_cast<double>(L) / j.temperature;
        if (x + kMostNoise < static_cast<double>(best.value)) {
            return;
        }
        const uint32_t word = noise_of(j.seed, j.pos, id);
        if (x + gumbel_bound_of(word) < static_cast<double>(best.value)) {
            return;
        }
        value = static_cast<float>(x + gumbel_of(word));
    }
    if ((value > best.value || (value == best.value && (best.id < 0 || id < best.id))) &&
        (a.forbid == nullptr || (a.forbid[v / 32] >> (v % 32) & 1u) == 0)) {
        best = {value, id};
    }
}

__device__ inline DraftBest nothing() {
    return {-__builtin_huge_valf(), -1};
}

__device__ inline void draft_mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                 uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Bytes from one segment's embedding row to the next in shared memory: 64 mod 128, so that 16-byte
/// reads of two rows by eight lanes use all banks.
__host__ __device__ inline int embed_pitch(int r) {
    return r * 2 % 128 == 0 ? r * 2 + 64 : r * 2;
}

template <int kTiles>
__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ StepArgs a) {
    extern __shared__ __align__(16) uint8_t step_bytes[];
    __shared__ Judge judges[kTiles * 8];
    __shared__ DraftBest bests[kWarps][kTiles * 8];
    const int tid = threadIdx.x;
    const int warp = tid / 32;
    const int lane = tid % 32;
    const int r = lane / 4;
    const int c = lane % 4;
    const int pitch = embed_pitch(a.r);
    const int64_t tiles = (a.V + 15) / 16;
    const auto* head = static_cast<const uint16_t*>(a.head);
    const int64_t own_tile = int64_t{blockIdx.x} * kWarps + warp;
    let_next_start();
    if (own_tile < tiles) {  // the head is constant: the first tile comes while the token is chosen
        const auto* from = reinterpret_cast<const uint8_t*>(head + own_tile * 16 * a.r);
        const int64_t bytes = min(a.V - own_tile * 16, int64_t{16}) * a.r * 2;
        for (int64_t at = lane * 128; at < bytes; at += 32 * 128) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
        }
    }
    wait_for_previous();
    if (tid < kTiles * 8) {
        judges[tid] = tid < a.S ? judge_of(a, a.first + tid, blockIdx.x == 0) : Judge{0, 0, 0, -1};
    }
    __syncthreads();
    for (int i = tid; i < kTiles * 8 * (a.r / 8); i += kThreads) {
        const int s = i / (a.r / 8);
        const int piece = i % (a.r / 8);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (judges[s].prev >= 0) {
            v = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(a.embed) +
                                               int64_t{judges[s].prev} * a.r)[piece];
        }
        *reinterpret_cast<uint4*>(step_bytes + s * pitch + piece * 16) = v;
    }
    __syncthreads();

    DraftBest best[kTiles][2];
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt) {
        best[nt][0] = best[nt][1] = nothing();
    }
    for (int64_t tile = own_tile; tile < tiles; tile += int64_t{gridDim.x} * kWarps) {
        const int64_t v0 = tile * 16 + r;
        const int64_t v1 = v0 + 8;
        const auto* h0 = reinterpret_cast<const uint4*>(head + (v0 < a.V ? v0 : a.V - 1) * a.r) + c;
        const auto* h1 = reinterpret_cast<const uint4*>(head + (v1 < a.V ? v1 : a.V - 1) * a.r) + c;
        float sum[kTiles][4];
        float base[kTiles][4];
#pragma unroll
        for (int nt = 0; nt < kTiles; ++nt) {
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const int s = nt * 8 + 2 * c + k % 2;
                const int64_t v = k < 2 ? v0 : v1;
                sum[nt][k] = 0;
                base[nt][k] = 0;
                if (s < a.S && v < a.V && judges[s].prev >= 0) {
                    base[nt][k] = a.base[(a.first + s) * a.base_stride + v];
                }
            }
        }
        constexpr int kBatch = 4;  // 32-column pieces in flight
        for (int first = 0; first < a.r / 32; first += kBatch) {
            uint4 x[kBatch];
            uint4 y[kBatch];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                if (first + j < a.r / 32) {
                    x[j] = __ldcs(h0 + (first + j) * 4);
                    y[j] = __ldcs(h1 + (first + j) * 4);
                }
            }
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                if (first + j < a.r / 32) {
#pragma unroll
                    for (int nt = 0; nt < kTiles; ++nt) {
                        // Columns 8c .. 8c + 7 of the piece stand in the k slots of lane c, on both
                        // sides.
                        const uint4 e = *reinterpret_cast<const uint4*>(
                            step_bytes + (nt * 8 + r) * pitch + (first + j) * 64 + c * 16);
                        draft_mma(sum[nt], x[j].x, y[j].x, x[j].y, y[j].y, e.x, e.y);
                        draft_mma(sum[nt], x[j].z, y[j].z, x[j].w, y[j].w, e.z, e.w);
                    }
                }
            }
        }
#pragma unroll
        for (int nt = 0; nt < kTiles; ++nt) {
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const int s = nt * 8 + 2 * c + k % 2;
                const int64_t v = k < 2 ? v0 : v1;
                if (s < a.S && v < a.V && judges[s].prev >= 0) {
                    offer(a, judges[s], v, base[nt][k] + sum[nt][k], best[nt][k % 2]);
                }
            }
        }
    }
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            DraftBest b = best[nt][k];
#pragma unroll
            for (int step = 4; step < 32; step *= 2) {
                const DraftBest other{__shfl_xor_sync(kFullWarp, b.value, step),
                                      __shfl_xor_sync(kFullWarp, b.id, step)};
                b = better_draft(b, other);
            }
            if (r == 0) {
                bests[warp][nt * 8 + 2 * c + k] = b;
            }
        }
    }
    __syncthreads();
    if (tid < a.S) {
        DraftBest b = bests[0][tid];
        for (int w = 1; w < kWarps; ++w) {
            b = better_draft(b, bests[w][tid]);
        }
        a.parts[int64_t{blockIdx.x} * a.S_total + a.first + tid] = b;
    }
}

__device__ inline float element(const void* data, bool bf16, int64_t at) {
    return bf16 ? to_f32(static_cast<const uint16_t*>(data)[at])
                : static_cast<const float*>(data)[at];
}

// Any types and r; grid (blocks, S).
__global__ void __launch_bounds__(kThreads) step_plain_kernel(const __grid_constant__ StepArgs a) {
    __shared__ DraftBest bests[kWarps];
    const int s = blockIdx.y;
    let_next_start();
    wait_for_previous();
    const Judge j = judge_of(a, s, blockIdx.x == 0 && threadIdx.x == 0);
    DraftBest best = nothing();
    if (j.prev >= 0) {
        for (int64_t v = int64_t{blockIdx.x} * kThreads + threadIdx.x; v < a.V;
             v += int64_t{gridDim.x} * kThreads) {
            float sum = 0;
            for (int i = 0; i < a.r; ++i) {
                sum = __fmaf_rn(element(a.head, a.head_bf16, v * a.r + i),
                                element(a.embed, a.embed_bf16, int64_t{j.prev} * a.r + i), sum);
            }
            offer(a, j, v, a.base[s * a.base_stride + v] + sum, best);
        }
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const DraftBest other{__shfl_xor_sync(kFullWarp, best.value, step),
                              __shfl_xor_sync(kFullWarp, best.id, step)};
        best = better_draft(best, other);
    }
    if (threadIdx.x % 32 == 0) {
        bests[threadIdx.x / 32] = best;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < kWarps; ++w) {
            best = better_draft(best, bests[w]);
        }
        a.parts[int64_t{blockIdx.x} * a.S_total + s] = best;
    }
}

struct PickArgs {
    const DraftBest* parts;  // [n, S]
    int n, S;
    DraftBest* best;  // [S] or null
    int* token;       // or null
    int64_t token_stride;
    int* mirror;  // pinned, or null
    int64_t mirror_stride;
};

// One block a segment: the best of n parts.
__global__ void __launch_bounds__(128) pick_kernel(const PickArgs a) {
    __shared__ DraftBest bests[4];
    const int s = blockIdx.x;
    let_next_start();
    wait_for_previous();
    DraftBest best = nothing();
    for (int i = threadIdx.x; i < a.n; i += 128) {
        best = better_draft(best, a.parts[int64_t{i} * a.S + s]);
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const DraftBest other{__shfl_xor_sync(kFullWarp, best.value, step),
                              __shfl_xor_sync(kFullWarp, best.id, step)};
        best = better_draft(best, other);
    }
    if (threadIdx.x % 32 == 0) {
        bests[threadIdx.x / 32] = best;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 4; ++w) {
            best = better_draft(best, bests[w]);
        }
        if (a.best != nullptr) {
            a.best[s] = best;
        }
        if (a.token != nullptr) {
            a.token[s * a.token_stride] = best.id;
        }
        if (a.mirror != nullptr) {
            a.mirror[s * a.mirror_stride] = best.id;
        }
    }
}

}  // namespace tenon::cuda::draft
