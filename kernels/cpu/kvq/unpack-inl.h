// SPDX-License-Identifier: MIT
// Stored rows to f32 with SIMD, 16 columns at a time. The values of unpack_row (but -0 may come out
// as +0). Included once per target.

#if defined(TENON_CPU_UNPACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TENON_CPU_UNPACK_INL_H
#undef TENON_CPU_UNPACK_INL_H
#else
#define TENON_CPU_UNPACK_INL_H
#endif

#include "common/simd-inl.h"
#include "tenon/numeric.h"
#include "tenon/ops/state.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

#if TENON_SIMD

using DU8 = hn::Rebind<uint8_t, D16>;
using DI8 = hn::Rebind<int8_t, D16>;
using DByte = hn::Full128<uint8_t>;

/// 16 E4M3 codes times `scale`.
HWY_INLINE F16 unpack_e4m3(const uint8_t* codes, float scale) {
    const D16 d;
    const DU32 du;
    const DI32 di;
    const V factor = hn::Set(d, scale);
    F16 r;
    TENON_PARTS {
        const auto c = hn::PromoteTo(du, hn::LoadU(DU8(), codes + i * kLanes));
        const auto size = hn::And(c, hn::Set(du, 0x7F));
        const auto sign = hn::ShiftLeft<24>(hn::And(c, hn::Set(du, 0x80)));
        const V normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(size), hn::Set(du, 120u << 23)));
        const V small = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, size)), hn::Set(d, 0x1p-9f));
        V v = hn::IfThenElse(hn::RebindMask(d, hn::Lt(hn::BitCast(di, size), hn::Set(di, 8))),
                             small, normal);
        const auto nan = hn::RebindMask(d, hn::Eq(size, hn::Set(du, 0x7F)));
        v = hn::IfThenElse(nan, hn::BitCast(d, hn::Set(du, 0x7FC00000u)), v);
        r.p[i] = hn::Mul(hn::BitCast(d, hn::Or(hn::BitCast(du, v), sign)), factor);
    }
    return r;
}

/// Twice the value of each E2M1 code, as bytes.
HWY_INLINE hn::Vec<DByte> doubled_e2m1(hn::Vec<DByte> codes) {
    HWY_ALIGN static constexpr uint8_t kTwice[16] = {0, 1,   2,   3,   4,   6,   8,   12,
                                                     0, 255, 254, 253, 252, 250, 248, 244};
    return hn::TableLookupBytes(hn::Load(DByte(), kTwice), codes);
}

/// 16 E2M1 codes from 8 bytes, times `scale`.
HWY_INLINE F16 unpack_e2m1(const uint8_t* codes, float scale) {
    const D16 d;
    const DByte d8;
    const hn::Half<DByte> half;
    const auto packed = hn::ZeroExtendVector(d8, hn::LoadU(half, codes));
    const auto low = hn::And(packed, hn::Set(d8, 15));
    const auto high = hn::And(
        hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(hn::Repartition<uint16_t, DByte>(), packed))),
        hn::Set(d8, 15));
    HWY_ALIGN int8_t twice[16];
    hn::Store(doubled_e2m1(hn::InterleaveLower(d8, low, high)), d8,
              reinterpret_cast<uint8_t*>(twice));
    const V factor = hn::Set(d, 0.5f * scale);
    F16 r;
    TENON_PARTS {
        const auto wide = hn::PromoteTo(DI32(), hn::LoadU(DI8(), twice + i * kLanes));
        r.p[i] = hn::Mul(hn::ConvertTo(d, wide), factor);
    }
    return r;
}

/// One stored row; n % 16 = 0 (q8, q4u: % 32).
HWY_INLINE void unpack_vector(RowFormat format, const uint8_t* codes, const uint8_t* scales,
                              int64_t n, float* out) {
    switch (format) {
        case RowFormat::bf16:
            for (int64_t i = 0; i < n; i += 16) {
                store16(load16(reinterpret_cast<const uint16_t*>(codes) + i), out + i);
            }
            break;
        case RowFormat::q8:
            for (int64_t i = 0; i < n; i += 32) {
                const float s = e8m0_to_f32(scales[i / 32]);
                store16(unpack_e4m3(codes + i, s), out + i);
                store16(unpack_e4m3(codes + i + 16, s), out + i + 16);
            }
            break;
        case RowFormat::q4u:
        case RowFormat::q4e:
            for (int64_t i = 0; i < n; i += 16) {
                const float s = format == RowFormat::q4e ? e4m3_to_f32(scales[i / 16])
                                                         : e8m0_to_f32(scales[i / 32]);
                store16(unpack_e2m1(codes + i / 2, s), out + i);
            }
            break;
    }
}

#endif  // TENON_SIMD

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
