// SPDX-License-Identifier: MIT
// cache.store.
#include "cache/store.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

Status store(void* self, const CacheStore& p, Stream& stream) noexcept {
    TENON_TRY(kernels::check_op(p));
    if (p.rows.T == 0 || p.pages.width == 0) {
        return {};
    }
    const auto kernel = p.quantiser == RowFormat::q4e ? &cache_store_kernel<RowFormat::q4e>
                                                      : &cache_store_kernel<RowFormat::q4u>;
    kernel<<<static_cast<unsigned>(p.rows.T), 128, 0, native(stream)>>>(
        p.x.as<const uint16_t>(), p.rows.row.as<const RowInfo>(), pages_ref(p.pages),
        context(self).faults);
    return launched(CacheStore::kOp.name);
}

}  // namespace

void add_cache(Registry& r) {
    r.add<CacheStore>(&store, Exactness::exact);
}

}  // namespace tenon::cuda
