// SPDX-License-Identifier: MIT
// Checks of the rotary ops.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

Status check_op(const RopeAngles& p) {
    const int64_t T = p.rows.T;
    const int64_t half = rows_of(p.freq);
    Check c(RopeAngles::kOp.name);
    c.rows(p.rows, T).dense("freq", p.freq, kF32, {half}).at_least("step", p.step, 1);
    c.dense("cs", p.cs, kF32, {T, 2 * half});
    return c.take();
}

Status check_op(const RopeTurn& p, TurnShape* shape) {
    const int64_t T = rows_of(p.x);
    const int64_t n = p.x.rank == 3 ? p.x.shape[1] : 1;
    const int64_t D = dim(p.x, p.x.rank == 3 ? 2 : 1);
    const int64_t R = dim(p.cs, 1);
    Check c(RopeTurn::kOp.name);
    if (p.x.rank == 3) {
        c.strided("x", p.x, kBf16, {T, n, D}).strided("out", p.out, kBf16, {T, n, D});
    } else {
        c.strided("x", p.x, kBf16, {T, D}).strided("out", p.out, kBf16, {T, D});
    }
    c.dense("cs", p.cs, kF32, {T, R}).in_range("R", R, 0, D).multiple("R", R, 2);
    c.in_place("out", p.out, "x", p.x);
    *shape = {T, n, D, R};
    return c.take();
}

}  // namespace tenon::kernels
