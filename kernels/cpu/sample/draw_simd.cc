// SPDX-License-Identifier: MIT
// Row passes of sample.draw with SIMD: maximum with a check for bad logits, and sums of
// exponentials in f64.
#include <limits>

#include "common/simd_targets.h"
#include "sample/draw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sample/draw_simd.cc"
#include <hwy/foreach_target.h>

#include <hwy/contrib/math/math-inl.h>

#include "common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

#if TENON_SIMD

float row_max(const float* x, int64_t n, bool* bad) {
    const D16 d;
    const V most = hn::Set(d, std::numeric_limits<float>::max());
    V top = hn::Set(d, kNoLogit);
    auto good = hn::Le(top, most);
    int64_t i = 0;
    for (; i + static_cast<int64_t>(kLanes) <= n; i += static_cast<int64_t>(kLanes)) {
        const V v = hn::LoadU(d, x + i);
        good = hn::And(good, hn::Le(v, most));  // false for NaN and +inf
        top = hn::Max(top, v);
    }
    float best = hn::GetLane(hn::MaxOfLanes(d, top));
    *bad = !hn::AllTrue(d, good);
    for (; i < n; ++i) {
        *bad = *bad || !(x[i] <= std::numeric_limits<float>::max());
        best = x[i] > best ? x[i] : best;
    }
    return best;
}

double sum_exp(const float* x, int64_t n, double temperature, double top) {
    const D64 d;
    const V64 t = hn::Set(d, temperature);
    const V64 shift = hn::Set(d, top);
    F64x16 acc = zero64();
    for (int64_t first = 0; first < n; first += 16) {
        float piece[16];
        const float* src = x + first;
        if (n - first < 16) {
            for (int64_t i = 0; i < 16; ++i) {
                piece[i] = i < n - first ? src[i] : kNoLogit;
            }
            src = piece;
        }
        const F64x16 v = load64(src);
        TENON_PARTS64 {
            const V64 arg = hn::Sub(hn::Div(v.p[i], t), shift);
            // A masked id is -inf; the polynomial would meet inf - inf.
            const V64 safe = hn::Max(arg, hn::Set(d, -1100.0));
            acc.p[i] = hn::Add(acc.p[i], hn::Exp(d, safe));
        }
    }
    return sum1(acc);
}

SampleKernels sample_kernels_target() {
    return {&row_max, &sum_exp};
}
#else
SampleKernels sample_kernels_target() {
    return {};
}
#endif

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::cpu {

HWY_EXPORT(sample_kernels_target);
SampleKernels sample_kernels_simd() {
    return HWY_DYNAMIC_DISPATCH(sample_kernels_target)();
}

}  // namespace tenon::cpu
#endif  // HWY_ONCE
