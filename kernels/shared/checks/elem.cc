// SPDX-License-Identifier: MIT
// Checks of the elementwise ops.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

Status check_op(const ElemAdd& p) {
    const int64_t T = rows_of(p.a);
    const int64_t n = dim(p.a, 1);
    Check c(ElemAdd::kOp.name);
    c.dense("a", p.a, kBf16, {T, n})
        .dense("b", p.b, kBf16, {T, n})
        .dense("out", p.out, kBf16, {T, n});
    c.in_place("out", p.out, "a", p.a).in_place("out", p.out, "b", p.b);
    return c.take();
}

Status check_op(const ElemSiluMul& p) {
    const int64_t T = rows_of(p.out);
    const int64_t n = dim(p.out, 1);
    Check c(ElemSiluMul::kOp.name);
    c.dense("gate_up", p.gate_up, kBf16, {T, 2 * n}).dense("out", p.out, kBf16, {T, n});
    c.disjoint("out", p.out, "gate_up", p.gate_up);
    return c.take();
}

Status check_op(const ElemGelu& p) {
    const int64_t T = rows_of(p.x);
    const int64_t n = dim(p.x, 1);
    Check c(ElemGelu::kOp.name);
    c.dense("x", p.x, kBf16, {T, n}).dense("out", p.out, kBf16, {T, n});
    c.in_place("out", p.out, "x", p.x);
    return c.take();
}

}  // namespace tenon::kernels
