// SPDX-License-Identifier: MIT
// Checks of the ops on the four residual streams.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

namespace {

// The next site's mix and norm: inputs, x and coefficients.
template <class P>
Check& next_site(Check& c, const P& p, int64_t T, int64_t d) {
    c.dense("h", p.h, kBf16, {T, 4, d}).dense("fn", p.fn, kF32, {24, 4 * d});
    c.dense("scale", p.scale, kF32, {3}).dense("base", p.base, kF32, {24});
    c.dense("pre_in", p.pre_in, kF32, {T, 4}).dense("norm_weight", p.norm_weight, kFloats, {d});
    c.dense("x", p.x, kBf16, {T, d}).disjoint("x", p.x, "h", p.h);
    c.dense("pre", p.pre, kF32, {T, 4}).dense("post", p.post, kF32, {T, 4});
    c.dense("comb", p.comb, kF32, {T, 4, 4}).at_least("iters", p.iters, 1).multiple("d", d, 16);
    return c;
}

}  // namespace

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

Status check_op(const MhcReduceExpand& p) {
    const int64_t T = rows_of(p.h);
    const int64_t d = dim(p.h, 2);
    Check c(MhcReduceExpand::kOp.name);
    c.dense("parts", p.parts, kF32, {kAny, T, d}).dense("h", p.h, kBf16, {T, 4, d});
    c.at_least("ranks", rows_of(p.parts), 1);
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

Status check_op(const MhcSeam& p) {
    const int64_t T = rows_of(p.h);
    const int64_t d = dim(p.h, 2);
    Check c(MhcSeam::kOp.name);
    c.unsupported(p.h.rank == 3 && p.h.shape[1] != 4, "h", "only 4 streams");
    if (!p.parts.null()) {
        c.dense("parts", p.parts, kF32, {kAny, T, d}).at_least("ranks", rows_of(p.parts), 1);
    } else {
        c.dense("y", p.y, kFloats, {T, d});
    }
    c.dense("post_in", p.post_in, kF32, {T, 4}).dense("comb_in", p.comb_in, kF32, {T, 4, 4});
    next_site(c, p, T, d);
    c.dense("out", p.out, kBf16, {T, 4, d}).in_place("out", p.out, "h", p.h);
    return c.take();
}

Status check_op(const MhcMixCollapseNorm& p) {
    const int64_t T = rows_of(p.h);
    const int64_t d = dim(p.h, 2);
    Check c(MhcMixCollapseNorm::kOp.name);
    c.unsupported(p.h.rank == 3 && p.h.shape[1] != 4, "h", "only 4 streams");
    next_site(c, p, T, d);
    return c.take();
}

Status check_op(const MhcCollapseNorm& p) {
    const int64_t T = rows_of(p.h);
    const int64_t d = dim(p.h, 2);
    Check c(MhcCollapseNorm::kOp.name);
    c.dense("h", p.h, kBf16, {T, 4, d}).dense("pre", p.pre, kF32, {T, 4});
    c.dense("norm_weight", p.norm_weight, kFloats, {d}).multiple("d", d, 16);
    c.dense("x", p.x, kBf16, {T, d}).disjoint("x", p.x, "h", p.h);
    return c.take();
}

}  // namespace tenon::kernels
