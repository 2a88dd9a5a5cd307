// SPDX-License-Identifier: MIT
// elem.add, elem.silu_mul, elem.gelu: the vision tower's elementwise steps.
#include "tenon/ops/elem.h"

#include <cmath>

#include "common/check.h"
#include "common/registry.h"
#include "tenon/numeric.h"

namespace tenon::cpu {

namespace {

Status add(void* self, const ElemAdd& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = rows_of(p.a);
    const int64_t n = dim(p.a, 1);
    share(context(self), T, 1, n, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t i = begin * n; i < end * n; ++i) {
            const float a = bf16_to_f32(p.a.as<uint16_t>()[i]);
            const float b = bf16_to_f32(p.b.as<uint16_t>()[i]);
            p.out.as<uint16_t>()[i] = f32_to_bf16(a + b);
        }
    });
    return {};
}

Status silu_mul(void* self, const ElemSiluMul& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = rows_of(p.out);
    const int64_t n = dim(p.out, 1);
    share(context(self), T, 1, n * 15, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const uint16_t* g = p.gate_up.row<uint16_t>(t);
            uint16_t* out = p.out.row<uint16_t>(t);
            for (int64_t i = 0; i < n; ++i) {
                const double z = bf16_to_f32(g[i]);
                const float silu = round_bf16(static_cast<float>(z / (1.0 + std::exp(-z))));
                out[i] = f32_to_bf16(silu * bf16_to_f32(g[n + i]));
            }
        }
    });
    return {};
}

Status gelu(void* self, const ElemGelu& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = rows_of(p.x);
    const int64_t n = dim(p.x, 1);
    share(context(self), T, 1, n * 15, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t i = begin * n; i < end * n; ++i) {
            const double z = bf16_to_f32(p.x.as<uint16_t>()[i]);
            const double y = 0.5 * z * (1.0 + std::erf(z * 0.70710678118654752440));
            p.out.as<uint16_t>()[i] = f32_to_bf16(static_cast<float>(y));
        }
    });
    return {};
}

}  // namespace

void add_elem(Registry& r) {
    r.add<ElemAdd>(&add, Exactness::invariant);
    r.add<ElemSiluMul>(&silu_mul, Exactness::invariant);
    r.add<ElemGelu>(&gelu, Exactness::invariant);
}

}  // namespace tenon::cpu
