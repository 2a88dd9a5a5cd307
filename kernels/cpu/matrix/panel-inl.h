// SPDX-License-Identifier: MIT
// The inner product that packed matrices share: rows times a decoded panel of 128 columns, and the
// 128-wide rotation. Included once per target (foreach_target).
//
// Every output element is one chain of fused multiply-adds over k ascending, and every butterfly
// has one order, so bits do not depend on rows, chunks, threads or vector width.

#if defined(TENON_MATRIX_PANEL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TENON_MATRIX_PANEL_INL_H
#undef TENON_MATRIX_PANEL_INL_H
#else
#define TENON_MATRIX_PANEL_INL_H
#endif

#include "kernels/cpu/common/simd-inl.h"
#include "kernels/cpu/matrix/matrix.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::packed::HWY_NAMESPACE {

#if TENON_SIMD

using namespace tenon::cpu::HWY_NAMESPACE;  // NOLINT: vectors of 16 lanes
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kGroups = 8;  // vectors of 16 in a block of 128 columns

/// Registers that accumulators may take; the rest hold a panel row and one element of x.
constexpr int kAccumulators = HWY_MAX_BYTES == 32 ? 12 : 24;
constexpr int kRowTile = 6;

constexpr int groups_for(int rows) {
    int groups = kGroups;
    while (groups > 1 && rows * groups * static_cast<int>(kParts) > kAccumulators) {
        groups /= 2;
    }
    return groups;
}

/// y[r][128] (+)= sum over kc rows of the panel [kc][128] of x[r][k].
template <int kRows>
HWY_INLINE void multiply_tile(const float* HWY_RESTRICT x, int64_t x_stride,
                              const float* HWY_RESTRICT panel, int64_t kc, bool first,
                              float* HWY_RESTRICT y) {
    constexpr int kWide = groups_for(kRows);
    for (int g0 = 0; g0 < kGroups; g0 += kWide) {
        F16 acc[kRows][kWide];
        HWY_UNROLL(8)
        for (int r = 0; r < kRows; ++r) {
            HWY_UNROLL(8)
            for (int g = 0; g < kWide; ++g) {
                acc[r][g] = first ? zero16() : load16(y + r * kBlock + 16 * (g0 + g));
            }
        }
        const float* w = panel + 16 * g0;
        for (int64_t k = 0; k < kc; ++k, w += kBlock) {
            F16 wk[kWide];
            HWY_UNROLL(8)
            for (int g = 0; g < kWide; ++g) {
                wk[g] = load16(w + 16 * g);
            }
            HWY_UNROLL(8)
            for (int r = 0; r < kRows; ++r) {
                const F16 xk = set16(x[r * x_stride + k]);
                HWY_UNROLL(8)
                for (int g = 0; g < kWide; ++g) {
                    acc[r][g] = fma16(xk, wk[g], acc[r][g]);
                }
            }
        }
        HWY_UNROLL(8)
        for (int r = 0; r < kRows; ++r) {
            HWY_UNROLL(8)
            for (int g = 0; g < kWide; ++g) {
                store16(acc[r][g], y + r * kBlock + 16 * (g0 + g));
            }
        }
    }
}

/// As multiply_tile for any number of rows. `x` points at the first element of this chunk of k.
inline HWY_NOINLINE void multiply_panel(const float* x, int64_t x_stride, int64_t rows,
                                        const float* panel, int64_t kc, bool first, float* y) {
    int64_t r = 0;
    for (; r + kRowTile <= rows; r += kRowTile) {
        multiply_tile<kRowTile>(x + r * x_stride, x_stride, panel, kc, first, y + r * kBlock);
    }
    x += r * x_stride;
    y += r * kBlock;
    switch (rows - r) {
        case 1:
            return multiply_tile<1>(x, x_stride, panel, kc, first, y);
        case 2:
            return multiply_tile<2>(x, x_stride, panel, kc, first, y);
        case 3:
            return multiply_tile<3>(x, x_stride, panel, kc, first, y);
        case 4:
            return multiply_tile<4>(x, x_stride, panel, kc, first, y);
        case 5:
            return multiply_tile<5>(x, x_stride, panel, kc, first, y);
        default:
            return;
    }
}

/// Panel rows per step: few rows of x leave the panel in the first-level cache, many amortise loads
/// and stores of y. Any value gives the same bits.
constexpr int64_t kPanelRows = 128;
constexpr int64_t panel_rows(int64_t rows) {
    return rows <= 8 ? 32 : kPanelRows;
}

// In-lane halves of a butterfly: partner +- own, with the sign of the lane's bit.
HWY_INLINE F16 swap_bit0(const F16& a) {
    F16 r;
    TENON_PARTS r.p[i] = hn::Shuffle2301(a.p[i]);
    return r;
}
HWY_INLINE F16 swap_bit1(const F16& a) {
    F16 r;
    TENON_PARTS r.p[i] = hn::Shuffle1032(a.p[i]);
    return r;
}
HWY_INLINE F16 swap_bit2(const F16& a) {
    F16 r;
#if HWY_MAX_BYTES >= 32
    TENON_PARTS r.p[i] = hn::SwapAdjacentBlocks(a.p[i]);
#else
    TENON_PARTS r.p[i] = a.p[i ^ 1];
#endif
    return r;
}
HWY_INLINE F16 swap_bit3(const F16& a) {
    F16 r;
#if HWY_MAX_BYTES >= 64
    TENON_PARTS r.p[i] = hn::SwapAdjacentBlocks(hn::ReverseBlocks(D16(), a.p[i]));
#else
    TENON_PARTS r.p[i] = a.p[i ^ (kParts / 2)];
#endif
    return r;
}

struct Signs {
    F16 bit[4];
};
HWY_INLINE Signs load_signs() {
    alignas(64) static constexpr float kSigns[4][16] = {
        {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
        {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
        {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
        {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1}};
    Signs s;
    for (int b = 0; b < 4; ++b) {
        s.bit[b] = load16(kSigns[b]);
    }
    return s;
}

/// Rotates 128 values by the Sylvester matrix, without the factor 1 / sqrt(128). Lane bits 3 and 4
/// may be exchanged by the caller's layout: the matrix looks the same.
HWY_INLINE void rotate(F16 (&v)[kGroups], const Signs& s) {
    for (int g = 0; g < kGroups; ++g) {
        v[g] = fma16(v[g], s.bit[0], swap_bit0(v[g]));
        v[g] = fma16(v[g], s.bit[1], swap_bit1(v[g]));
        v[g] = fma16(v[g], s.bit[2], swap_bit2(v[g]));
        v[g] = fma16(v[g], s.bit[3], swap_bit3(v[g]));
    }
    HWY_UNROLL(8)
    for (int half = 1; half < kGroups; half *= 2) {
        for (int g = 0; g < kGroups; ++g) {
            if ((g & half) == 0) {
                const F16 a = v[g];
                const F16 b = v[g + half];
                TENON_PARTS {
                    v[g].p[i] = hn::Add(a.p[i], b.p[i]);
                    v[g + half].p[i] = hn::Sub(a.p[i], b.p[i]);
                }
            }
        }
    }
}

#endif  // TENON_SIMD

}  // namespace tenon::packed::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
