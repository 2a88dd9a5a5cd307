// SPDX-License-Identifier: MIT
// Checks of the ops on the four residual streams.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

Status check_op(const MhcMix& p) {
    const int64_t T = rows_of(p.h);
    const int64_t d = dim(p.h, 2);
    Check c(MhcMix::kOp.name);
    c.unsupported(p.h.rank == 3 && p.h.shape[1] != 4, "h", "only 4 streams");
    c.dense("h", p.h, kBf16, {T, 4, d}).dense("fn", p.fn, kF32, {24, 4 * d});
    c.dense("scale", p.scale, kF32, {3}).dense("base", p.base, kF32, {24});
    c.dense("pre", p.pre, kF32, {T, 4}).dense("post", p.post, kF32, {T, 4});
    c.dense("comb", p.comb, kF32, {T, 4, 4}).at_least("iters", p.iters, 1).multiple("d", d, 16);
    return c.take();
}

Status check_op(const MhcCollapse& p) {
    const int64_t T = rows_of(p.h);
    const int64_t d = dim(p.h, 2);
    Check c(MhcCollapse::kOp.name);
    c.dense("h", p.h, kBf16, {T, 4, d}).dense("pre", p.pre, kF32, {T, 4});
    c.dense("out", p.out, kBf16, {T, d}).disjoint("out", p.out, "h", p.h).multiple("d", d, 16);
    return c.take();
}

Status check_op(const MhcExpand& p) {
    const int64_t T = rows_of(p.h);
    const int64_t d = dim(p.h, 2);
    Check c(MhcExpand::kOp.name);
    c.dense("y", p.y, kFloats, {T, d}).dense("h", p.h, kBf16, {T, 4, d});
    c.dense("post", p.post, kF32, {T, 4}).dense("comb", p.comb, kF32, {T, 4, 4});
    c.dense("out", p.out, kBf16, {T, 4, d}).in_place("out", p.out, "h", p.h).multiple("d", d, 16);
    return c.take();
}

Status check_op(const MhcMean& p) {
    const int64_t T = rows_of(p.h);
    const int64_t d = dim(p.h, 2);
    Check c(MhcMean::kOp.name);
    c.dense("h", p.h, kBf16, {T, 4, d}).strided("out", p.out, kBf16, {T, d});
    c.disjoint("out", p.out, "h", p.h);
    return c.take();
}

}  // namespace tenon::kernels
