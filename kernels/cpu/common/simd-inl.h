// SPDX-License-Identifier: MIT
// Vectors of 16 f32 lanes on every target, so that sums have one order and AVX2, AVX-512 and NEON
// give equal bits. Included once per target (foreach_target).

#if defined(TENON_CPU_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TENON_CPU_SIMD_INL_H
#undef TENON_CPU_SIMD_INL_H
#else
#define TENON_CPU_SIMD_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

// The baseline that Highway always adds compiles to "no SIMD version".
#undef TENON_SIMD
#if HWY_NATIVE_FMA && !HWY_HAVE_SCALABLE
#define TENON_SIMD 1
#else
#define TENON_SIMD 0
#endif

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

#if TENON_SIMD

namespace hn = hwy::HWY_NAMESPACE;

using D16 = hn::CappedTag<float, 16>;
using V = hn::Vec<D16>;
constexpr size_t kLanes = hn::MaxLanes(D16());
constexpr size_t kParts = 16 / kLanes;
using DU32 = hn::RebindToUnsigned<D16>;
using DI32 = hn::RebindToSigned<D16>;
using DU16 = hn::Rebind<uint16_t, D16>;
using D4 = hn::Full128<float>;
using V4 = hn::Vec<D4>;

/// Lane 16 = part * kLanes + lane of the part.
struct F16 {
    V p[kParts];
};

#define TENON_PARTS for (size_t i = 0; i < kParts; ++i)

HWY_INLINE F16 zero16() {
    F16 r;
    TENON_PARTS r.p[i] = hn::Zero(D16());
    return r;
}
HWY_INLINE F16 set16(float x) {
    F16 r;
    TENON_PARTS r.p[i] = hn::Set(D16(), x);
    return r;
}
HWY_INLINE F16 load16(const float* x) {
    F16 r;
    TENON_PARTS r.p[i] = hn::LoadU(D16(), x + i * kLanes);
    return r;
}
HWY_INLINE V widen(const uint16_t* x) {
    return hn::BitCast(D16(), hn::ShiftLeft<16>(hn::PromoteTo(DU32(), hn::LoadU(DU16(), x))));
}
HWY_INLINE F16 load16(const uint16_t* x) {
    F16 r;
    TENON_PARTS r.p[i] = widen(x + i * kLanes);
    return r;
}
HWY_INLINE void store16(const F16& a, float* x) {
    TENON_PARTS hn::StoreU(a.p[i], D16(), x + i * kLanes);
}
HWY_INLINE F16 add16(const F16& a, const F16& b) {
    F16 r;
    TENON_PARTS r.p[i] = hn::Add(a.p[i], b.p[i]);
    return r;
}
HWY_INLINE F16 mul16(const F16& a, const F16& b) {
    F16 r;
    TENON_PARTS r.p[i] = hn::Mul(a.p[i], b.p[i]);
    return r;
}
HWY_INLINE F16 fma16(const F16& a, const F16& b, const F16& acc) {
    F16 r;
    TENON_PARTS r.p[i] = hn::MulAdd(a.p[i], b.p[i], acc.p[i]);
    return r;
}
HWY_INLINE F16 max16(const F16& a, const F16& b) {
    F16 r;
    TENON_PARTS r.p[i] = hn::Max(a.p[i], b.p[i]);
    return r;
}

/// bf16 bits of f32 bits, nearest even, in the low half; NaN stays a quiet NaN.
HWY_INLINE hn::Vec<DU32> round_bits(V x) {
    const DU32 du;
    const auto u = hn::BitCast(du, x);
    const auto high = hn::ShiftRight<16>(u);
    const auto odd = hn::And(high, hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(du, 0x7FFF))));
    const auto nan = hn::RebindMask(du, hn::IsNaN(x));
    return hn::IfThenElse(nan, hn::Or(high, hn::Set(du, 0x40)), rounded);
}
HWY_INLINE void narrow(V x, uint16_t* out) {
    hn::StoreU(hn::TruncateTo(DU16(), round_bits(x)), DU16(), out);
}
HWY_INLINE void store16(const F16& a, uint16_t* x) {
    TENON_PARTS narrow(a.p[i], x + i * kLanes);
}
/// Rounds to bf16 and back.
HWY_INLINE F16 round16(const F16& a) {
    F16 r;
    TENON_PARTS r.p[i] = hn::BitCast(D16(), hn::ShiftLeft<16>(round_bits(a.p[i])));
    return r;
}

/// z[l] = (x[l] + x[l + 8]) + (x[l + 4] + x[l + 12]).
HWY_INLINE V4 fold4(const F16& a) {
#if HWY_MAX_BYTES >= 64
    const hn::CappedTag<float, 8> d8;
    const auto y = hn::Add(hn::LowerHalf(d8, a.p[0]), hn::UpperHalf(d8, a.p[0]));
    return hn::Add(hn::LowerHalf(D4(), y), hn::UpperHalf(D4(), y));
#elif HWY_MAX_BYTES >= 32
    const auto y = hn::Add(a.p[0], a.p[1]);
    return hn::Add(hn::LowerHalf(D4(), y), hn::UpperHalf(D4(), y));
#else
    return hn::Add(hn::Add(a.p[0], a.p[2]), hn::Add(a.p[1], a.p[3]));
#endif
}
/// Four sums at once: (z[0] + z[2]) + (z[1] + z[3]) of each.
HWY_INLINE V4 sum4(const F16& a, const F16& b, const F16& c, const F16& d) {
    const D4 d4;
    const V4 za = fold4(a);
    const V4 zb = fold4(b);
    const V4 zc = fold4(c);
    const V4 zd = fold4(d);
    const V4 ab = hn::Add(hn::InterleaveLower(d4, za, zb), hn::InterleaveUpper(d4, za, zb));
    const V4 cd = hn::Add(hn::InterleaveLower(d4, zc, zd), hn::InterleaveUpper(d4, zc, zd));
    return hn::Add(hn::ConcatLowerLower(d4, cd, ab), hn::ConcatUpperUpper(d4, cd, ab));
}
HWY_INLINE float sum1(const F16& a) {
    float z[4];
    hn::StoreU(fold4(a), D4(), z);
    return (z[0] + z[2]) + (z[1] + z[3]);
}
HWY_INLINE float max1(const F16& a) {
    V m = a.p[0];
    for (size_t i = 1; i < kParts; ++i) {
        m = hn::Max(m, a.p[i]);
    }
    return hn::GetLane(hn::MaxOfLanes(D16(), m));
}

/// The first n < 16 elements, the rest zero.
template <class T>
HWY_INLINE F16 load_part(const T* x, int64_t n) {
    T piece[16] = {};
    for (int64_t i = 0; i < n; ++i) {
        piece[i] = x[i];
    }
    return load16(piece);
}

using D64 = hn::CappedTag<double, 8>;
constexpr size_t kLanes64 = hn::MaxLanes(D64());
constexpr size_t kParts64 = 16 / kLanes64;
using DHalf = hn::Rebind<float, D64>;
using DQuarter = hn::Rebind<uint16_t, D64>;
using V64 = hn::Vec<D64>;

/// 16 f64 lanes, for sums that must neither overflow nor lose digits.
struct F64x16 {
    V64 p[kParts64];
};
#define TENON_PARTS64 for (size_t i = 0; i < kParts64; ++i)

HWY_INLINE F64x16 zero64() {
    F64x16 r;
    TENON_PARTS64 r.p[i] = hn::Zero(D64());
    return r;
}
HWY_INLINE F64x16 load64(const float* x) {
    F64x16 r;
    TENON_PARTS64 r.p[i] = hn::PromoteTo(D64(), hn::LoadU(DHalf(), x + i * kLanes64));
    return r;
}
HWY_INLINE F64x16 load64(const uint16_t* x) {
    const hn::RebindToUnsigned<DHalf> du;
    F64x16 r;
    TENON_PARTS64 {
        const auto bits = hn::PromoteTo(du, hn::LoadU(DQuarter(), x + i * kLanes64));
        r.p[i] = hn::PromoteTo(D64(), hn::BitCast(DHalf(), hn::ShiftLeft<16>(bits)));
    }
    return r;
}
HWY_INLINE F64x16 fma64(const F64x16& a, const F64x16& b, const F64x16& acc) {
    F64x16 r;
    TENON_PARTS64 r.p[i] = hn::MulAdd(a.p[i], b.p[i], acc.p[i]);
    return r;
}
HWY_INLINE double sum1(const F64x16& a) {
    double x[16];
    TENON_PARTS64 hn::StoreU(a.p[i], D64(), x + i * kLanes64);
    for (int step = 8; step > 0; step /= 2) {
        for (int i = 0; i < step; ++i) {
            x[i] += x[i + step];
        }
    }
    return x[0];
}

/// out[r * 4 + c] = x_r . w_c for kRows rows and four weight rows; the order of each sum depends on
/// K alone.
template <int kRows, class X, class W>
HWY_INLINE void dots(const X* x, int64_t x_stride, const W* const (&w)[4], int64_t K, float* out) {
    F16 acc[kRows][4];
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < 4; ++c) {
            acc[r][c] = zero16();
        }
    }
    int64_t k = 0;
    for (; k + 16 <= K; k += 16) {
        F16 wk[4];
        for (int c = 0; c < 4; ++c) {
            wk[c] = load16(w[c] + k);
        }
        for (int r = 0; r < kRows; ++r) {
            const F16 xk = load16(x + r * x_stride + k);
            for (int c = 0; c < 4; ++c) {
                acc[r][c] = fma16(xk, wk[c], acc[r][c]);
            }
        }
    }
    if (k < K) {
        for (int r = 0; r < kRows; ++r) {
            const F16 xk = load_part(x + r * x_stride + k, K - k);
            for (int c = 0; c < 4; ++c) {
                acc[r][c] = fma16(xk, load_part(w[c] + k, K - k), acc[r][c]);
            }
        }
    }
    for (int r = 0; r < kRows; ++r) {
        hn::StoreU(sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]), D4(), out + r * 4);
    }
}

#endif  // TENON_SIMD

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
