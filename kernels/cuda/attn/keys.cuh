// SPDX-License-Identifier: MIT
// What the attention kernels share: the keys of a row in list order, where they lie, and how their
// codes become bf16.
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

#include "common/arch.cuh"
#include "tenon/ops/rows.h"

namespace tenon::cuda::sparse {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr float kMinusInf = -__builtin_huge_valf();

enum Format : int { kNone = -1, kBf16 = 0, kQ8 = 1, kQ4e = 3 };

using Row = RowInfo;
using Segment = SegInfo;

struct Args {
    const __nv_bfloat16* q;
    const __nv_bfloat16* kv;
    __nv_bfloat16* out;
    const uint8_t* ring_codes;
    const uint8_t* ring_scales;
    int ring_R, ring_slots, ring_format;
    const uint8_t* pool;
    const int* table;
    int64_t page_bytes, codes_at, scales_at;
    int pages, table_slots, table_width, rows_per_page, comp_format;
    const int* sel;
    const int* count;
    int K;
    const float* sink;
    float scale_log2;  // scale times log2(e)
    int window, half, block_mode;
    const Row* row;
    const Segment* seg;
    int T, S, H;
    const float* cs;  // [T, R], with the turn
    int R;
    unsigned long long* faults;
};

struct Key {
    const uint8_t* codes;
    const uint8_t* scales;
    int format;
    int pad;
};

struct List {
    int ring_first, ring_last, kv_first, kv_last, selected, slot;
    __device__ int window() const { return ring_last - ring_first + kv_last - kv_first; }
};

__device__ inline void fault(const Args& a) {
    if (a.faults != nullptr) {
        atomicAdd(a.faults, 1ull);
    }
}

// The keys of row t in list order; no keys for dead rows and inconsistent tables.
__device__ __forceinline__ List list_of(const Args& a, int t, bool report) {
    List l{0, 0, 0, 0, 0, -1};
    const Row row = a.row[t];
    const int count = a.K > 0 ? a.count[t] : 0;
    if (row.slot < 0) {
        return l;
    }
    bool good = row.seg >= 0 && row.seg < a.S && row.slot < a.ring_slots;
    Segment s{};
    if (good) {
        s = a.seg[row.seg];
        good = s.slot == row.slot && t >= s.row0 && t < s.row0 + s.rows &&
               row.pos == s.pos0 + (t - s.row0) && s.row0 >= 0 && s.row0 + s.rows <= a.T;
    }
    if (!good) {
        if (report) {
            fault(a);
        }
        return l;
    }
    const int low = max(0, a.half == 0 ? s.win_lo[0] : s.win_lo[1]);
    l.slot = row.slot;
    if (a.block_mode) {
        l.ring_first = max(low, s.pos0 - a.window);
        l.ring_last = max(l.ring_first, s.pos0);
        l.kv_first = s.row0;
        l.kv_last = s.row0 + s.rows;
    } else {
        const int first = max(low, row.pos - a.window + 1);
        l.ring_first = min(first, s.pos0);
        l.ring_last = s.pos0;
        l.kv_first = s.row0 + max(0, first - s.pos0);
        l.kv_last = max(l.kv_first, t + 1);
    }
    if (l.ring_last - l.ring_first > a.ring_R) {
        if (report) {
            fault(a);
        }
        l.ring_first = l.ring_last - a.ring_R;
    }
    l.selected = min(max(count, 0), a.K);
    return l;
}

__device__ inline int64_t code_bytes(int format, int64_t width) {
    return format == kBf16 ? width * 2 : format == kQ8 ? width : width / 2;
}
__device__ inline int64_t scale_bytes(int format, int64_t width) {
    return format == kBf16 ? 0 : format == kQ4e ? width / 16 : width / 32;
}

__device__ inline int page_of(const Args& a, int slot, int g) {
    const int index = g < 0 ? -1 : g / a.rows_per_page;
    return index >= 0 && index < a.table_width && slot < a.table_slots
               ? a.table[int64_t{slot} * a.table_width + index]
               : -1;
}

/// Key `at` of the window part; format kNone beyond its end.
__device__ inline Key window_key(const Args& a, const List& l, int at, int D) {
    Key k{nullptr, nullptr, kNone, 0};
    const int ring = l.ring_last - l.ring_first;
    if (at < ring) {
        const int64_t r = int64_t{l.slot} * a.ring_R + (l.ring_first + at) % a.ring_R;
        k.codes = a.ring_codes + r * code_bytes(a.ring_format, D);
        k.scales = a.ring_scales + r * scale_bytes(a.ring_format, D);
        k.format = a.ring_format;
    } else if (at < l.window()) {
        k.codes = reinterpret_cast<const uint8_t*>(a.kv + int64_t{l.kv_first + at - ring} * D);
        k.format = kBf16;
    }
    return k;
}
/// Compressed row g on `page`; format kNone for a missing page.
__device__ inline Key selected_key(const Args& a, int g, int page, int D, bool report) {
    Key k{nullptr, nullptr, kNone, 0};
    if (page < 0 || page >= a.pages) {
        if (report) {
            fault(a);
        }
        return k;
    }
    const uint8_t* base = a.pool + page * a.page_bytes;
    const int r = g % a.rows_per_page;
    k.codes = base + a.codes_at + r * code_bytes(a.comp_format, D);
    k.scales = base + a.scales_at + r * scale_bytes(a.comp_format, D);
    k.format = a.comp_format;
    return k;
}

__device__ inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    uint32_t r;
    if constexpr (kHasBf16Mul) {
        asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    } else {  // plus -0 changes nothing
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
    }
    return r;
}

// Eight E4M3 values times 2^(scale - 127), exact in bf16.
__device__ inline uint4 unpack_q8(uint2 codes, uint32_t scale) {
    const uint32_t s = scale << 7 | scale << 23;
    uint32_t out[4];
    const uint32_t in[2] = {codes.x, codes.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t y = __byte_perm(in[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424);
        // E4M3 exponent and fraction moved into bf16: 2^-120 times the value, subnormals included.
        const uint32_t r = (y & 0x80008000u) | (y >> 4 & 0x07F007F0u);
        out[i] = mul_bf16x2(mul_bf16x2(r, 0x7B807B80u), s);
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

// Four E2M1 nibbles (low 16 bits) as bf16.
__device__ inline uint2 e2m1x4(uint32_t x) {
    const uint32_t index = x & 0x7777u;
    const uint32_t high = __byte_perm(0x3F3F3F00u, 0x40404040u, index);
    const uint32_t low = __byte_perm(0xC0800000u, 0xC0804000u, index);
    // Selector bit 3 replicates the byte's sign: 0x80 for a positive code, 0xFF for a negative one.
    uint32_t sign;  // __byte_perm would mask that bit
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(sign) : "r"(0x80808080u), "r"(x));
    sign <<= 1;
    const uint32_t signed_high = high | (sign & 0x80808080u);
    return make_uint2(__byte_perm(low, signed_high, 0x5140), __byte_perm(low, signed_high, 0x7362));
}

// Eight E2M1 values times an E4M3 scale, exact in bf16 (six significant bits).
__device__ inline uint4 unpack_q4e(uint32_t codes, uint32_t scale) {
    const float s = __uint_as_float((scale & 0x7Fu) << 20) * 0x1p120f;
    const uint32_t s2 = __byte_perm(__float_as_uint(s), 0, 0x3232);
    const uint2 a = e2m1x4(codes);
    const uint2 b = e2m1x4(codes >> 16);
    return make_uint4(mul_bf16x2(a.x, s2), mul_bf16x2(a.y, s2), mul_bf16x2(b.x, s2),
                      mul_bf16x2(b.y, s2));
}

__device__ inline uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline float low_half(uint32_t w) {
    return __uint_as_float(w << 16);
}
__device__ inline float high_half(uint32_t w) {
    return __uint_as_float(w & 0xFFFF0000u);
}
__device__ inline uint32_t pack(float low, float high) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&v);
}
/// Two numbers as sums of bf16 terms, largest first: 16 bits of each in two terms, all 24 in three.
template <int kTerms>
struct Terms {
    uint32_t term[kTerms];
    __device__ Terms(float x, float y) {
#pragma unroll
        for (int i = 0; i < kTerms; ++i) {
            term[i] = pack(x, y);
            x -= low_half(term[i]);
            y -= high_half(term[i]);
        }
    }
    /// Of both numbers, as far as the terms hold them.
    __device__ float sum() const {
        float x = low_half(term[0]);
        float y = high_half(term[0]);
#pragma unroll
        for (int i = 1; i < kTerms; ++i) {
            x += low_half(term[i]);
            y += high_half(term[i]);
        }
        return x + y;
    }
};

// rope.turn of one pair (ops.md 3.5), in its fma form.
__device__ inline uint32_t turn(uint32_t pair, float c, float s) {
    const float a = low_half(pair);
    const float b = high_half(pair);
    return pack(__fmaf_rn(a, c, -__fmul_rn(b, s)), __fmaf_rn(a, s, __fmul_rn(b, c)));
}

}  // namespace tenon::cuda::sparse
