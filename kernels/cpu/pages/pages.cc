// SPDX-License-Identifier: MIT
// pages.copy, pages.pack and pages.unpack on whole page records.
#include "tenon/ops/pages.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/registry.h"

namespace tenon::cpu {

namespace {

bool inside(const TensorView& pool, int32_t page) {
    return page >= 0 && page < pool.shape[0];
}

Status copy(void* self, const PagesCopy& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t n = rows_of(p.src);
    const int64_t bytes = dim(p.pool, 1);
    for (int64_t i = 0; i < n; ++i) {
        const int32_t src = p.src.as<int32_t>()[i];
        const int32_t dst = p.dst.as<int32_t>()[i];
        if (!inside(p.pool, src) || !inside(p.pool, dst) || src == dst) {
            context(self).fault();
            continue;
        }
        const uint8_t* from = p.pool.row<uint8_t>(src);
        uint8_t* to = p.pool.row<uint8_t>(dst);
        const int32_t tokens = std::clamp(p.tokens.as<int32_t>()[i], 0, p.page_tokens);
        if (tokens == p.page_tokens) {
            std::memcpy(to, from, static_cast<size_t>(bytes));
            continue;
        }
        for (const PagePlane& plane : p.planes) {
            std::memcpy(to + plane.at, from + plane.at,
                        static_cast<size_t>(tokens / plane.ratio * plane.row_bytes));
        }
    }
    return {};
}

// Moves records between the pool and a contiguous block.
template <bool kPack, class P>
Status move(void* self, const P& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t n = rows_of(p.ids);
    const int64_t bytes = dim(p.pool, 1);
    for (int64_t i = 0; i < n; ++i) {
        const int32_t page = p.ids.template as<int32_t>()[i];
        if (!inside(p.pool, page)) {
            context(self).fault();
            continue;
        }
        uint8_t* record = p.records.template row<uint8_t>(i);
        uint8_t* in_pool = p.pool.template row<uint8_t>(page);
        std::memcpy(kPack ? record : in_pool, kPack ? in_pool : record, static_cast<size_t>(bytes));
    }
    return {};
}

}  // namespace

void add_pages(Registry& r) {
    r.add<PagesCopy>(&copy, Exactness::exact);
    r.add<PagesPack>(&move<true, PagesPack>, Exactness::exact);
    r.add<PagesUnpack>(&move<false, PagesUnpack>, Exactness::exact);
}

}  // namespace tenon::cpu
