// SPDX-License-Identifier: MIT
// Checks of the draft ops.
#include "kernels/shared/token_checks.h"

namespace tenon::kernels {

Status check_op(const DraftRows& p) {
    const int64_t S = rows_of(p.slot);
    const int64_t T = S * p.B;
    Check c(DraftRows::kOp.name);
    c.in_range("B", p.B, 1, 64).number("window.S", p.window.S, S).rows(p.window, p.window.T);
    c.structs<VerifyDecision>("decision", p.decision, S).dense("slot", p.slot, kI32, {S});
    c.dense("ids", p.ids, kI32, {T}).structs<RowInfo>("row", p.row, T);
    c.structs<SegInfo>("seg", p.seg, S);
    return c.take();
}

Status check_op(const DraftStep& p, int64_t scratch_bytes) {
    const int64_t S = p.rows.S;
    const int64_t V = dim(p.base, 1);
    const int64_t r = dim(p.embed, 1);
    Check c(DraftStep::kOp.name);
    c.strided("base", p.base, kF32, {S, V}).column("prev", p.prev, kI32, S);
    c.dense("embed", p.embed, kFloats, {kAny, r}).dense("head", p.head, kFloats, {V, r});
    c.rows(p.rows, p.rows.T).in_range("r", r, 1, kMaxMarkovRank).at_least("step", p.step, 0);
    c.structs<DraftBest>("best", p.best, S).at_least("vocab_at", p.vocab_at, 0);
    if (!p.forbid.null()) {
        c.dense("forbid", p.forbid, bit(DType::u32), {(V + 31) / 32});
    }
    if (!p.params.null()) {
        c.structs<SampleParams>("params", p.params, S);
    }
    if (S > 0) {
        c.scratch(p.scratch, scratch_bytes);
    }
    return c.take();
}

Status check_op(const DraftPick& p) {
    const int64_t W = rows_of(p.best);
    const int64_t S = dim(p.best, 1);
    Check c(DraftPick::kOp.name);
    c.dense("best", p.best, kU8, {W, S, static_cast<int64_t>(sizeof(DraftBest))});
    c.column("token", p.token, kI32, S);
    if (!p.mirror.null()) {
        c.column("mirror", p.mirror, kI32, S);
    }
    return c.take();
}

Status check_op(const DraftConfidence& p) {
    const int64_t S = rows_of(p.c);
    const int64_t B = dim(p.c, 1);
    const int64_t d = dim(p.c, 2);
    const int64_t r = dim(p.embed, 1);
    Check c(DraftConfidence::kOp.name);
    c.dense("c", p.c, kBf16, {S, B, d}).loose("prev", p.prev, kI32, {S, B});
    c.dense("embed", p.embed, kFloats, {kAny, r}).dense("proj", p.proj, kFloats, {d + r});
    c.dense("out", p.out, kF32, {S, B});
    return c.take();
}

Status check_op(const DraftMarkov& p, int64_t scratch_bytes) {
    const int64_t S = p.rows.S;
    const int64_t B = dim(p.base, 1);
    const int64_t V = dim(p.base, 2);
    const int64_t r = dim(p.embed, 1);
    Check c(DraftMarkov::kOp.name);
    c.dense("base", p.base, kF32, {S, B, V}).column("first", p.first, kI32, S);
    c.dense("embed", p.embed, kFloats, {V, r}).dense("head", p.head, kFloats, {V, r});
    c.rows(p.rows, p.rows.T).in_range("r", r, 1, kMaxMarkovRank);
    c.loose("token", p.token, kI32, {S, B});
    if (!p.mirror.null()) {
        c.loose("mirror", p.mirror, kI32, {S, B});
    }
    if (!p.forbid.null()) {
        c.dense("forbid", p.forbid, bit(DType::u32), {(V + 31) / 32});
    }
    if (!p.params.null()) {
        c.structs<SampleParams>("params", p.params, S);
    }
    if (S > 0) {
        c.scratch(p.scratch, scratch_bytes);
    }
    return c.take();
}

}  // namespace tenon::kernels
