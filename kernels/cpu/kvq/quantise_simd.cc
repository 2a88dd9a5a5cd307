// SPDX-License-Identifier: MIT
// The cache quantisers with SIMD: a group of 16 or 32 values stays in registers, every lane takes
// the reference's steps, so the bits are the same. A group with a NaN goes through the reference.
#include <algorithm>

#include "common/simd_targets.h"
#include "kvq/quantise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvq/quantise_simd.cc"
#include <hwy/foreach_target.h>

#include "common/simd-inl.h"
#include "kvq/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

#if TENON_SIMD

using U32 = hn::Vec<DU32>;

HWY_INLINE V magnitude(V x) {
    return hn::BitCast(D16(), hn::And(hn::BitCast(DU32(), x), hn::Set(DU32(), 0x7FFFFFFFu)));
}
HWY_INLINE U32 sign_of(V x) {
    return hn::And(hn::BitCast(DU32(), x), hn::Set(DU32(), 0x80000000u));
}

/// f32_to_e4m3 of every lane that is not NaN; the sign is bit 7.
HWY_INLINE U32 e4m3_codes(V q) {
    const D16 d;
    const DU32 du;
    const V a = hn::Min(magnitude(q), hn::Set(d, 448.0f));
    const U32 bits = hn::BitCast(du, a);
    const U32 odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 1));
    const U32 normal = hn::ShiftRight<20>(
        hn::Sub(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFFu))), hn::Set(du, 0x3C000000u)));
    const U32 small =
        hn::Sub(hn::BitCast(du, hn::Add(a, hn::Set(d, 0x1p14f))), hn::Set(du, 0x46800000u));
    const auto is_small = hn::RebindMask(du, hn::Lt(a, hn::Set(d, 0x1p-6f)));
    return hn::Or(hn::IfThenElse(is_small, small, normal), hn::ShiftRight<24>(sign_of(q)));
}

/// The values of E4M3 codes below 0x7F, sign in bit 7.
HWY_INLINE V e4m3_values(U32 code) {
    const D16 d;
    const DU32 du;
    const DI32 di;
    const U32 size = hn::And(code, hn::Set(du, 0x7F));
    const U32 sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(du, 0x80)));
    const V normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(size), hn::Set(du, 120u << 23)));
    const V small = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, size)), hn::Set(d, 0x1p-9f));
    const auto is_small = hn::RebindMask(d, hn::Lt(hn::BitCast(di, size), hn::Set(di, 8)));
    return hn::BitCast(d, hn::Or(hn::BitCast(du, hn::IfThenElse(is_small, small, normal)), sign));
}

/// Sum of what[i] over the bounds of f32_to_e2m1 that a magnitude passes.
HWY_INLINE V e2m1_steps(V a, float low, float middle, float high) {
    const D16 d;
    const V l = hn::Set(d, low);
    V sum = hn::IfThenElseZero(hn::Gt(a, hn::Set(d, 0.25f)), l);
    sum = hn::Add(sum, hn::IfThenElseZero(hn::Ge(a, hn::Set(d, 0.75f)), l));
    sum = hn::Add(sum, hn::IfThenElseZero(hn::Gt(a, hn::Set(d, 1.25f)), l));
    sum = hn::Add(sum, hn::IfThenElseZero(hn::Ge(a, hn::Set(d, 1.75f)), l));
    const V m = hn::Set(d, middle);
    sum = hn::Add(sum, hn::IfThenElseZero(hn::Gt(a, hn::Set(d, 2.5f)), m));
    sum = hn::Add(sum, hn::IfThenElseZero(hn::Ge(a, hn::Set(d, 3.5f)), m));
    return hn::Add(sum, hn::IfThenElseZero(hn::Gt(a, hn::Set(d, 5.0f)), hn::Set(d, high)));
}
/// f32_to_e2m1 of every lane that is not NaN.
HWY_INLINE U32 e2m1_codes(V q) {
    const U32 code = hn::BitCast(DU32(), hn::ConvertTo(DI32(), e2m1_steps(magnitude(q), 1, 1, 1)));
    return hn::Or(code, hn::ShiftRight<28>(sign_of(q)));
}
/// The value of the code of every lane that is not NaN.
HWY_INLINE V e2m1_values(V q) {
    const V v = e2m1_steps(magnitude(q), 0.5f, 1, 2);
    return hn::BitCast(D16(), hn::Or(hn::BitCast(DU32(), v), sign_of(q)));
}

/// Largest magnitude of kVectors times 16 values; `nan`: there is a NaN among them.
template <int kVectors>
HWY_INLINE float largest(const F16 (&x)[kVectors], bool* nan) {
    const D16 d;
    V most = hn::Zero(d);
    auto bad = hn::IsNaN(x[0].p[0]);
    for (int v = 0; v < kVectors; ++v) {
        TENON_PARTS {
            most = hn::Max(most, magnitude(x[v].p[i]));
            bad = hn::Or(bad, hn::IsNaN(x[v].p[i]));
        }
    }
    *nan = !hn::AllFalse(d, bad);
    return hn::GetLane(hn::MaxOfLanes(d, most));
}

template <int kVectors>
HWY_INLINE void load_group(const uint16_t* x, F16 (&out)[kVectors]) {
    for (int v = 0; v < kVectors; ++v) {
        out[v] = load16(x + 16 * v);
    }
}

/// One group's values as bf16.
template <RowFormat kFormat, int kVectors>
HWY_INLINE void group_values(const uint16_t* x, uint16_t* out) {
    F16 in[kVectors];
    load_group(x, in);
    bool nan = false;
    const float amax = largest(in, &nan);
    if (nan) {
        reference_quantiser().values(kFormat, x, 16 * kVectors, out);
        return;
    }
    const V scale = hn::Set(D16(), quantiser_scale_value(kFormat, quantiser_scale(kFormat, amax)));
    for (int v = 0; v < kVectors; ++v) {
        TENON_PARTS {
            const V q = hn::Div(in[v].p[i], scale);
            const V value = kFormat == RowFormat::q8 ? e4m3_values(e4m3_codes(q)) : e2m1_values(q);
            narrow(hn::Mul(value, scale), out + 16 * v + i * kLanes);
        }
    }
}

/// One group's codes, two of four bits a byte.
template <RowFormat kFormat, int kVectors>
HWY_INLINE void group_codes(const uint16_t* x, uint8_t* codes, uint8_t* scale) {
    F16 in[kVectors];
    load_group(x, in);
    bool nan = false;
    const float amax = largest(in, &nan);
    if (nan) {
        reference_quantiser().pack(kFormat, x, 16 * kVectors, codes, scale);
        return;
    }
    *scale = quantiser_scale(kFormat, amax);
    const V s = hn::Set(D16(), quantiser_scale_value(kFormat, *scale));
    HWY_ALIGN uint8_t code[16 * kVectors];
    for (int v = 0; v < kVectors; ++v) {
        TENON_PARTS {
            const V q = hn::Div(in[v].p[i], s);
            const U32 c = kFormat == RowFormat::q8 ? e4m3_codes(q) : e2m1_codes(q);
            hn::StoreU(hn::TruncateTo(DU8(), c), DU8(), code + 16 * v + i * kLanes);
        }
    }
    if (kFormat == RowFormat::q8) {
        std::copy_n(code, 16 * kVectors, codes);
        return;
    }
    for (int i = 0; i < 8 * kVectors; ++i) {
        codes[i] = static_cast<uint8_t>(code[2 * i] | (code[2 * i + 1] << 4));
    }
}

void pack(RowFormat format, const uint16_t* x, int64_t n, uint8_t* codes, uint8_t* scales) {
    switch (format) {
        case RowFormat::q8:
            for (int64_t i = 0; i < n; i += 32) {
                group_codes<RowFormat::q8, 2>(x + i, codes + i, scales + i / 32);
            }
            return;
        case RowFormat::q4u:
            for (int64_t i = 0; i < n; i += 32) {
                group_codes<RowFormat::q4u, 2>(x + i, codes + i / 2, scales + i / 32);
            }
            return;
        default:
            for (int64_t i = 0; i < n; i += 16) {
                group_codes<RowFormat::q4e, 1>(x + i, codes + i / 2, scales + i / 16);
            }
    }
}

void values(RowFormat format, const uint16_t* x, int64_t n, uint16_t* out) {
    switch (format) {
        case RowFormat::q8:
            for (int64_t i = 0; i < n; i += 32) {
                group_values<RowFormat::q8, 2>(x + i, out + i);
            }
            return;
        case RowFormat::q4u:
            for (int64_t i = 0; i < n; i += 32) {
                group_values<RowFormat::q4u, 2>(x + i, out + i);
            }
            return;
        default:
            for (int64_t i = 0; i < n; i += 16) {
                group_values<RowFormat::q4e, 1>(x + i, out + i);
            }
    }
}

const RowQuantiser* quantiser_target() {
    static constexpr RowQuantiser kSimd{&pack, &values};
    return &kSimd;
}
#else
const RowQuantiser* quantiser_target() {
    return nullptr;
}
#endif

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::cpu {

HWY_EXPORT(quantiser_target);
const RowQuantiser* simd_quantiser() {
    return HWY_DYNAMIC_DISPATCH(quantiser_target)();
}

}  // namespace tenon::cpu
#endif  // HWY_ONCE
