// SPDX-License-Identifier: MIT
// Checks of the index ops.
#include <algorithm>

#include "kernels/shared/token_checks.h"

namespace tenon::kernels {

namespace {

void check_keys(Check& c, const Pages& keys, int64_t Hi, int64_t Di) {
    c.in_range("Hi", Hi, 1, kMaxIndexHeads);
    c.multiple("Di", Di, kIndexGroup).in_range("Di", Di, kIndexGroup, 256);
    c.pages("keys", keys, Di);
    c.unsupported(keys.format != RowFormat::bf16 && keys.format != RowFormat::q4u, "keys.format",
                  "index keys are q4u or bf16");
}

}  // namespace

Status check_op(const IndexScore& p, ScoreShape* shape) {
    const int64_t T = p.rows.T;
    const int64_t Hi = dim(p.iq, 1);
    const int64_t Di = dim(p.iq, 2);
    const int64_t N = dim(p.out, 1);
    const int64_t C = p.cand.null() ? 0 : dim(p.cand, 1);
    Check c(IndexScore::kOp.name);
    c.dense("iq", p.iq, kBf16, {T, Hi, Di}).dense("w", p.w, kBf16, {T, Hi}).rows(p.rows, T);
    c.strided("out", p.out, kF32, {T, N});
    check_keys(c, p.keys, Hi, Di);
    if (C > 0) {
        c.dense("cand", p.cand, kI32, {T, C}).at_least("block", p.block, 1);
        c.in_range("N", N, 0, C * std::max(p.block, 1));
    }
    *shape = {T, Hi, Di, N, C};
    return c.take();
}

Status check_op(const IndexBlocks& p) {
    const int64_t T = p.rows.T;
    const int64_t N = dim(p.scores, 1);
    const int64_t C = dim(p.cand, 1);
    Check c(IndexBlocks::kOp.name);
    c.strided("scores", p.scores, kF32, {T, N}).rows(p.rows, T).at_least("ratio", p.ratio, 1);
    c.at_least("block", p.block, 1).in_range("C", C, 1, kMaxKept);
    c.dense("cand", p.cand, kI32, {T, C}).dense("count", p.count, kI32, {T});
    return c.take();
}

Status check_op(const IndexTopk& p) {
    const int64_t T = p.rows.T;
    const int64_t N = dim(p.scores, 1);
    const int64_t K = dim(p.sel, 1);
    Check c(IndexTopk::kOp.name);
    c.strided("scores", p.scores, kF32, {T, N}).rows(p.rows, T).at_least("ratio", p.ratio, 1);
    c.in_range("K", K, 1, kMaxKept);
    if (!p.cand.null() && T > 0) {
        c.dense("cand", p.cand, kI32, {T, kAny}).at_least("block", p.block, 1);
    }
    c.dense("sel", p.sel, kI32, {T, K}).dense("count", p.count, kI32, {T});
    return c.take();
}

Status check_op(const IndexSelect& p, ScoreShape* shape) {
    const int64_t T = p.rows.T;
    const int64_t Hi = dim(p.iq, 1);
    const int64_t Di = dim(p.iq, 2);
    const int64_t K = dim(p.sel, 1);
    const int64_t C = p.cand.null() ? 0 : dim(p.cand, 1);
    Check c(IndexSelect::kOp.name);
    c.dense("iq", p.iq, kBf16, {T, Hi, Di}).dense("w", p.w, kBf16, {T, Hi}).rows(p.rows, T);
    check_keys(c, p.keys, Hi, Di);
    c.in_range("K", K, 1, kMaxKept).at_least("block", p.block, 1);
    c.dense("sel", p.sel, kI32, {T, K}).dense("count", p.count, kI32, {T});
    c.in_range("N", p.N, 0, int64_t{1} << 30);
    if (C > 0) {
        c.dense("cand", p.cand, kI32, {T, C});
    }
    if (!p.blocks.null()) {
        const int64_t most = dim(p.blocks, 1);
        c.dense("blocks", p.blocks, kI32, {T, most}).in_range("blocks' C", most, 1, kMaxKept);
        c.dense("block_count", p.block_count, kI32, {T});
        c.unsupported(C > 0, "blocks", "either cand or blocks");
    }
    *shape = {T, Hi, Di, C > 0 ? std::min(p.N, C * std::max(p.block, 1)) : p.N, C};
    return c.take();
}

}  // namespace tenon::kernels
