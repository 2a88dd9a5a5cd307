// SPDX-License-Identifier: MIT
// Checks of the sampling ops.
#include "kernels/shared/token_checks.h"

namespace tenon::kernels {

Status check_op(const SampleDraw& p, int64_t scratch_bytes) {
    const int64_t M = rows_of(p.logits);
    const int64_t V = dim(p.logits, 1);
    const int64_t words = (V + 31) / 32;
    Check c(SampleDraw::kOp.name);
    c.strided("logits", p.logits, kF32, {M, V}).structs<SampleParams>("params", p.params, M);
    c.dense("token", p.token, kI32, {M}).in_range("V", V, 1, int64_t{1} << 20);
    if (!p.seen.null()) {
        c.dense("seen", p.seen, bit(DType::u16), {kAny, V}).rows(p.rows, p.rows.T);
        c.dense("index", p.index, kI32, {M}).dense("ids", p.ids, kI32, {p.rows.T});
    }
    if (!p.bias_begin.null()) {
        c.dense("bias_begin", p.bias_begin, kI32, {M + 1});
        c.dense("bias_ids", p.bias_ids, kI32, {kAny});
        c.dense("bias_add", p.bias_add, kF32, {rows_of(p.bias_ids)});
    }
    if (!p.mask.null()) {
        c.strided("mask", p.mask, bit(DType::u32), {M, words});
    }
    if (!p.forbid.null()) {
        c.dense("forbid", p.forbid, bit(DType::u32), {words});
    }
    if (!p.logprob.null()) {
        c.dense("logprob", p.logprob, kF32, {M});
    }
    if (M > 0) {
        c.scratch(p.scratch, scratch_bytes);
    }
    return c.take();
}

Status check_op(const SampleLogprobs& p) {
    const int64_t M = rows_of(p.logits);
    const int64_t V = dim(p.logits, 1);
    const int64_t n = dim(p.ids, 1);
    Check c(SampleLogprobs::kOp.name);
    c.strided("logits", p.logits, kF32, {M, V}).dense("token", p.token, kI32, {M});
    c.loose("ids", p.ids, kI32, {M, n}).loose("lp", p.lp, kF32, {M, n});
    c.dense("token_lp", p.token_lp, kF32, {M}).in_range("n", n, 0, kMaxListed);
    c.at_least("V", V, 1);
    return c.take();
}

Status check_op(const SampleCount& p) {
    const int64_t n = rows_of(p.token);
    Check c(SampleCount::kOp.name);
    c.dense("token", p.token, kI32, {n}).dense("slot", p.slot, kI32, {n});
    c.dense("seen", p.seen, bit(DType::u16), {kAny, kAny});
    return c.take();
}

}  // namespace tenon::kernels
