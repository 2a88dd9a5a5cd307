// SPDX-License-Identifier: MIT
// Weights as pairs of halves, bit for bit as the format defines them: the operands of a 16-bit
// tensor core.
#pragma once

#include <utility>

#include "decode.cuh"

namespace tenon::exl3::cuda {

/// Two weights, the first in the low half.
template <Code kCode>
__device__ __forceinline__ uint32_t exact_pair(uint32_t first, uint32_t second) {
    const uint32_t a = raw_weight<kCode>(first);
    const uint32_t b = raw_weight<kCode>(second);
    __half2 v;
    if constexpr (kCode == Code::mul1) {
        const uint32_t low = __dp4a(a, 0x01010101u, 0x6400u);
        const uint32_t both = __byte_perm(low, __dp4a(b, 0x01010101u, 0x6400u), 0x5410);
        const uint32_t factor = 0x1EEE1EEEu, offset = 0xC931C931u;
        v = __hfma2(*reinterpret_cast<const __half2*>(&both),
                    *reinterpret_cast<const __half2*>(&factor),
                    *reinterpret_cast<const __half2*>(&offset));
    } else {
        const uint32_t low = __byte_perm(a, b, 0x5410);
        const uint32_t high = __byte_perm(a, b, 0x7632);
        v = __hadd2(*reinterpret_cast<const __half2*>(&low),
                    *reinterpret_cast<const __half2*>(&high));
    }
    return *reinterpret_cast<const uint32_t*>(&v);
}

/// As window<>, all masks on one pipe: the products of exact_pair keep the other busy.
template <int kTwiceK, int kQ>
__device__ __forceinline__ uint32_t state_of(const uint32_t (&run)[run_registers(kTwiceK)]) {
    constexpr int kEnd = run_end(kTwiceK, kQ);
    constexpr int kWord = (kEnd - 1) / 32;
    constexpr int kShift = (32 - kEnd % 32) % 32;
    if constexpr (kShift == 0) {
        return run[1 + kWord] & 0xFFFFu;
    } else if constexpr (kShift == 16) {
        return run[1 + kWord] >> 16;
    } else if constexpr (kShift == 8) {
        return __byte_perm(run[1 + kWord], 0, 0x4421);
    } else if constexpr (kShift < 16) {
        return run[1 + kWord] >> kShift & 0xFFFFu;
    } else {
        return __funnelshift_r(run[1 + kWord], run[kWord], kShift) & 0xFFFFu;
    }
}

/// Weights of positions kQ and kQ + 1 of a run: rows run_row(kQ) and the next, one column.
template <int kTwiceK, Code kCode, int kQ>
__device__ __forceinline__ uint32_t run_pair(const uint32_t (&run)[run_registers(kTwiceK)]) {
    return exact_pair<kCode>(state_of<kTwiceK, kQ>(run), state_of<kTwiceK, kQ + 1>(run));
}

/// Two of the four runs of a lane (load_runs): runs 2 half and 2 half + 1.
template <int kTwiceK>
__device__ __forceinline__ void load_two_runs(const uint32_t* unit, int lane, int half,
                                              uint32_t (&runs)[2][run_registers(kTwiceK)]) {
    const int before = (lane - 4) & 31;
    if constexpr (kTwiceK % 2 == 0) {
        constexpr int kWords = kTwiceK / 2;
        const auto* pairs = reinterpret_cast<const uint2*>(unit) + half;
        const uint2 last = pairs[2 * ((kWords - 1) * 32 + before)];
        runs[0][0] = last.x;
        runs[1][0] = last.y;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const uint2 pair = pairs[2 * (i * 32 + lane)];
            runs[0][1 + i] = pair.x;
            runs[1][1 + i] = pair.y;
        }
    } else {
        constexpr int kHalf = kTwiceK / 2;
        const uint32_t* words = unit + half;
        uint32_t string[kTwiceK];
#pragma unroll
        for (int i = 0; i < kTwiceK; ++i) {
            string[i] = words[2 * (i * 32 + lane)];
        }
        runs[0][0] = words[2 * (kHalf * 32 + before)] >> 16;
        runs[1][0] = words[2 * ((kTwiceK - 1) * 32 + before)];
#pragma unroll
        for (int i = 0; i <= kHalf; ++i) {
            runs[0][1 + i] = string[i];
            runs[1][1 + i] = i < kHalf
                                 ? __funnelshift_l(string[kHalf + i + 1], string[kHalf + i], 16)
                                 : string[kTwiceK - 1] << 16;
        }
    }
}

}  // namespace tenon::exl3::cuda
