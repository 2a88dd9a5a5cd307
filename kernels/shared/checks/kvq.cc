// SPDX-License-Identifier: MIT
// Checks of the cache quantisers.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

Status check_op(const KvqQuantize& p) {
    const int64_t T = rows_of(p.x);
    const int64_t n = dim(p.x, 1);
    Check c(KvqQuantize::kOp.name);
    c.unsupported(p.format == RowFormat::bf16, "format", "bf16 has nothing to quantise");
    c.strided("x", p.x, kBf16, {T, n}).multiple("n", n, p.format == RowFormat::q4e ? 16 : 32);
    if (!p.values.null()) {
        c.strided("values", p.values, kBf16, {T, n}).in_place("values", p.values, "x", p.x);
    }
    if (!p.codes.null() || !p.scales.null()) {
        c.dense("codes", p.codes, kU8, {T, code_bytes(p.format, n)});
        c.dense("scales", p.scales, kU8, {T, scale_bytes(p.format, n)});
    }
    return c.take();
}

Status check_op(const KvqDequantize& p) {
    const int64_t T = rows_of(p.out);
    const int64_t n = dim(p.out, 1);
    Check c(KvqDequantize::kOp.name);
    c.unsupported(p.format == RowFormat::bf16, "format", "bf16 has no codes");
    c.multiple("n", n, p.format == RowFormat::q4e ? 16 : 32);
    c.dense("codes", p.codes, kU8, {T, code_bytes(p.format, n)});
    c.dense("scales", p.scales, kU8, {T, scale_bytes(p.format, n)});
    c.dense("out", p.out, kBf16, {T, n});
    return c.take();
}

}  // namespace tenon::kernels
