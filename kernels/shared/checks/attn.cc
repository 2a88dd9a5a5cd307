// SPDX-License-Identifier: MIT
// Checks of attn.sparse and attn.sparse_turn.
#include "kernels/shared/token_checks.h"

namespace tenon::kernels {

namespace {

template <class P>
void check_sparse(Check& c, const P& p, SparseShape* shape) {
    const int64_t T = p.rows.T;
    const int64_t H = dim(p.q, 1);
    const int64_t D = dim(p.q, 2);
    const int64_t K = p.sel.null() || p.comp.pool.null() ? 0 : dim(p.sel, 1);
    c.dense("q", p.q, kBf16, {T, H, D}).dense("kv", p.kv, kBf16, {T, D}).rows(p.rows, T);
    c.ring(p.ring, D).dense("sink", p.sink, kF32, {H}).dense("out", p.out, kBf16, {T, H, D});
    c.in_range("H", H, 1, kMaxHeads).in_range("D", D, 32, kMaxHeadWidth).multiple("D", D, 32);
    c.at_least("window", p.window, 1).in_range("half", p.half, 0, 1).finite("scale", p.scale);
    c.in_place("out", p.out, "q", p.q);
    if (K > 0) {
        c.pages("comp", p.comp, D).dense("sel", p.sel, kI32, {T, K});
        c.dense("count", p.count, kI32, {T});
        c.unsupported(p.comp.format != RowFormat::bf16 && p.comp.format != RowFormat::q4e,
                      "comp.format", "compressed rows are q4e or bf16");
    }
    *shape = {T, H, D, K};
}

}  // namespace

Status check_op(const AttnSparse& p, SparseShape* shape) {
    Check c(AttnSparse::kOp.name);
    check_sparse(c, p, shape);
    return c.take();
}

Status check_op(const AttnSparseTurn& p, SparseShape* shape) {
    Check c(AttnSparseTurn::kOp.name);
    check_sparse(c, p, shape);
    c.dense("cs", p.cs, kF32, {shape->T, kAny}).multiple("R", dim(p.cs, 1), 8);
    c.in_range("R", dim(p.cs, 1), 8, shape->D);
    return c.take();
}

}  // namespace tenon::kernels
