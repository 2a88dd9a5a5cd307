// SPDX-License-Identifier: MIT
// cache.store: completed groups into their pages.
#include "tenon/ops/cache.h"

#include "common/check.h"
#include "common/registry.h"
#include "common/rows.h"
#include "kvq/quantise.h"

namespace tenon::cpu {

namespace {

template <bool kSimd>
Status store(void* self, const CacheStore& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = p.rows.T;
    const int64_t n = dim(p.x, 1);
    const RowFormat format = p.pages.format;
    Context& ctx = context(self);
    share(ctx, T, 8, n * 6, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const RowInfo& row = row_infos(p.rows)[t];
            if (row.slot < 0 || (row.pos + 1) % p.pages.ratio != 0) {
                continue;
            }
            const StoredRow dst = page_row(p.pages, row.slot, row.pos / p.pages.ratio);
            if (dst.codes == nullptr) {
                ctx.fault();
                continue;
            }
            store_row(row_quantiser<kSimd>(), format, p.quantiser, p.x.row<uint16_t>(t), n,
                      dst.codes, dst.scales);
        }
    });
    return {};
}

}  // namespace

void add_cache_store(Registry& r) {
    r.add_best<CacheStore>(&store<false>, simd_quantiser() != nullptr ? &store<true> : nullptr,
                           Exactness::exact);
}

}  // namespace tenon::cpu
