// SPDX-License-Identifier: MIT
// Checks of route.topk.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

Status check_op(const RouteTopk& p) {
    const int64_t T = rows_of(p.logits);
    const int64_t E = dim(p.logits, 1);
    Check c(RouteTopk::kOp.name);
    c.dense("logits", p.logits, kF32, {T, E}).dense("bias", p.bias, kF32, {E}).rows(p.rows, T);
    if (!p.bias_image.null()) {
        c.dense("bias_image", p.bias_image, kF32, {E});
    }
    c.in_range("E", E, 1, kMaxExperts).in_range("k", p.k, 1, E < kMaxChosen ? E : kMaxChosen);
    c.dense("ids", p.ids, kI32, {T, p.k}).dense("weights", p.weights, kF32, {T, p.k});
    return c.take();
}

}  // namespace tenon::kernels
