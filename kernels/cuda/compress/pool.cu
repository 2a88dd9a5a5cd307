// SPDX-License-Identifier: MIT
// compress.pool. Two launches: a long segment's newest rows may take the places that its first row
// reads.
#include "compress/pool.cuh"

#include <algorithm>

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

Status pool(void* self, const CompressPool& p, Stream& stream) noexcept {
    TENON_TRY(kernels::check_op(p));
    const int64_t T = p.rows.T;
    const int64_t D = p.a.rank > 1 ? p.a.shape[1] : 0;
    if (T == 0 || D == 0) {
        return {};
    }
    const PoolArgs a{p.a.as<const float>(),
                     p.s.as<const float>(),
                     p.rows.row.as<const RowInfo>(),
                     p.rows.seg.as<const SegInfo>(),
                     T,
                     p.rows.S,
                     D,
                     p.raw.shape[0],
                     p.raw.as<float>(),
                     p.out.as<uint16_t>()};
    unsigned long long* faults = context(self).faults;
    pool_kernel<<<static_cast<unsigned>(T), 256, 0, native(stream)>>>(a, faults);
    if (p.rows.S > 0) {
        const dim3 grid(static_cast<unsigned>(std::min<int64_t>(T, kStoredRows)),
                        static_cast<unsigned>(p.rows.S));
        store_raw_kernel<<<grid, 256, 0, native(stream)>>>(a, faults);
    }
    return launched(CompressPool::kOp.name);
}

}  // namespace

void add_compress(Registry& r) {
    r.add<CompressPool>(&pool, Exactness::invariant);
}

}  // namespace tenon::cuda
