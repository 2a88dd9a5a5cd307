// SPDX-License-Identifier: MIT
// Checks of norm.rms.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

Status check_op(const NormRms& p) {
    const int64_t T = rows_of(p.x);
    const int64_t n = dim(p.x, 1);
    Check c(NormRms::kOp.name);
    c.strided("x", p.x, kFloats, {T, n}).dense("weight", p.weight, kFloats, {n});
    c.strided("out", p.out, kFloats, {T, n}).in_place("out", p.out, "x", p.x);
    c.finite("eps", p.eps);
    return c.take();
}

}  // namespace tenon::kernels
