// SPDX-License-Identifier: MIT
// rows.gather and rows.scatter: whole rows by index.
#include <cstring>

#include "common/check.h"
#include "common/registry.h"
#include "tenon/ops/rows.h"

namespace tenon::cpu {

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

// The rows of any rank as a byte matrix, to check stride and alignment in one place.
TensorView as_bytes(const TensorView& v) {
    TensorView b = make_view(v.data, DType::u8, {rows_of(v), row_bytes(v)}, v.place);
    if (v.rank > 1) {
        b.stride[0] = v.stride[0] * dtype_bytes(v.dtype);
    }
    return b;
}

bool inner_dense(const TensorView& v) {
    TensorView inner = v;
    inner.shape[0] = 1;
    return inner.dense();
}

Status gather(void* self, const RowsGather& p, Stream&) noexcept {
    Check c(RowsGather::kOp.name);
    const int64_t M = rows_of(p.index);
    same_rows(c, p.x, p.out).dense("index", p.index, kI32, {M});
    c.number("out rows", rows_of(p.out), M);
    c.unsupported(!inner_dense(p.x) || !inner_dense(p.out), "x", "inner dimensions are not dense");
    if (!c.ok()) {
        return c.take();
    }
    const TensorView x = as_bytes(p.x);
    const TensorView out = as_bytes(p.out);
    c.strided("x", x, kU8, {kAny, x.shape[1]}).strided("out", out, kU8, {M, x.shape[1]});
    if (!c.disjoint("out", out, "x", x).ok()) {
        return c.take();
    }
    const auto n = static_cast<size_t>(x.shape[1]);
    for (int64_t m = 0; m < M; ++m) {
        const int32_t t = p.index.as<int32_t>()[m];
        if (t >= 0 && t < x.shape[0]) {
            std::memcpy(out.row<char>(m), x.row<char>(t), n);
            continue;
        }
        if (t != -1) {
            context(self).fault();
        }
        std::memset(out.row<char>(m), 0, n);
    }
    return {};
}

Status scatter(void* self, const RowsScatter& p, Stream&) noexcept {
    Check c(RowsScatter::kOp.name);
    const int64_t M = rows_of(p.index);
    same_rows(c, p.x, p.out).dense("index", p.index, kI32, {M});
    c.number("x rows", rows_of(p.x), M);
    c.unsupported(!inner_dense(p.x) || !inner_dense(p.out), "x", "inner dimensions are not dense");
    if (!c.ok()) {
        return c.take();
    }
    const TensorView x = as_bytes(p.x);
    const TensorView out = as_bytes(p.out);
    c.strided("x", x, kU8, {M, x.shape[1]}).strided("out", out, kU8, {kAny, x.shape[1]});
    if (!c.disjoint("out", out, "x", x).ok()) {
        return c.take();
    }
    for (int64_t m = 0; m < M; ++m) {
        const int32_t t = p.index.as<int32_t>()[m];
        if (t >= 0 && t < out.shape[0]) {
            std::memcpy(out.row<char>(t), x.row<char>(m), static_cast<size_t>(x.shape[1]));
        } else if (t != -1) {
            context(self).fault();
        }
    }
    return {};
}

}  // namespace

void add_rows_gather(Registry& r) {
    r.add<RowsGather>(&gather, Exactness::exact);
    r.add<RowsScatter>(&scatter, Exactness::exact);
}

}  // namespace tenon::cpu
