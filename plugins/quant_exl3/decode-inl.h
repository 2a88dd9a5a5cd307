// SPDX-License-Identifier: MIT
// Decodes EXL3 tiles with 16-lane vectors, exactly (docs/exl3.md 2). Included once per target.

#if defined(TENON_EXL3_DECODE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TENON_EXL3_DECODE_INL_H
#undef TENON_EXL3_DECODE_INL_H
#else
#define TENON_EXL3_DECODE_INL_H
#endif

#include "kernels/cpu/matrix/panel-inl.h"
#include "plugins/quant_exl3/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::exl3::HWY_NAMESPACE {

#if TENON_SIMD

using namespace tenon::packed::HWY_NAMESPACE;  // NOLINT
namespace hn = hwy::HWY_NAMESPACE;

using U = hn::Vec<DU32>;
constexpr size_t kPartLanes = hn::MaxLanes(DU32());  // of one hardware vector

/// Piece of 16 bits of each lane, widened. `part` counts hardware vectors of the 16 lanes.
HWY_INLINE U load_piece(const uint16_t* words, size_t part) {
    return hn::PromoteTo(DU32(), hn::LoadU(DU16(), words + part * kPartLanes));
}

/// The same pieces, each from the column before (cyclic over the 8 columns of a tile): the stream
/// of a column starts where that of its left neighbour ends.
HWY_INLINE U load_piece_before(const uint16_t* words, size_t part) {
#if HWY_MAX_BYTES >= 32
    const DU16 d;
    const hn::Repartition<uint8_t, DU16> d8;
    const auto v = hn::BitCast(d8, hn::LoadU(d, words + part * kPartLanes));
    return hn::PromoteTo(DU32(), hn::BitCast(d, hn::CombineShiftRightBytes<14>(d8, v, v)));
#else
    const hn::Full128<uint16_t> d;
    const hn::Full128<uint8_t> d8;
    const auto v = hn::BitCast(d8, hn::LoadU(d, words + part / 2 * 8));
    const auto r = hn::BitCast(d, hn::CombineShiftRightBytes<14>(d8, v, v));
    const hn::Half<decltype(d)> half;
    return hn::PromoteTo(DU32(), part % 2 == 0 ? hn::LowerHalf(half, r) : hn::UpperHalf(half, r));
#endif
}

/// Rounds to 11 significant bits, nearest even: what a half keeps of a number in its normal range.
/// Exact for all values that the codebooks produce (tested over all 65536 states): t = 8193 v is
/// rounded in the last place of 8192 v, so t - 8192 v is v without its 13 last bits.
HWY_INLINE V round_to_half(V v) {
    const V t = hn::Mul(v, hn::Set(D16(), 8193.0f));
    return hn::NegMulAdd(v, hn::Set(D16(), 8192.0f), t);
}

struct Mul1 {
    static HWY_INLINE V value(U state) {
        const U x = hn::Mul(state, hn::Set(DU32(), 0x83DCD12Du));
        // 2^23 + S as the bits of an f32, then (1774 S - 905216) 2^-18 with one exact fma.
        const V sum = hn::BitCast(D16(), byte_sum(x));
        return round_to_half(
            hn::MulAdd(sum, hn::Set(D16(), 0x1.bb8p-8f), hn::Set(D16(), -3633373.0f / 64)));
    }
    /// 0x4B000000 + the sum of the four bytes of each lane.
    static HWY_INLINE U byte_sum(U x) {
        const U magic = hn::Set(DU32(), 0x4B000000u);
#if HWY_TARGET == HWY_AVX3
        const __m512i pairs = _mm512_maddubs_epi16(x.raw, _mm512_set1_epi8(1));
        return hn::Add(U{_mm512_madd_epi16(pairs, _mm512_set1_epi16(1))}, magic);
#elif HWY_TARGET == HWY_AVX2
        const __m256i pairs = _mm256_maddubs_epi16(x.raw, _mm256_set1_epi8(1));
        return hn::Add(U{_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))}, magic);
#else
        const U even = hn::And(x, hn::Set(DU32(), 0x00FF00FFu));
        const U odd = hn::And(hn::ShiftRight<8>(x), hn::Set(DU32(), 0x00FF00FFu));
        const U both = hn::Add(even, odd);
        return hn::Add(hn::Add(hn::And(both, hn::Set(DU32(), 0xFFFFu)), hn::ShiftRight<16>(both)),
                       magic);
#endif
    }
};

/// Both halves of the masked product are normal fp16 numbers; with the exponent field moved into an
/// f32 they are too small by 2^112, which the sum takes back.
HWY_INLINE V sum_of_halves(U x) {
    const DI32 di;
    const U h = hn::Xor(hn::And(x, hn::Set(DU32(), 0x8FFF8FFFu)), hn::Set(DU32(), 0x3B603B60u));
    const U keep = hn::Set(DU32(), 0x8FFFE000u);
    const U high = hn::And(hn::BitCast(DU32(), hn::ShiftRight<3>(hn::BitCast(di, h))), keep);
    const U low = hn::And(
        hn::BitCast(DU32(), hn::ShiftRight<3>(hn::BitCast(di, hn::ShiftLeft<16>(h)))), keep);
    const V sum = hn::Add(hn::BitCast(D16(), low), hn::BitCast(D16(), high));
    return round_to_half(hn::Mul(sum, hn::Set(D16(), 0x1p112f)));
}

struct Mcg {
    static HWY_INLINE V value(U state) {
        return sum_of_halves(hn::Mul(state, hn::Set(DU32(), 0xCBAC1FEDu)));
    }
};

struct Inst3 {
    static HWY_INLINE V value(U state) {
        return sum_of_halves(
            hn::Add(hn::Mul(state, hn::Set(DU32(), 89226354u)), hn::Set(DU32(), 64248484u)));
    }
};

/// Positions kP.. of all lanes: lane (tile, column c) position p is stream position 32 c + p of its
/// tile. `pair` holds the current piece below the one before it.
template <int kTwice, class Codebook, int kP>
HWY_INLINE void positions(const uint16_t* words, size_t part, U current, U pair, float* panel) {
    if constexpr (kP < 32) {
        constexpr int kLast = window_end(kTwice, kP) - 1;
        constexpr int kPiece = kLast / 16;
        constexpr bool kFresh = kP == 0 || (window_end(kTwice, kP - 1) - 1) / 16 != kPiece;
        if constexpr (kFresh) {
            const U before =
                kP == 0 ? load_piece_before(words + (kTwice - 1) * kLanes, part) : current;
            current = load_piece(words + kPiece * kLanes, part);
            pair = hn::Or(hn::ShiftLeft<16>(before), current);
        }
        constexpr int kShift = 15 - kLast % 16;
        const U state =
            kShift == 0 ? current : hn::And(hn::ShiftRight<kShift>(pair), hn::Set(DU32(), 0xFFFFu));
        float* out = panel + tile_row(kP) * kRotation + tile_column(kP) / 8 * kLanes;
        hn::StoreU(Codebook::value(state), D16(), out + part * kPartLanes);
        positions<kTwice, Codebook, kP + 1>(words, part, current, pair, panel);
    }
}

template <int kTwice, class Codebook>
void decode(const uint16_t* words, int64_t tile_rows, float* panel) {
    for (int64_t t = 0; t < tile_rows; ++t) {
        for (int64_t p = 0; p < kPairs; ++p) {
            for (size_t part = 0; part < kParts; ++part) {
                positions<kTwice, Codebook, 0>(words, part, hn::Zero(DU32()), hn::Zero(DU32()),
                                               panel + 2 * kTile * p);
            }
            words += kTwice * kLanes;
        }
        panel += kTile * kRotation;
    }
}

/// The decoder of a rate, or null.
template <class Codebook>
DecodeFn decoder_for(int twice_k) {
    constexpr bool kHalves = std::is_same_v<Codebook, Mul1>;
    switch (twice_k) {
        case 2:
            return decode<2, Codebook>;
        case 3:
            return kHalves ? decode<3, Mul1> : nullptr;
        case 4:
            return decode<4, Codebook>;
        case 5:
            return kHalves ? decode<5, Mul1> : nullptr;
        case 6:
            return decode<6, Codebook>;
        case 7:
            return kHalves ? decode<7, Mul1> : nullptr;
        case 8:
            return decode<8, Codebook>;
        case 10:
            return decode<10, Codebook>;
        case 12:
            return decode<12, Codebook>;
        case 14:
            return decode<14, Codebook>;
        case 16:
            return decode<16, Codebook>;
        default:
            return nullptr;
    }
}

#endif  // TENON_SIMD

}  // namespace tenon::exl3::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
