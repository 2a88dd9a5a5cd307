// SPDX-License-Identifier: MIT
// Checks of the fused preparation of queries, keys and values.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

Status check_op(const AttnQkvPrep& p) {
    const int64_t T = p.rows.T;
    const int64_t D = dim(p.kv_raw, 1);
    const int64_t R = dim(p.cs, 1);
    Check c(AttnQkvPrep::kOp.name);
    c.rows(p.rows, T).strided("kv_raw", p.kv_raw, kBf16, {T, D});
    c.dense("kv_weight", p.kv_weight, kFloats, {D}).dense("kv", p.kv, kBf16, {T, D});
    c.dense("cs", p.cs, kF32, {T, R}).in_range("R", R, 0, D).multiple("R", R, 2);
    c.multiple("D", D, 32).in_place("kv", p.kv, "kv_raw", p.kv_raw).finite("eps", p.eps);
    c.unsupported(D > kMaxPrepWidth, "kv_raw", "more than 1024 channels");
    if (!p.qa_raw.null()) {
        const int64_t r = dim(p.qa_raw, 1);
        c.strided("qa_raw", p.qa_raw, kBf16, {T, r}).dense("qa", p.qa, kBf16, {T, r});
        c.dense("qa_weight", p.qa_weight, kFloats, {r}).multiple("r", r, 8);
        c.in_place("qa", p.qa, "qa_raw", p.qa_raw);
    }
    if (!p.ring.codes.null()) {
        c.ring(p.ring, D);
    }
    return c.take();
}

}  // namespace tenon::kernels
