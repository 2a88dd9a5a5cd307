// SPDX-License-Identifier: MIT
// rows.gather and rows.scatter: whole rows by index.
#include <cstring>

#include "common/check.h"
#include "common/registry.h"
#include "tenon/ops/rows.h"

namespace tenon::cpu {

namespace {

Status gather(void* self, const RowsGather& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t M = rows_of(p.index);
    const TensorView x = rows_as_bytes(p.x);
    const TensorView out = rows_as_bytes(p.out);
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
    TENON_TRY(check_op(p));
    const int64_t M = rows_of(p.index);
    const TensorView x = rows_as_bytes(p.x);
    const TensorView out = rows_as_bytes(p.out);
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
