// SPDX-License-Identifier: MIT
// The schedule overlay itself: bounds the prompt work between two decode rounds by time.
#pragma once

#include "tenon/overlay.h"

namespace tenon::interleave {

/// Fewest rows of a slice. Below it a chunk costs as much as a few rows more would.
constexpr int64_t kLeastRows = 16;

/// Rows of a slice whose estimated time is at most `budget_us`, a multiple of kLeastRows where it
/// is less than `rows`; all of them where nothing was measured.
int64_t slice_rows(const SchedulerView& view, int64_t rows, int64_t budget_us);

/// While replies decode, a prompt advances in slices of at most `budget_us`, and every slice has a
/// round for all of them beside it. With a budget of 0 a prompt runs to its end first, in whole
/// chunks. It never changes which prompt goes next, so the fairness of the inner planner holds, and
/// it keeps no state: equal views give equal outlines.
///
/// Thread: the engine thread of rank 0.
class Interleave final : public Implements<Interleave, ScheduleOverlay> {
  public:
    explicit Interleave(int64_t budget_us) : budget_us_(budget_us) {}
    ~Interleave() = default;

    Status outline(const SchedulerView& view, Outliner& inner, StepOutline* out) noexcept override;

  private:
    const int64_t budget_us_;
};

}  // namespace tenon::interleave
