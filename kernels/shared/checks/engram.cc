// SPDX-License-Identifier: MIT
// Checks of the Engram ops.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

Status check_op(const EngramDecode& p) {
    const int64_t T = p.rows.T;
    const int64_t c = dim(p.values, 1);
    const int64_t w = dim(p.values, 2);
    Check check(EngramDecode::kOp.name);
    // Records start at multiples of 8; the scales inside one follow the values, any multiple of w.
    check.bytes_strided("values", p.values, kU8 | bit(DType::e4m3), {T, c, w}, 8);
    check.bytes_strided("scales", p.scales, kU8 | bit(DType::e8m0), {T, c, w / kEngramGroup}, 1);
    check.rows(p.rows, T).multiple("w", w, kEngramGroup).dense("out", p.out, kBf16, {T, c * w});
    return check.take();
}

Status check_op(const EngramGate& p) {
    const int64_t T = p.rows.T;
    const int64_t d = dim(p.h, 2);
    Check c(EngramGate::kOp.name);
    c.dense("kv", p.kv, kFloats, {T, 5 * d}).dense("h", p.h, kBf16, {T, 4, d}).rows(p.rows, T);
    c.dense("q_weight", p.q_weight, kFloats, {4, d}).dense("k_weight", p.k_weight, kFloats, {4, d});
    c.number("k_weight dtype", static_cast<int64_t>(p.k_weight.dtype),
             static_cast<int64_t>(p.q_weight.dtype));
    c.disjoint("h", p.h, "kv", p.kv).multiple("d", d, 16);
    return c.take();
}

Status check_op(const EngramReduceGate& p) {
    const int64_t T = p.rows.T;
    const int64_t d = dim(p.h, 2);
    Check c(EngramReduceGate::kOp.name);
    c.dense("parts", p.parts, kF32, {kAny, T, 5 * d}).at_least("ranks", rows_of(p.parts), 1);
    c.dense("h", p.h, kBf16, {T, 4, d}).rows(p.rows, T);
    c.dense("q_weight", p.q_weight, kFloats, {4, d}).dense("k_weight", p.k_weight, kFloats, {4, d});
    c.number("k_weight dtype", static_cast<int64_t>(p.k_weight.dtype),
             static_cast<int64_t>(p.q_weight.dtype));
    c.disjoint("h", p.h, "parts", p.parts).multiple("d", d, 16);
    return c.take();
}

}  // namespace tenon::kernels
