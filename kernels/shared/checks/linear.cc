// SPDX-License-Identifier: MIT
// Checks of linear.plain.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

Status check_op(const LinearPlain& p) {
    const int64_t T = rows_of(p.x);
    const int64_t K = dim(p.x, 1);
    const int64_t N = rows_of(p.w);
    Check c(LinearPlain::kOp.name);
    c.strided("x", p.x, kFloats, {T, K}).dense("w", p.w, kFloats, {N, K});
    c.strided("y", p.y, kFloats, {T, N}).disjoint("y", p.y, "x", p.x);
    if (!p.bias.null()) {
        c.dense("bias", p.bias, kFloats, {N});
    }
    return c.take();
}

}  // namespace tenon::kernels
