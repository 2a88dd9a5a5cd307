// SPDX-License-Identifier: MIT
// Checks of spec.verify.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

Status check_op(const SpecVerify& p) {
    const int64_t T = p.rows.T;
    Check c(SpecVerify::kOp.name);
    c.dense("drawn", p.drawn, kI32, {kAny}).dense("ids", p.ids, kI32, {T}).rows(p.rows, T);
    c.structs<VerifyLimits>("limits", p.limits, p.rows.S);
    c.structs<VerifyDecision>("decision", p.decision, p.rows.S);
    return c.take();
}

}  // namespace tenon::kernels
