// SPDX-License-Identifier: MIT
// elem.add, elem.silu_mul, elem.gelu.
#include "elem/elem.cuh"

#include <algorithm>

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

constexpr int kThreads = 256;

unsigned grid_of(void* self, int64_t n) {
    return static_cast<unsigned>(
        std::min<int64_t>((n + kThreads - 1) / kThreads, int64_t{context(self).sms} * 16));
}

Status add(void* self, const ElemAdd& p, Stream& stream) noexcept {
    TENON_TRY(kernels::check_op(p));
    const int64_t n = p.out.elements();
    if (n == 0) {
        return {};
    }
    add_kernel<<<grid_of(self, n), kThreads, 0, native(stream)>>>(
        p.a.as<const uint16_t>(), p.b.as<const uint16_t>(), p.out.as<uint16_t>(), n);
    return launched(ElemAdd::kOp.name);
}

Status silu_mul(void* self, const ElemSiluMul& p, Stream& stream) noexcept {
    TENON_TRY(kernels::check_op(p));
    const int64_t n = p.out.elements();
    if (n == 0) {
        return {};
    }
    silu_mul_kernel<<<grid_of(self, n), kThreads, 0, native(stream)>>>(
        p.gate_up.as<const uint16_t>(), p.out.as<uint16_t>(), p.out.shape[0], p.out.shape[1]);
    return launched(ElemSiluMul::kOp.name);
}

Status gelu(void* self, const ElemGelu& p, Stream& stream) noexcept {
    TENON_TRY(kernels::check_op(p));
    const int64_t n = p.out.elements();
    if (n == 0) {
        return {};
    }
    gelu_kernel<<<grid_of(self, n), kThreads, 0, native(stream)>>>(p.x.as<const uint16_t>(),
                                                                   p.out.as<uint16_t>(), n);
    return launched(ElemGelu::kOp.name);
}

}  // namespace

void add_elem(Registry& r) {
    r.add<ElemAdd>(&add, Exactness::invariant);
    r.add<ElemSiluMul>(&silu_mul, Exactness::invariant);
    r.add<ElemGelu>(&gelu, Exactness::invariant);
}

}  // namespace tenon::cuda
