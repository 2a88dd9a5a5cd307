// SPDX-License-Identifier: MIT
// Checks of the ops on page records and on state records.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

namespace {

template <class P>
Status check_move(const P& p) {
    const int64_t n = rows_of(p.ids);
    const int64_t bytes = dim(p.pool, 1);
    Check c(P::kOp.name);
    c.dense("pool", p.pool, kU8, {kAny, bytes}).dense("ids", p.ids, kI32, {n});
    c.dense("records", p.records, kU8, {n, bytes});
    return c.take();
}

template <class P>
Status check_record(const P& p) {
    Check c(P::kOp.name);
    c.at_least("length", p.length, 0).at_least("positions", p.positions, 0);
    for (const Ring& r : p.rings) {
        c.ring(r, r.width).at_least("ring.R", r.R, p.positions);
        if (c.ok()) {
            c.in_range("slot", p.slot, 0, r.codes.shape[0] - 1);
        }
    }
    for (const TensorView& raw : p.raws) {
        c.dense("raws", raw, kF32, {kAny, kRawPositions, 2, kAny});
        if (c.ok()) {
            c.in_range("slot", p.slot, 0, raw.shape[0] - 1);
        }
    }
    c.dense("record", p.record, kU8, {kAny});
    if (c.ok()) {
        c.at_least("record bytes", p.record.shape[0],
                   state_record_bytes(p.positions, p.rings, p.raws));
    }
    return c.take();
}

}  // namespace

Status check_op(const PagesCopy& p) {
    const int64_t n = rows_of(p.src);
    const int64_t bytes = dim(p.pool, 1);
    Check c(PagesCopy::kOp.name);
    c.dense("pool", p.pool, kU8, {kAny, bytes}).dense("src", p.src, kI32, {n});
    c.dense("dst", p.dst, kI32, {n}).dense("tokens", p.tokens, kI32, {n});
    c.at_least("page_tokens", p.page_tokens, 1);
    for (const PagePlane& plane : p.planes) {
        c.at_least("planes.ratio", plane.ratio, 1).at_least("planes.row_bytes", plane.row_bytes, 0);
        c.at_least("planes.at", plane.at, 0);
        if (c.ok()) {
            c.in_range("end of a plane", plane.at + p.page_tokens / plane.ratio * plane.row_bytes,
                       0, bytes);
        }
    }
    return c.take();
}

Status check_op(const PagesPack& p) {
    return check_move(p);
}
Status check_op(const PagesUnpack& p) {
    return check_move(p);
}
Status check_op(const StateSave& p) {
    return check_record(p);
}
Status check_op(const StateLoad& p) {
    return check_record(p);
}

}  // namespace tenon::kernels
