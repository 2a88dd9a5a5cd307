// SPDX-License-Identifier: MIT
// The activation with SIMD.
#include "kernels/cpu/common/simd_targets.h"
#include "kernels/cpu/matrix/activate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matrix/activate_simd.cc"
#include <hwy/foreach_target.h>

#include <hwy/contrib/math/math-inl.h>

#include "kernels/cpu/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::packed::HWY_NAMESPACE {

#if TENON_SIMD

using namespace tenon::cpu::HWY_NAMESPACE;  // NOLINT: vectors of 16 lanes
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE F16 silu16(const F16& gate) {
    const D64 d;
    HWY_ALIGN float lanes[16];
    store16(gate, lanes);
    const F64x16 z = load64(lanes);
    TENON_PARTS64 {
        // Beyond 700 the quotient is 0 in f32 anyway; Exp wants less than 706.
        const V64 e = hn::Exp(d, hn::Min(hn::Neg(z.p[i]), hn::Set(d, 700.0)));
        const V64 silu = hn::Div(z.p[i], hn::Add(hn::Set(d, 1.0), e));
        hn::StoreU(hn::DemoteTo(DHalf(), silu), DHalf(), lanes + i * kLanes64);
    }
    return load16(lanes);
}

// A NaN stays: it is neither above nor below the limit.
HWY_INLINE F16 at_most(const F16& x, float limit) {
    const V l = hn::Set(D16(), limit);
    F16 r;
    TENON_PARTS r.p[i] = hn::IfThenElse(hn::Gt(x.p[i], l), l, x.p[i]);
    return r;
}
HWY_INLINE F16 at_least(const F16& x, float limit) {
    const V l = hn::Set(D16(), limit);
    F16 r;
    TENON_PARTS r.p[i] = hn::IfThenElse(hn::Lt(x.p[i], l), l, x.p[i]);
    return r;
}

void activate(float limit, float weight, const float* gate, const float* up, int64_t cols,
              uint16_t* a) {
    const F16 w = set16(weight);
    int64_t c = 0;
    for (; c + 16 <= cols; c += 16) {
        F16 g = round16(load16(gate + c));
        F16 u = round16(load16(up + c));
        if (limit > 0) {
            g = at_most(g, limit);
            u = at_most(at_least(u, -limit), limit);
        }
        store16(mul16(mul16(w, silu16(g)), u), a + c);
    }
    activate_reference(limit, weight, gate + c, up + c, cols - c, a + c);
}

ActivateFn activate_target() {
    return &activate;
}
#else
ActivateFn activate_target() {
    return nullptr;
}
#endif

}  // namespace tenon::packed::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::packed {

HWY_EXPORT(activate_target);
ActivateFn activate_simd() {
    return HWY_DYNAMIC_DISPATCH(activate_target)();
}

}  // namespace tenon::packed
#endif  // HWY_ONCE
