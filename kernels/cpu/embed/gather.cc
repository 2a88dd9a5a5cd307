// SPDX-License-Identifier: MIT
// embed.gather: one row of the table, or an injected row, into all four streams.
#include "tenon/ops/embed.h"

#include <cstring>

#include "common/check.h"
#include "common/registry.h"

namespace tenon::cpu {

namespace {

Status gather(void* self, const EmbedGather& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = rows_of(p.ids);
    const int64_t V = rows_of(p.table);
    const int64_t d = dim(p.table, 1);
    const bool injects = !p.inject_index.null() && T > 0;
    const auto bytes = static_cast<size_t>(d) * 2;
    for (int64_t t = 0; t < T; ++t) {
        const int32_t id = p.ids.as<int32_t>()[t];
        const uint16_t* src = id >= 0 && id < V ? p.table.row<uint16_t>(id) : nullptr;
        if (injects && p.inject_index.as<int32_t>()[t] >= 0) {
            const int32_t j = p.inject_index.as<int32_t>()[t];
            src = j < p.inject.shape[0] ? p.inject.row<uint16_t>(j) : nullptr;
            if (src == nullptr) {
                context(self).fault();
            }
        }
        uint16_t* out = p.out.row<uint16_t>(t);
        for (int64_t k = 0; k < 4; ++k) {
            if (src != nullptr) {
                std::memcpy(out + k * d, src, bytes);
            } else {
                std::memset(out + k * d, 0, bytes);
            }
        }
        if (!p.pre.null()) {
            float* pre = p.pre.row<float>(t);
            pre[0] = 1;
            pre[1] = pre[2] = pre[3] = 0;
        }
    }
    return {};
}

}  // namespace

void add_embed_gather(Registry& r) {
    r.add<EmbedGather>(&gather, Exactness::exact);
}

}  // namespace tenon::cpu
