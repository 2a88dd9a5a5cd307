// SPDX-License-Identifier: MIT
// Checks of the ops that store rows into rings and pages, and of the compressor that feeds them.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

Status check_op(const WindowStore& p) {
    const int64_t T = p.rows.T;
    const int64_t D = dim(p.kv, 1);
    Check c(WindowStore::kOp.name);
    c.dense("kv", p.kv, kBf16, {T, D}).rows(p.rows, T).ring(p.ring, D).multiple("D", D, 32);
    return c.take();
}

Status check_op(const CacheStore& p) {
    const int64_t T = p.rows.T;
    const int64_t n = dim(p.x, 1);
    const RowFormat format = p.pages.format;
    Check c(CacheStore::kOp.name);
    c.dense("x", p.x, kBf16, {T, n}).rows(p.rows, T).pages("pages", p.pages, n);
    c.unsupported(p.quantiser != RowFormat::q4e && p.quantiser != RowFormat::q4u, "quantiser",
                  "pages hold q4e or q4u values");
    c.unsupported(format != RowFormat::bf16 && format != p.quantiser, "pages.format",
                  "neither bf16 nor the quantiser");
    c.multiple("n", n, 32);
    return c.take();
}

Status check_op(const CompressPool& p) {
    const int64_t T = p.rows.T;
    const int64_t D = dim(p.a, 1);
    Check c(CompressPool::kOp.name);
    c.dense("a", p.a, kF32, {T, D}).dense("s", p.s, kF32, {T, D}).rows(p.rows, T);
    c.dense("raw", p.raw, kF32, {kAny, kRawPositions, 2, D}).dense("out", p.out, kBf16, {T, D});
    return c.take();
}

}  // namespace tenon::kernels
