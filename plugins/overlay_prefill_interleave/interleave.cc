// SPDX-License-Identifier: MIT
// Slices by rows: every slice is a chunk of its own, whose end any later chunk may go on from.
#include "interleave.h"

#include <algorithm>

namespace tenon::interleave {

int64_t slice_rows(const SchedulerView& view, int64_t rows, int64_t budget_us) {
    int64_t chunk_us = 0;
    for (const int64_t us : view.stage_us) {
        chunk_us += us;
    }
    if (chunk_us <= 0 || view.chunk_rows <= 0) {
        return rows;
    }
    const double share = static_cast<double>(budget_us) / static_cast<double>(chunk_us);
    const auto fit = static_cast<int64_t>(std::min(share, 1.0) *
                                          static_cast<double>(view.chunk_rows) / kLeastRows);
    return std::min(rows, std::max<int64_t>(fit, 1) * kLeastRows);
}

Status Interleave::outline(const SchedulerView& view, Outliner& inner, StepOutline* out) noexcept {
    TENON_TRY(inner.outline(view, out));
    if (out->slice_slot < 0 || out->decode_count == 0) {
        return {};
    }
    if (budget_us_ == 0) {
        out->decode_count = 0;
        return {};
    }
    // A model with stages could be cut between them as well; a shorter chunk is as good, and the
    // engine runs chunks whole (engine.md 8).
    out->slice_rows = slice_rows(view, out->slice_rows, budget_us_);
    return {};
}

}  // namespace tenon::interleave
