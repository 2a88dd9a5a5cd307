// SPDX-License-Identifier: MIT
// EXL3 blocks for a few rows on AVX2: a weight is multiplied in the register that it was decoded
// in, without a panel in memory. Included once per target.
//
// States are 16 bits wide, and so are the lanes that find them: 16 weights a vector up to their
// byte sum. Every output element is the same chain of fused multiply-adds over k ascending as in
// multiply_panel, so the number of rows does not show in the bits.

#if defined(TENON_EXL3_FUSED_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TENON_EXL3_FUSED_INL_H
#undef TENON_EXL3_FUSED_INL_H
#else
#define TENON_EXL3_FUSED_INL_H
#endif

#include "decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::exl3::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2

/// Position of the stream of a column that holds `row` of the tile's left or right half.
constexpr int position_of(int row, int half) {
    return (row & 1) | (row >> 3 & 1) << 1 | half << 2 | (row >> 1 & 3) << 3;
}

/// State of the 16 columns at a position, the low half of each 32-bit window.
template <int kTwice, int kP>
HWY_INLINE __m256i state_of(const __m256i* words, __m256i before) {
    constexpr int kLast = window_end(kTwice, kP) - 1;
    constexpr int kPiece = kLast / 16;
    constexpr int kShift = 15 - kLast % 16;
    const __m256i current = _mm256_loadu_si256(words + kPiece);
    if constexpr (kShift == 0) {
        return current;
    } else {
        const __m256i last = kPiece == 0 ? before : _mm256_loadu_si256(words + kPiece - 1);
        return _mm256_or_si256(_mm256_slli_epi16(last, 16 - kShift),
                               _mm256_srli_epi16(current, kShift));
    }
}

/// 64 times the sum of the four bytes of state * 0x83DCD12D mod 2^32.
HWY_INLINE __m256i scaled_sum(__m256i state) {
    const __m256i c0 = _mm256_set1_epi16(static_cast<int16_t>(0xD12D));
    const __m256i c1 = _mm256_set1_epi16(static_cast<int16_t>(0x83DC));
    const __m256i weight = _mm256_set1_epi8(64);
    const __m256i low = _mm256_mullo_epi16(state, c0);
    const __m256i high =
        _mm256_add_epi16(_mm256_mulhi_epu16(state, c0), _mm256_mullo_epi16(state, c1));
    return _mm256_add_epi16(_mm256_maddubs_epi16(low, weight), _mm256_maddubs_epi16(high, weight));
}

/// The weight of `m` = 1 + sum 2^-17. v = (1774 sum - 905216) 2^-18 is exact; t - 8192 v with one
/// rounding of t = 8193 v leaves 11 bits of it, ties to even (v has at most 20 bits); the codec
/// test holds it against the table for every state.
HWY_INLINE __m256 weight_of(__m256i m) {
    const __m256 v = _mm256_fmadd_ps(_mm256_castsi256_ps(m), _mm256_set1_ps(887.0f),
                                     _mm256_set1_ps(-56989.0f / 64));
    const __m256 t = _mm256_mul_ps(v, _mm256_set1_ps(8193.0f));
    return _mm256_fmadd_ps(v, _mm256_set1_ps(-8192.0f), t);
}

template <int kTwice, int kHalf, int kRow, int kRows>
HWY_INLINE void rows_of_half(const __m256i* words, __m256i before, const float* x, int64_t stride,
                             __m256 (&acc)[kRows][2]) {
    if constexpr (kRow < kTile) {
        const __m256i sum = scaled_sum(state_of<kTwice, position_of(kRow, kHalf)>(words, before));
        const __m256i one = _mm256_set1_epi16(0x3F80);
        const __m256 w0 = weight_of(_mm256_unpacklo_epi16(sum, one));
        const __m256 w1 = weight_of(_mm256_unpackhi_epi16(sum, one));
        HWY_UNROLL(2)
        for (int r = 0; r < kRows; ++r) {
            const __m256 xk = _mm256_broadcast_ss(x + r * stride + kRow);
            acc[r][0] = _mm256_fmadd_ps(xk, w0, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(xk, w1, acc[r][1]);
        }
        rows_of_half<kTwice, kHalf, kRow + 1, kRows>(words, before, x, stride, acc);
    }
}

template <int kTwice, int kHalf, int kRows>
HWY_INLINE void half_tiles(const __m256i* words, __m256i before, const float* x, int64_t stride,
                           float* y) {
    __m256 acc[kRows][2];
    HWY_UNROLL(2)
    for (int r = 0; r < kRows; ++r) {
        acc[r][0] = _mm256_load_ps(y + r * kRotation);
        acc[r][1] = _mm256_load_ps(y + r * kRotation + 8);
    }
    rows_of_half<kTwice, kHalf, 0, kRows>(words, before, x, stride, acc);
    HWY_UNROLL(2)
    for (int r = 0; r < kRows; ++r) {
        _mm256_store_ps(y + r * kRotation, acc[r][0]);
        _mm256_store_ps(y + r * kRotation + 8, acc[r][1]);
    }
}

/// y[kRows][128] = x times a block of `tile_rows` tile rows, in lane order.
template <int kTwice, int kRows>
void fused(const uint16_t* codes, int64_t tile_rows, const float* x, int64_t stride, float* y) {
    std::fill(y, y + kRows * kRotation, 0.0f);
    const auto* words = reinterpret_cast<const __m256i*>(codes);
    for (int64_t t = 0; t < tile_rows; ++t, x += kTile) {
        for (int64_t p = 0; p < kPairs; ++p, words += kTwice) {
            // The last piece of the column before, cyclic in each tile of 8 columns.
            const __m256i last = _mm256_loadu_si256(words + kTwice - 1);
            const __m256i before = _mm256_alignr_epi8(last, last, 14);
            half_tiles<kTwice, 0, kRows>(words, before, x, stride, y + 2 * kTile * p);
            half_tiles<kTwice, 1, kRows>(words, before, x, stride, y + 2 * kTile * p + kTile);
        }
    }
    // Unpacking left columns 0-3 of both tiles in one vector, 4-7 in the other.
    for (int64_t i = 0; i < kRows * kRotation; i += 16) {
        const __m256 a = _mm256_load_ps(y + i);
        const __m256 b = _mm256_load_ps(y + i + 8);
        _mm256_store_ps(y + i, _mm256_permute2f128_ps(a, b, 0x20));
        _mm256_store_ps(y + i + 8, _mm256_permute2f128_ps(a, b, 0x31));
    }
}

template <int kTwice>
constexpr FusedSet kFusedSet{{fused<kTwice, 1>, fused<kTwice, 2>}};

/// The kernels of a rate of mul1, or null.
inline const FusedSet* fused_for(int twice_k) {
    switch (twice_k) {
        case 2:
            return &kFusedSet<2>;
        case 3:
            return &kFusedSet<3>;
        case 4:
            return &kFusedSet<4>;
        case 5:
            return &kFusedSet<5>;
        case 6:
            return &kFusedSet<6>;
        case 7:
            return &kFusedSet<7>;
        case 8:
            return &kFusedSet<8>;
        case 10:
            return &kFusedSet<10>;
        case 12:
            return &kFusedSet<12>;
        case 14:
            return &kFusedSet<14>;
        case 16:
            return &kFusedSet<16>;
        default:
            return nullptr;
    }
}

#endif  // HWY_AVX2

}  // namespace tenon::exl3::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
