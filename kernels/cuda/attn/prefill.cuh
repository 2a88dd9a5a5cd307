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

__device__ inline void flow_init(uint64_t* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals));
}
__device__ inline void flow_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void flow_wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
            shared_address(barrier)),
        "r"(parity)
        : "memory");
}
/// Of the threads that multiply.
__device__ inline void flow_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(kFlowSummers) : "memory");
}

/// d (+)= a b over 16 summed columns, 256 columns of b, whose lines run along the summed dimension.
__device__ inline void wgmma_256(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
        "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
        "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,"
        "%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,"
        "%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,"
        "%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,"
        "%126,%127}, %128, %129, p, 1, 1, 0, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
          "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
          "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
          "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),
          "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
          "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),
          "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]),
          "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]),
          "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),
          "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]),
          "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(add));
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
    flow_wait(empty, parity);
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
                flow_wait(&sm.empty[buffer], parity);
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
            flow_arrive(&sm.full[buffer]);
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
            flow_wait(&sm.full[buffer], parity);
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
                wgmma_256(o, swizzled(p_at + term + step * 32, 16, 1024),
                          swizzled(k_at + group * (kFlowColumns / 64 * kFlowKeys * 128) +
                                       step * (16 * 128),
                                   kFlowKeys * 128, 1024),
                          chunk > 0 || i > 0);
            }
            wgmma_end(o);
            __syncwarp();
            if (lane == 0) {
                flow_arrive(&sm.empty[buffer]);
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
            flow_init(&sm.full[i], kFlowLoaders);
            flow_init(&sm.empty[i], kFlowSummers / 32);
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
