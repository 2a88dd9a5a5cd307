// SPDX-License-Identifier: MIT
// Checks of route.topk and of its fused form.
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

Status check_op(const RouteGateTopk& p) {
    const int64_t T = rows_of(p.x);
    const int64_t d = dim(p.x, 1);
    const int64_t E = rows_of(p.gate);
    Check c(RouteGateTopk::kOp.name);
    c.strided("x", p.x, kBf16, {T, d}).dense("gate", p.gate, kFloats, {E, d});
    c.dense("bias", p.bias, kF32, {E}).rows(p.rows, T).multiple("d", d, 8);
    if (!p.bias_image.null()) {
        c.dense("bias_image", p.bias_image, kF32, {E});
    }
    c.in_range("E", E, 1, kMaxExperts).in_range("k", p.k, 1, E < kMaxChosen ? E : kMaxChosen);
    c.dense("ids", p.ids, kI32, {T, p.k}).dense("weights", p.weights, kF32, {T, p.k});
    return c.take();
}

}  // namespace tenon::kernels
