// SPDX-License-Identifier: MIT
// norm.rms with SIMD: the sum of squares in 16 lanes, then the reference's steps lane by lane.
#include <cmath>

#include "common/simd_targets.h"
#include "norm/rms.h"
#include "tenon/numeric.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "norm/rms_simd.cc"
#include <hwy/foreach_target.h>

#include "common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

#if TENON_SIMD

template <class X>
double square_sum(const X* x, int64_t n) {
    F64x16 acc = zero64();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const F64x16 v = load64(x + i);
        acc = fma64(v, v, acc);
    }
    if (i < n) {
        X piece[16] = {};
        for (int64_t j = i; j < n; ++j) {
            piece[j - i] = x[j];
        }
        const F64x16 v = load64(piece);
        acc = fma64(v, v, acc);
    }
    return sum1(acc);
}

template <class X, class W, class Y>
struct NormRows {
    const NormRms& p;

    void scale(const X* x, const W* w, Y* out, int64_t n, float rstd) const {
        const F16 r = set16(rstd);
        int64_t i = 0;
        for (; i + 16 <= n; i += 16) {
            store16(mul16(load16(w + i), mul16(load16(x + i), r)), out + i);
        }
        if (i < n) {
            Y piece[16];
            store16(mul16(load_part(w + i, n - i), mul16(load_part(x + i, n - i), r)), piece);
            for (int64_t j = i; j < n; ++j) {
                out[j] = piece[j - i];
            }
        }
    }
    void all(Context& c) const {
        const int64_t n = p.x.shape[1];
        share(c, p.x.shape[0], 8, n / 4, [&](int64_t begin, int64_t end, int32_t) HWY_ATTR {
            for (int64_t t = begin; t < end; ++t) {
                const X* x = p.x.row<const X>(t);
                const auto mean = static_cast<float>(square_sum(x, n) / static_cast<double>(n));
                scale(x, p.weight.as<const W>(), p.out.row<Y>(t), n,
                      1.0f / std::sqrt(mean + p.eps));
            }
        });
    }
};

template <class X, class W>
void for_out(Context& c, const NormRms& p) {
    if (p.out.dtype == DType::bf16) {
        NormRows<X, W, uint16_t>{p}.all(c);
    } else {
        NormRows<X, W, float>{p}.all(c);
    }
}

template <class X>
void for_weight(Context& c, const NormRms& p) {
    if (p.weight.dtype == DType::bf16) {
        for_out<X, uint16_t>(c, p);
    } else {
        for_out<X, float>(c, p);
    }
}

Status rms(void* self, const NormRms& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    if (p.x.dtype == DType::bf16) {
        for_weight<uint16_t>(context(self), p);
    } else {
        for_weight<float>(context(self), p);
    }
    return {};
}

OpCall<NormRms> norm_rms_target() {
    return &rms;
}
#else
OpCall<NormRms> norm_rms_target() {
    return nullptr;
}
#endif

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::cpu {

HWY_EXPORT(norm_rms_target);
OpCall<NormRms> norm_rms_simd() {
    return HWY_DYNAMIC_DISPATCH(norm_rms_target)();
}

}  // namespace tenon::cpu
#endif  // HWY_ONCE
