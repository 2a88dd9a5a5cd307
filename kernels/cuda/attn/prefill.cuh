// SPDX-License-Identifier: MIT
// attn.sparse and attn.sparse_turn in prefill on Hopper: CTAs stay and walk over rows, all 64 heads
// of a row together, chunks of 64 keys.
//
// One warpgroup gathers the keys of the next chunk, makes them bf16 and stores them; two warpgroups
// multiply, each 32 of the keys in QK^T and 256 of the columns in PV, through wgmma. Chunks are cut
// from the row's own list (window part, then selected part) and probabilities enter PV as two bf16
// terms, and so does their sum: a row's bits depend on its list alone.
#pragma once

#include "attn/sparse.cuh"
#include "attn/wide.cuh"
#include "common/async.cuh"
#include "common/mma.cuh"

namespace tenon::cuda::sparse {

constexpr int kFlowD = 512;
constexpr int kFlowHeads = 64;
constexpr int kFlowKeys = 64;
constexpr int kFlowLoaders = 128;  // threads that load, the first warpgroup
constexpr int kFlowSummers = 256;  // threads that multiply
constexpr int kFlowThreads = kFlowLoaders + kFlowSummers;
constexpr int kFlowEach = kFlowKeys / (kFlowLoaders / 32);  // keys of a warp
constexpr int kFlowUnit = 4;                                // keys that are copied together
constexpr int kFlowSlots = 3;                               // units on their way
constexpr int kFlowCodes = kFlowD / 2, kFlowScales = kFlowD / 16,
              kFlowRow = kFlowCodes + kFlowScales;  // bytes of a q4e row
constexpr int kFlowColumns = kFlowD / 2;            // of a warpgroup in PV
constexpr int kFlowTurned = 64;                     // most columns that are turned
static_assert(kFlowEach == (kFlowSlots + 1) * kFlowUnit, "a chunk more than what is on its way");
static_assert(kFlowKeys == kChunk, "key_of and selected_row count in chunks");

struct FlowShared {
    uint8_t q[kFlowHeads * kFlowD * 2];        // [64 columns][head], lines of 128 bytes
    uint8_t k[2][kFlowKeys * kFlowD * 2];      // [64 columns][key]
    uint8_t p[2][kFlowHeads * kFlowKeys * 2];  // [head], two bf16 terms
    uint8_t raw[kFlowLoaders / 32][kFlowSlots][kFlowUnit * kFlowRow];  // of each warp
    Key key[kFlowKeys];  // of a chunk that is not all q4e
    float tops[2][kFlowHeads];
    float sums[2][kFlowHeads];
    uint32_t there[2][kFlowLoaders / 32];  // which keys of a warp exist, of each buffer
    int last[2];                           // the buffer ends its row
    uint64_t full[2], empty[2];
};
static_assert(sizeof(FlowShared) + 1024 <= 227 * 1024);
constexpr size_t kFlowBytes = sizeof(FlowShared) + 1024;  // the start is aligned to 1024

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Of the threads that multiply.
__device__ inline void flow_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(kFlowSummers) : "memory");
}

// As store_key of the decode form, for chunks of 64 keys.
__device__ inline void flow_store(uint8_t* k, int key, int lane, uint4 low, uint4 high) {
    const int second = lane / 4 % 2;
    *reinterpret_cast<uint4*>(k + piece_at(kFlowKeys, key, 2 * lane + second)) =
        second != 0 ? high : low;
    *reinterpret_cast<uint4*>(k + piece_at(kFlowKeys, key, 2 * lane + 1 - second)) =
        second != 0 ? low : high;
}

// Ring rows and rows of this call, or selected rows of another format. Rows that are bf16 are
// copied.
__device__ inline void flow_load_any(const Key* keys, uint8_t* to, int key0, uint64_t* empty,
                                     uint32_t parity, int lane) {
    async::barrier_wait(empty, parity);
#pragma unroll 1
    for (int i = 0; i < kFlowEach; ++i) {
        const Key key = keys[i];
        if (key.format == kBf16) {
            const auto* from = reinterpret_cast<const uint4*>(key.codes);
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                const int piece = lane + 32 * part;
                copy16_async(to + piece_at(kFlowKeys, key0 + i, piece), from + piece, true);
            }
            continue;
        }
        uint4 low = make_uint4(0, 0, 0, 0);
        uint4 high = low;
        if (key.format == kQ8) {
            const uint4 c = reinterpret_cast<const uint4*>(key.codes)[lane];
            const uint32_t s = key.scales[lane / 2];
            low = unpack_q8(make_uint2(c.x, c.y), s);
            high = unpack_q8(make_uint2(c.z, c.w), s);
        } else if (key.format == kQ4e) {
            const uint2 c = reinterpret_cast<const uint2*>(key.codes)[lane];
            const uint32_t s = key.scales[lane];
            low = unpack_q4e(c.x, s);
            high = unpack_q4e(c.y, s);
        }
        flow_store(to, key0 + i, lane, low, high);
    }
    commit_copies();
    wait_copies<0>();
}

// A unit of selected q4e rows on its way into `slot`: codes of the keys, then scales. Lanes
// first .. first + 3 hold where the rows lie.
__device__ inline void flow_copy(uint8_t* slot, uint64_t codes, uint64_t scales, int first,
                                 int lane) {
#pragma unroll
    for (int i = 0; i < kFlowUnit; i += 2) {
        const uint64_t from = __shfl_sync(~0u, codes, first + i + lane / 16);
        copy16_async(slot + i * kFlowCodes + lane * 16,
                     reinterpret_cast<const uint8_t*>(from) + lane % 16 * 16, true);
    }
    const uint64_t from = __shfl_sync(~0u, scales, first + lane / 2 % kFlowUnit);
    if (lane < 2 * kFlowUnit) {
        copy16_async(slot + kFlowUnit * kFlowCodes + lane * 16,
                     reinterpret_cast<const uint8_t*>(from) + lane % 2 * 16, true);
    }
}

// Chunks one after another, row after row; each goes into the buffer that comes free. Keys are
// located a chunk ahead, and a warp's next units are on their way while it unpacks one.
__device__ inline void flow_load(const Args& a, FlowShared& sm) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int key0 = warp * kFlowEach;
    const int mine = lane < kFlowEach ? key0 + lane : -1;  // the key this lane locates
    int buffer = 0;
    uint32_t parity = 1;  // buffers are free at first
    int slot = 0;
    for (int t = blockIdx.x; t < a.T; t += gridDim.x) {
        const List list = list_of(a, t, threadIdx.x == 0);
        const int windows = (list.window() + kFlowKeys - 1) / kFlowKeys;
        const int chunks = max(1, windows + (list.selected + kFlowKeys - 1) / kFlowKeys);
        const auto packed = [&](int chunk) {
            return chunk >= windows && a.comp_format == kQ4e && a.K > 0;
        };
        if (t + static_cast<int>(gridDim.x) < a.T) {  // heads of the next row
            const auto* next = a.q + int64_t{t + static_cast<int>(gridDim.x)} * a.H * kFlowD;
            for (int i = threadIdx.x * 64; i < a.H * kFlowD; i += kFlowLoaders * 64) {
                asm volatile("prefetch.global.L2 [%0];" ::"l"(next + i));
            }
        }
        int row_now = mine < 0 ? -1 : selected_row(a, list, t, 0, mine);
        int row_next = mine < 0 ? -1 : selected_row(a, list, t, 1, mine);
        int page_now = page_of(a, list.slot, row_now);
        Key key{nullptr, nullptr, kNone, 0};
        uint32_t there = 0;
        const auto locate = [&](int chunk) {
            key = Key{nullptr, nullptr, kNone, 0};
            if (mine >= 0) {
                key = key_of(a, list, chunk, mine, row_now, page_now, kFlowD, true);
            }
            row_now = row_next;
            page_now = page_of(a, list.slot, row_now);
            row_next = mine < 0 ? -1 : selected_row(a, list, t, chunk + 2, mine);
            there = __ballot_sync(~0u, key.format >= 0);
            if (packed(chunk) && key.format < 0) {  // any row: all codes are finite
                key.codes = a.pool + a.codes_at;
                key.scales = a.pool + a.scales_at;
            }
        };
        const auto copy = [&](int unit) {
            flow_copy(sm.raw[warp][slot], reinterpret_cast<uint64_t>(key.codes),
                      reinterpret_cast<uint64_t>(key.scales), unit * kFlowUnit, lane);
            slot = slot + 1 == kFlowSlots ? 0 : slot + 1;
        };
        locate(0);
        bool begun = false;
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; ++chunk) {
            uint8_t* to = sm.k[buffer];
            const bool more = chunk + 1 < chunks;
            const uint32_t there_now = there;
            if (!packed(chunk)) {
                __syncwarp();
                if (mine >= 0) {
                    sm.key[mine] = key;
                }
                __syncwarp();
                if (more) {
                    locate(chunk + 1);
                }
                flow_load_any(sm.key + key0, to, key0, &sm.empty[buffer], parity, lane);
            } else {
                if (!begun) {
                    begun = true;
                    for (int unit = 0; unit < kFlowSlots; ++unit) {
                        copy(unit);
                        commit_copies();
                    }
                }
                async::barrier_wait(&sm.empty[buffer], parity);
                // A lane's two pieces of a line of keys, for line 0 of eight; odd quads store their
                // second piece first, so that eight lanes meet eight pieces.
                const int second = lane / 4 % 2;
                uint8_t* const line0 = to + (lane / 4 * kFlowKeys + key0) * 128;
                const int place0 = (2 * lane + second) % 8 * 16;
                const int place1 = place0 ^ 16;
#pragma unroll 1
                for (int two = 0; two < kFlowEach / 8; ++two) {
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const int unit = 2 * two + half;
                        wait_copies<kFlowSlots - 1>();
                        __syncwarp();
                        const uint8_t* from = sm.raw[warp][slot];
#pragma unroll
                        for (int i = 0; i < kFlowUnit; ++i) {
                            const auto* codes =
                                reinterpret_cast<const uint32_t*>(from + i * kFlowCodes + lane * 8);
                            const uint32_t scale =
                                from[kFlowUnit * kFlowCodes + i * kFlowScales + lane];
                            uint8_t* line = line0 + two * (8 * 128) + (half * 4 + i) * 128;
                            const int turned = (half * 4 + i) * 16;
                            *reinterpret_cast<uint4*>(line + (place0 ^ turned)) =
                                unpack_q4e(codes[second], scale);
                            *reinterpret_cast<uint4*>(line + (place1 ^ turned)) =
                                unpack_q4e(codes[second ^ 1], scale);
                        }
                        __syncwarp();
                        if (unit == 0) {
                            copy(kFlowSlots);
                            if (more) {
                                locate(chunk + 1);
                            }
                        } else if (more) {
                            copy(unit - 1);
                        } else {
                            slot = slot + 1 == kFlowSlots ? 0 : slot + 1;
                        }
                        commit_copies();
                    }
                }
            }
            if (lane == 0) {
                sm.there[buffer][warp] = there_now;
                if (warp == 0) {
                    sm.last[buffer] = more ? 0 : 1;
                }
            }
            shared_to_async();
            async::barrier_arrive(&sm.full[buffer]);
            parity ^= static_cast<uint32_t>(buffer);
            buffer ^= 1;
        }
    }
}

// The row's heads as bf16, turned if asked for; zeros beyond H.
template <bool kTurn>
__device__ inline void flow_query(const Args& a, int t, int tid, uint8_t* q) {
    constexpr int kEach = kFlowHeads * kFlowD / 8 / kFlowSummers;
    const int piece = tid % 64;
    const int column = piece * 8;
    uint4 units[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        const int head = tid / 64 + k * (kFlowSummers / 64);
        units[k] = make_uint4(0, 0, 0, 0);
        if (head < a.H) {
            units[k] =
                *reinterpret_cast<const uint4*>(a.q + (int64_t{t} * a.H + head) * kFlowD + column);
        }
    }
    if (kTurn && column >= kFlowD - a.R) {
        const float* cs = a.cs + int64_t{t} * a.R + (column - (kFlowD - a.R)) / 2;
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
        const int head = tid / 64 + k * (kFlowSummers / 64);
        *reinterpret_cast<uint4*>(q + piece_at(kFlowHeads, head, piece)) = units[k];
    }
}

// Lane c of a quad holds word c of four pieces of four words; afterwards it holds piece c.
__device__ inline void flow_transpose(uint32_t (&w)[4], int c) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        const uint32_t other = __shfl_xor_sync(~0u, (c & 1) != 0 ? w[k] : w[k + 1], 1);
        ((c & 1) != 0 ? w[k] : w[k + 1]) = other;
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const uint32_t other = __shfl_xor_sync(~0u, (c & 2) != 0 ? w[k] : w[k + 2], 2);
        ((c & 2) != 0 ? w[k] : w[k + 2]) = other;
    }
}

template <bool kTurn>
__device__ inline void flow_attend(const Args& a, FlowShared& sm) {
    const int tid = threadIdx.x - kFlowLoaders;
    const int warp = tid / 32;
    const int lane = tid % 32;
    const int r = lane / 4;
    const int c = lane % 4;
    const int group = warp / 4;
    const int head = warp % 4 * 16 + r;  // and head + 8
    const uint32_t q_at = shared_address(sm.q);
    const uint32_t p_at = shared_address(sm.p[0]);
    int buffer = 0;
    uint32_t parity = 0;
    for (int t = blockIdx.x; t < a.T; t += gridDim.x) {
        flow_query<kTurn>(a, t, tid, sm.q);
        shared_to_async();
        flow_sync();
        float o[kFlowColumns / 2];
        float top[2] = {kMinusInf, kMinusInf};
        float sum[2] = {0, 0};
        bool more = true;
        for (int chunk = 0; more; ++chunk) {
            async::barrier_wait(&sm.full[buffer], parity);
            const uint32_t k_at = shared_address(sm.k[buffer]);
            float s[16];
            wgmma_begin();
#pragma unroll
            for (int step = 0; step < kFlowD / 16; ++step) {
                const uint32_t at = step / 4 * (64 * 128) + step % 4 * 32;
                wgmma<32, false>(s, swizzled(q_at + at, 16, 1024),
                                 swizzled(k_at + group * (32 * 128) + at, 16, 1024), step > 0);
            }
            wgmma_end(s);
            uint32_t there = 0;
#pragma unroll
            for (int i = 0; i < 32 / kFlowEach; ++i) {
                there |= sm.there[buffer][group * (32 / kFlowEach) + i] << i * kFlowEach;
            }
            more = sm.last[buffer] == 0;
            float high[2] = {kMinusInf, kMinusInf};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& v = s[4 * j + i];
                    v = (there >> (8 * j + 2 * c + i % 2) & 1) != 0 ? v * a.scale_log2 : kMinusInf;
                    high[i / 2] = fmaxf(high[i / 2], v);
                }
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                high[i] = fmaxf(high[i], __shfl_xor_sync(~0u, high[i], 1));
                high[i] = fmaxf(high[i], __shfl_xor_sync(~0u, high[i], 2));
                if (c == 0) {
                    sm.tops[group][head + 8 * i] = high[i];
                }
            }
            flow_sync();
            float factor[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int line = head + 8 * i;
                const float now = fmaxf(top[i], fmaxf(sm.tops[0][line], sm.tops[1][line]));
                const float shift = now == kMinusInf ? 0.0f : now;
                factor[i] = top[i] == now ? 1.0f : exp2f(top[i] - now);
                top[i] = now;
                float part = 0;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const Terms<2> w(exp2f(s[4 * j + 2 * i] - shift),
                                     exp2f(s[4 * j + 2 * i + 1] - shift));
                    part += w.sum();
                    const uint32_t at = piece_at(kFlowHeads, line, group * 4 + j) + c * 4;
                    *reinterpret_cast<uint32_t*>(sm.p[0] + at) = w.term[0];
                    *reinterpret_cast<uint32_t*>(sm.p[1] + at) = w.term[1];
                }
                sum[i] = sum[i] * factor[i] + part;
            }
            shared_to_async();
            flow_sync();
            if (chunk > 0 && __any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
                for (int j = 0; j < kFlowColumns / 2; ++j) {
                    o[j] *= factor[j / 2 % 2];
                }
            }
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < 2 * (kFlowKeys / 16); ++i) {
                const int step = i % (kFlowKeys / 16);
                const uint32_t term = i / (kFlowKeys / 16) * (kFlowHeads * kFlowKeys * 2);
                wgmma<256, true>(o, swizzled(p_at + term + step * 32, 16, 1024),
                                 swizzled(k_at + group * (kFlowColumns / 64 * kFlowKeys * 128) +
                                              step * (16 * 128),
                                          kFlowKeys * 128, 1024),
                                 chunk > 0 || i > 0);
            }
            wgmma_end(o);
            __syncwarp();
            if (lane == 0) {
                async::barrier_arrive(&sm.empty[buffer]);
            }
            parity ^= static_cast<uint32_t>(buffer);
            buffer ^= 1;
        }
        constexpr float kLog2e = 1.4426950408889634f;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
            sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
            if (c == 0) {
                sm.sums[group][head + 8 * i] = sum[i];
            }
        }
        flow_sync();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int line = head + 8 * i;
            const float sink = line < a.H ? a.sink[line] * kLog2e : kMinusInf;
            const float most = fmaxf(top[i], sink);
            float weight = 0;
            if (top[i] > kMinusInf) {
                const float e = exp2f(top[i] - most);
                weight =
                    e * reciprocal((sm.sums[0][line] + sm.sums[1][line]) * e + exp2f(sink - most));
            }
            __nv_bfloat16* out = a.out + (int64_t{t} * a.H + line) * kFlowD + group * kFlowColumns;
#pragma unroll
            for (int j = 0; j < kFlowColumns / 32; ++j) {
                uint32_t w[4];
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const float x = o[16 * j + 4 * k + 2 * i];
                    const float y = o[16 * j + 4 * k + 2 * i + 1];
                    w[k] = weight == 0 ? 0 : pack(x * weight, y * weight);
                }
                flow_transpose(w, c);
                const int column = 32 * j + 8 * c;
                const int turned = group * kFlowColumns + column - (kFlowD - a.R);
                if (line < a.H) {
                    if (kTurn && j >= (kFlowColumns - kFlowTurned) / 32 && turned >= 0) {
                        const float* cs = a.cs + int64_t{t} * a.R + turned / 2;
#pragma unroll
                        for (int k = 0; k < 4; ++k) {
                            w[k] = turn(w[k], cs[k], -cs[k + a.R / 2]);
                        }
                    }
                    *reinterpret_cast<uint4*>(out + column) = make_uint4(w[0], w[1], w[2], w[3]);
                }
            }
        }
    }
}

#endif

template <bool kTurn>
__global__ void __launch_bounds__(kFlowThreads, 1) prefill_kernel(const __grid_constant__ Args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t flow_bytes[];
    auto& sm = *reinterpret_cast<FlowShared*>(flow_bytes +
                                              (1024 - (shared_address(flow_bytes) & 1023u)) % 1024);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            async::barrier_init(&sm.full[i], kFlowLoaders);
            async::barrier_init(&sm.empty[i], kFlowSummers / 32);
        }
        shared_to_async();
    }
    __syncthreads();
    // 65536 registers of a multiprocessor: 128 threads with 88, 256 with 208.
    if (threadIdx.x < kFlowLoaders) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
        flow_load(a, sm);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
        flow_attend<kTurn>(a, sm);
    }
#endif
}

}  // namespace tenon::cuda::sparse
