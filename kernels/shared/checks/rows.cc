// SPDX-License-Identifier: MIT
// Checks of the ops that move or hash whole rows.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

namespace {

int64_t row_bytes(const TensorView& v) {
    int64_t n = dtype_bytes(v.dtype);
    for (int i = 1; i < v.rank; ++i) {
        n *= v.shape[i];
    }
    return n;
}

// x and out agree in everything but dimension 0.
Check& same_rows(Check& c, const TensorView& x, const TensorView& out) {
    c.at_least("x rank", x.rank, 1).number("out rank", out.rank, x.rank);
    c.number("out dtype", static_cast<int64_t>(out.dtype), static_cast<int64_t>(x.dtype));
    for (int i = 1; i < x.rank && c.ok(); ++i) {
        c.number("out extent", out.shape[i], x.shape[i]);
    }
    if (c.ok()) {
        c.multiple("bytes of a row", row_bytes(x), 16);
    }
    return c;
}

bool inner_dense(const TensorView& v) {
    TensorView inner = v;
    inner.shape[0] = 1;
    return inner.dense();
}

}  // namespace

TensorView rows_as_bytes(const TensorView& v) {
    TensorView b = make_view(v.data, DType::u8, {rows_of(v), row_bytes(v)}, v.place);
    if (v.rank > 1) {
        b.stride[0] = v.stride[0] * dtype_bytes(v.dtype);
    }
    return b;
}

Status check_op(const RowsGather& p) {
    Check c(RowsGather::kOp.name);
    const int64_t M = rows_of(p.index);
    same_rows(c, p.x, p.out).dense("index", p.index, kI32, {M});
    c.number("out rows", rows_of(p.out), M);
    c.unsupported(!inner_dense(p.x) || !inner_dense(p.out), "x", "inner dimensions are not dense");
    if (!c.ok()) {
        return c.take();
    }
    const TensorView x = rows_as_bytes(p.x);
    const TensorView out = rows_as_bytes(p.out);
    c.strided("x", x, kU8, {kAny, x.shape[1]}).strided("out", out, kU8, {M, x.shape[1]});
    c.disjoint("out", out, "x", x);
    return c.take();
}

Status check_op(const RowsScatter& p) {
    Check c(RowsScatter::kOp.name);
    const int64_t M = rows_of(p.index);
    same_rows(c, p.x, p.out).dense("index", p.index, kI32, {M});
    c.number("x rows", rows_of(p.x), M);
    c.unsupported(!inner_dense(p.x) || !inner_dense(p.out), "x", "inner dimensions are not dense");
    if (!c.ok()) {
        return c.take();
    }
    const TensorView x = rows_as_bytes(p.x);
    const TensorView out = rows_as_bytes(p.out);
    c.strided("x", x, kU8, {M, x.shape[1]}).strided("out", out, kU8, {kAny, x.shape[1]});
    c.disjoint("out", out, "x", x);
    return c.take();
}

Status check_op(const RowsDigest& p) {
    const int64_t T = p.rows.T;
    Check c(RowsDigest::kOp.name);
    c.at_least("x rank", p.x.rank, 1).number("x rows", rows_of(p.x), T).rows(p.rows, T);
    c.dense("out", p.out, bit(DType::u64), {1});
    if (!c.ok()) {
        return c.take();
    }
    const int64_t row = T == 0 ? 0 : p.x.bytes() / T;
    c.multiple("bytes of a row", row, 8).unsupported(!p.x.dense(), "x", "not dense");
    return c.take();
}

}  // namespace tenon::kernels
