// SPDX-License-Identifier: MIT
// Checks of embed.gather.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

Status check_op(const EmbedGather& p) {
    const int64_t T = rows_of(p.ids);
    const int64_t V = rows_of(p.table);
    const int64_t d = dim(p.table, 1);
    Check c(EmbedGather::kOp.name);
    c.dense("ids", p.ids, kI32, {T}).dense("table", p.table, kBf16, {V, d});
    c.dense("out", p.out, kBf16, {T, 4, d}).multiple("d", d, 8);
    const bool injects = !p.inject_index.null() && T > 0;
    if (injects) {
        c.dense("inject_index", p.inject_index, kI32, {T});
        c.dense("inject", p.inject, kBf16, {kAny, d});
    }
    if (!p.pre.null()) {
        c.dense("pre", p.pre, kF32, {T, 4});
    }
    return c.take();
}

}  // namespace tenon::kernels
