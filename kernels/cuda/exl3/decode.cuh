// SPDX-License-Identifier: MIT
// Windows of a run and the codebooks, in registers.
#pragma once

#include <cuda_fp16.h>

#include "layout.h"

namespace tenon::exl3::cuda {

constexpr uint32_t kInst3Multiplier = 89226354u;
constexpr uint32_t kInst3Addend = 64248484u;
constexpr uint32_t kMcgMultiplier = 0xCBAC1FEDu;
constexpr uint32_t kMul1Multiplier = 0x83DCD12Du;

/// Words of one run that are held in registers: the word before it (its low half counts), then the
/// run.
TENON_HD constexpr int run_registers(int twice_k) {
    return 1 + (twice_k + 1) / 2;
}

/// A half of a register. Shifts and masks share one pipe, products the other, so part of the halves
/// are taken by a product.
template <bool kByProduct>
__device__ __forceinline__ uint32_t low_half(uint32_t v) {
    if constexpr (kByProduct) {
        return __dp2a_lo(v, 1u, 0u);
    } else {
        return v & 0xFFFFu;
    }
}
template <bool kByProduct>
__device__ __forceinline__ uint32_t high_half(uint32_t v) {
    if constexpr (kByProduct) {
        return __dp2a_lo(v, 0x100u, 0u);
    } else {
        return v >> 16;
    }
}

/// How the window of a position is cut out: `bits` = shift % 8 of word `word` (and the one before)
/// make a copy in which it starts `bytes` bytes from the right.
struct WindowPlace {
    int word, shift, bits, bytes;
    bool shares_copy;  ///< another window of the lane's step uses the same copy
};
template <int kTwiceK>
TENON_HD constexpr WindowPlace window_place(int q) {
    const auto place = [](int p) {
        const int end = run_end(kTwiceK, p);
        const int shift = (32 - end % 32) % 32;
        return WindowPlace{(end - 1) / 32, shift, shift % 8, shift / 8, false};
    };
    WindowPlace w = place(q);
    for (int p = q % 4; p < 32; p += 4) {
        const WindowPlace other = place(p);
        if (p != q && other.word == w.word && other.bits == w.bits && other.bytes < 3) {
            w.shares_copy = true;
        }
    }
    return w;
}

enum class Cut { low, high, middle, shifted };  ///< of a copy; `shifted`: of a copy of its own
template <int kTwiceK>
TENON_HD constexpr Cut window_cut(int q) {
    const WindowPlace w = window_place<kTwiceK>(q);
    if (w.bytes == 3 || (w.bits != 0 && !w.shares_copy)) {
        return Cut::shifted;
    }
    return w.bytes == 0 ? Cut::low : (w.bytes == 1 ? Cut::middle : Cut::high);
}

/// Whether the half of a window is taken by a product: as many as balance the two pipes, spread
/// evenly. Measured: neither fewer nor more are faster.
template <int kTwiceK>
TENON_HD constexpr bool window_by_product(int q) {
    int shifts = 6;  // the lane's share of other work on that pipe
    int halves = 0;
    int before = 0;
    bool copied[8][16] = {};
    for (int p = 0; p < 32; ++p) {
        const WindowPlace w = window_place<kTwiceK>(p);
        const Cut cut = window_cut<kTwiceK>(p);
        if (cut == Cut::shifted) {
            ++shifts;
        } else if (w.bits != 0 && !copied[w.bits][w.word]) {
            copied[w.bits][w.word] = true;
            ++shifts;
        }
        if (cut == Cut::middle) {
            ++shifts;
        } else {
            before += p < q ? 1 : 0;
            ++halves;
        }
    }
    int plain = (32 + halves - shifts) / 2;  // 32 products make the weights
    plain = plain < 0 ? 0 : (plain > halves ? halves : plain);
    const int products = halves - plain;
    return (before + 1) * products / halves != before * products / halves;
}

/// State of position kQ of a run: 16 bits that end at run_end, first bit most significant.
template <int kTwiceK, int kQ>
__device__ __forceinline__ uint32_t window(const uint32_t (&run)[run_registers(kTwiceK)]) {
    constexpr WindowPlace w = window_place<kTwiceK>(kQ);
    constexpr Cut kCut = window_cut<kTwiceK>(kQ);
    constexpr bool kByProduct = window_by_product<kTwiceK>(kQ);
    if constexpr (kCut == Cut::shifted) {
        return low_half<kByProduct>(w.shift < 16
                                        ? run[1 + w.word] >> w.shift
                                        : __funnelshift_r(run[1 + w.word], run[w.word], w.shift));
    } else {
        // Equal copies of a step are one instruction.
        const uint32_t copy =
            w.bits == 0 ? run[1 + w.word] : __funnelshift_r(run[1 + w.word], run[w.word], w.bits);
        if constexpr (kCut == Cut::low) {
            return low_half<kByProduct>(copy);
        } else if constexpr (kCut == Cut::high) {
            return high_half<kByProduct>(copy);
        } else {
            return __byte_perm(copy, 0, 0x4421);
        }
    }
}

/// What the tensor core is fed with: mul1 as four bytes whose sum is the weight's index, the others
/// as two halves whose sum is the weight.
template <Code kCode>
__device__ __forceinline__ uint32_t raw_weight(uint32_t state) {
    if constexpr (kCode == Code::mul1) {
        return state * kMul1Multiplier;
    } else if constexpr (kCode == Code::mcg) {
        return ((state * kMcgMultiplier) & 0x8FFF8FFFu) ^ 0x3B603B60u;
    } else {
        return ((state * kInst3Multiplier + kInst3Addend) & 0x8FFF8FFFu) ^ 0x3B603B60u;
    }
}

/// The weight itself, bit for bit as the format defines it.
template <Code kCode>
__device__ __forceinline__ __half exact_weight(uint32_t state) {
    const uint32_t raw = raw_weight<kCode>(state);
    if constexpr (kCode == Code::mul1) {
        const uint32_t biased = __dp4a(raw, 0x01010101u, 0x6400u);
        return __hfma(__ushort_as_half(static_cast<unsigned short>(biased)),
                      __ushort_as_half(0x1EEE), __ushort_as_half(0xC931));
    } else {
        return __hadd(__ushort_as_half(static_cast<unsigned short>(raw & 0xFFFFu)),
                      __ushort_as_half(static_cast<unsigned short>(raw >> 16)));
    }
}

/// Loads the four runs of a lane from a unit (shared or global memory).
template <int kTwiceK>
__device__ __forceinline__ void load_runs(const uint32_t* unit, int lane,
                                          uint32_t (&runs)[4][run_registers(kTwiceK)]) {
    const int before = (lane - 4) & 31;  // the stream of a tile is circular
    if constexpr (kTwiceK % 2 == 0) {
        constexpr int kWords = kTwiceK / 2;
        const auto* quads = reinterpret_cast<const uint4*>(unit);
        const uint4 last = quads[(kWords - 1) * 32 + before];
        runs[0][0] = last.x;
        runs[1][0] = last.y;
        runs[2][0] = last.z;
        runs[3][0] = last.w;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const uint4 quad = quads[i * 32 + lane];
            runs[0][1 + i] = quad.x;
            runs[1][1 + i] = quad.y;
            runs[2][1 + i] = quad.z;
            runs[3][1 + i] = quad.w;
        }
    } else {
        // A string holds two runs of kTwiceK / 2 words; the second starts in the middle of a word.
        constexpr int kHalf = kTwiceK / 2;
        const auto* pairs = reinterpret_cast<const uint2*>(unit);
        uint32_t words[2][kTwiceK];
#pragma unroll
        for (int i = 0; i < kTwiceK; ++i) {
            const uint2 pair = pairs[i * 32 + lane];
            words[0][i] = pair.x;
            words[1][i] = pair.y;
        }
        const uint2 middle = pairs[kHalf * 32 + before];
        const uint2 last = pairs[(kTwiceK - 1) * 32 + before];
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            runs[2 * s][0] = (s == 0 ? middle.x : middle.y) >> 16;
            runs[2 * s + 1][0] = s == 0 ? last.x : last.y;
#pragma unroll
            for (int i = 0; i <= kHalf; ++i) {
                runs[2 * s][1 + i] = words[s][i];
                runs[2 * s + 1][1 + i] =
                    i < kHalf ? __funnelshift_l(words[s][kHalf + i + 1], words[s][kHalf + i], 16)
                              : words[s][kTwiceK - 1] << 16;
            }
        }
    }
}

/// A value that depends on every load of the runs. The copy engine writes into stages that loads
/// read which have only been issued, and may wait long behind other warps' atomics: a copy that
/// takes the place of runs must depend on this (by `& zero`, with a zero that the compiler does not
/// know).
template <int kTwiceK>
__device__ __forceinline__ uint32_t runs_here(const uint32_t (&runs)[4][run_registers(kTwiceK)]) {
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < run_registers(kTwiceK); ++i) {
        all ^= runs[0][i];  // one register of each load
        if constexpr (kTwiceK % 2 != 0) {
            all ^= runs[1][i];
        }
    }
    return all;
}

}  // namespace tenon::exl3::cuda
