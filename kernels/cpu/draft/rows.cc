// SPDX-License-Identifier: MIT
// draft.rows and draft.confidence: the draft group that follows a verified window, and how sure
// each draft is.
#include <algorithm>

#include "common/check.h"
#include "common/elements.h"
#include "common/registry.h"
#include "common/rows.h"
#include "kernels/shared/token_checks.h"

namespace tenon::cpu {

namespace {

Status rows(void*, const DraftRows& p, Stream&) noexcept {
    const int64_t S = rows_of(p.slot);
    TENON_TRY(check_op(p));
    for (int64_t s = 0; s < S; ++s) {
        const SegInfo& window = seg_infos(p.window)[s];
        const VerifyDecision& d = p.decision.as<const VerifyDecision>()[s];
        const bool live = p.slot.as<const int32_t>()[s] >= 0 && window.slot >= 0 && d.emitted > 0 &&
                          d.finish == static_cast<int32_t>(VerifyFinish::none);
        SegInfo seg;
        if (live) {
            seg.slot = window.slot;
            seg.rows = p.B;
            seg.pos0 = window.pos0 + d.emitted;
            seg.win_lo[0] = window.win_lo[0];
            seg.win_lo[1] = window.win_lo[1];
        }
        seg.row0 = static_cast<int32_t>(s * p.B);
        seg.out0 = seg.row0;
        p.seg.as<SegInfo>()[s] = seg;
        for (int32_t i = 0; i < p.B; ++i) {
            const int64_t t = s * p.B + i;
            RowInfo row;
            if (live) {
                row.pos = seg.pos0 + i;
                row.slot = seg.slot;
                row.seg = static_cast<int32_t>(s);
            }
            p.row.as<RowInfo>()[t] = row;
            p.ids.as<int32_t>()[t] = !live ? -1 : i == 0 ? d.last : p.noise_id;
        }
    }
    return {};
}

Status confidence(void* self, const DraftConfidence& p, Stream&) noexcept {
    const int64_t S = rows_of(p.c);
    const int64_t B = dim(p.c, 1);
    const int64_t d = dim(p.c, 2);
    const int64_t r = dim(p.embed, 1);
    TENON_TRY(check_op(p));
    share(context(self), S * B, 1, (d + r) * 2, [&](int64_t begin, int64_t end, int32_t) {
        const Source w(p.proj, 0);
        for (int64_t i = begin; i < end; ++i) {
            const int32_t prev = p.prev.row<const int32_t>(i / B)[i % B];
            double sum = 0;
            if (prev >= 0 && prev < p.embed.shape[0]) {
                const uint16_t* x = p.c.as<const uint16_t>() + i * d;
                const Source e(p.embed, prev);
                for (int64_t j = 0; j < d; ++j) {
                    sum += static_cast<double>(bf16_to_f32(x[j])) * w[j];
                }
                for (int64_t j = 0; j < r; ++j) {
                    sum += static_cast<double>(e[j]) * w[d + j];
                }
            }
            p.out.as<float>()[i] = static_cast<float>(sum);
        }
    });
    return {};
}

}  // namespace

void add_draft_rows(Registry& r) {
    r.add<DraftRows>(&rows, Exactness::exact);
    r.add<DraftConfidence>(&confidence, Exactness::invariant);
}

}  // namespace tenon::cpu
