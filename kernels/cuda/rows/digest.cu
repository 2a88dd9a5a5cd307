// SPDX-License-Identifier: MIT
// rows.digest.
#include "rows/digest.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

Status digest(void*, const RowsDigest& p, Stream& stream) noexcept {
    TENON_TRY(kernels::check_op(p));
    const int64_t T = p.rows.T;
    TENON_TRY(cuda_status(cudaMemsetAsync(p.out.data, 0, 8, native(stream)), RowsDigest::kOp.name));
    if (T == 0) {
        return {};
    }
    digest_kernel<<<static_cast<unsigned>(T), kDigestThreads, 0, native(stream)>>>(
        p.x.as<const uint64_t>(), p.x.bytes() / T / 8, p.rows.row.as<const RowInfo>(),
        p.out.as<unsigned long long>());
    return launched(RowsDigest::kOp.name);
}

}  // namespace

void add_rows_digest(Registry& r) {
    r.add<RowsDigest>(&digest, Exactness::exact);
}

}  // namespace tenon::cuda
