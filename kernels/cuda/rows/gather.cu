// SPDX-License-Identifier: MIT
// rows.gather and rows.scatter.
#include "rows/gather.cuh"

#include <algorithm>

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

constexpr int kThreads = 256;

RowCopy copy_of(const TensorView& x, const TensorView& out, int64_t rows) {
    return {x.as<const uint4>(), out.as<uint4>(), x.stride[0] / 16,
            out.stride[0] / 16,  x.shape[1] / 16, rows};
}

dim3 grid_of(int64_t M, int64_t width) {
    const int64_t pieces = std::clamp<int64_t>((width + kThreads - 1) / kThreads, 1, 64);
    return dim3(static_cast<unsigned>(M), static_cast<unsigned>(pieces));
}

Status gather(void* self, const RowsGather& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t M = rows_of(p.index);
    const TensorView x = rows_as_bytes(p.x);
    if (M == 0 || x.shape[1] == 0) {
        return {};
    }
    const RowCopy c = copy_of(x, rows_as_bytes(p.out), x.shape[0]);
    gather_kernel<<<grid_of(M, c.width), kThreads, 0, native(stream)>>>(
        c, p.index.as<const int32_t>(), context(self).faults);
    return launched(RowsGather::kOp.name);
}

Status scatter(void* self, const RowsScatter& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t M = rows_of(p.index);
    const TensorView x = rows_as_bytes(p.x);
    if (M == 0 || x.shape[1] == 0) {
        return {};
    }
    const TensorView out = rows_as_bytes(p.out);
    const RowCopy c = copy_of(x, out, out.shape[0]);
    scatter_kernel<<<grid_of(M, c.width), kThreads, 0, native(stream)>>>(
        c, p.index.as<const int32_t>(), context(self).faults);
    return launched(RowsScatter::kOp.name);
}

}  // namespace

void add_rows_digest(Registry& r);

void add_rows(Registry& r) {
    r.add<RowsGather>(&gather, Exactness::exact);
    r.add<RowsScatter>(&scatter, Exactness::exact);
    add_rows_digest(r);
}

}  // namespace tenon::cuda
