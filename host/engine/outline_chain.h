// SPDX-License-Identifier: MIT
// The planner's outline behind the profile's overlays, with the check that an overlay chose what
// was offered.
#pragma once

#include <memory>
#include <vector>

#include "tenon/host.h"
#include "tenon/overlay.h"

namespace tenon::engine {

/// The planner's own choice: windows of all runnable slots, beside them one chunk of the prompt
/// with the shortest rest, unless an older one is overdue.
class BaseOutliner final : public Outliner {
  public:
    BaseOutliner(int64_t fairness_us, int64_t fairness_background_us)
        : fairness_us_(fairness_us), fairness_background_us_(fairness_background_us) {}

    Status outline(const SchedulerView& view, StepOutline* out) noexcept override;

    /// A prompt of this age and length goes by arrival now, so that it never waits longer than the
    /// bound.
    bool is_overdue(const SchedulerView& view, int64_t age_us, int64_t rows, bool background) const;

  private:
    int64_t fairness_us_, fairness_background_us_;
};

/// Why an outline is not among what the view offers, or null. Pure.
const char* outline_fault(const SchedulerView& view, const StepOutline& outline);

/// Calls the overlays, the first one nearest to the base. A fault or an error of an overlay is
/// logged once and its inner outline is used. Engine thread; allocates only for that log line.
class OutlineChain final : public Outliner {
  public:
    OutlineChain(BaseOutliner& base, Span<ScheduleOverlay* const> overlays, Host& host);
    ~OutlineChain();

    Status outline(const SchedulerView& view, StepOutline* out) noexcept override;

  private:
    class Link;
    Outliner* last_ = nullptr;
    std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace tenon::engine
