// SPDX-License-Identifier: MIT
// window.store: the newest rows of each segment into its slot's ring.
#include "tenon/ops/window.h"

#include <algorithm>

#include "common/check.h"
#include "common/registry.h"
#include "common/rows.h"
#include "kvq/quantise.h"

namespace tenon::cpu {

namespace {

template <bool kSimd>
Status store(void* self, const WindowStore& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = p.rows.T;
    const int64_t D = dim(p.kv, 1);
    Context& ctx = context(self);
    for (int64_t i = 0; i < p.rows.S; ++i) {
        const SegInfo& seg = seg_infos(p.rows)[i];
        if (!segment_usable(ctx, seg, T, p.ring.codes.shape[0])) {
            continue;
        }
        const int64_t first = std::max(0, seg.rows - p.ring.R);
        share(ctx, seg.rows - first, 8, D * 6, [&](int64_t begin, int64_t end, int32_t) {
            for (int64_t j = first + begin; j < first + end; ++j) {
                const StoredRow dst = ring_row(p.ring, seg.slot, seg.pos0 + j);
                store_row(row_quantiser<kSimd>(), p.ring.format, RowFormat::q8,
                          p.kv.row<uint16_t>(seg.row0 + j), D, dst.codes, dst.scales);
            }
        });
    }
    return {};
}

}  // namespace

void add_window_store(Registry& r) {
    r.add_best<WindowStore>(&store<false>, simd_quantiser() != nullptr ? &store<true> : nullptr,
                            Exactness::exact);
}

}  // namespace tenon::cpu
