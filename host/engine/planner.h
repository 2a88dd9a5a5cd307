// SPDX-License-Identifier: MIT
// Decides what the next step does (outline) and writes its plan (finish). Pure functions of what
// they are given.
#pragma once

#include <vector>

#include "host/engine/stream.h"
#include "tenon/overlay.h"

namespace tenon {

/// Geometry and limits that a plan must respect.
struct PlanLimits {
    int32_t slots = 0, step_rows = 0, chunk_rows = 0, prefill_stages = 1;
    int64_t context_tokens = 0, page_tokens = 0;
};

/// The base planner: every decoding slot gets a window, the oldest prompt gets a chunk beside them.
class BaseOutliner final : public Outliner {
  public:
    Status outline(const SchedulerView& view, StepOutline* out) noexcept override;
};

/// True if the outline names only slots that the view offers, each once, within caps.
bool outline_valid(const SchedulerView& view, const StepOutline& outline);

/// Collects the records of one step; all vectors keep their capacity, so a steady state allocates
/// nothing.
class PlanBuilder {
  public:
    explicit PlanBuilder(const PlanLimits& limits);

    void clear();
    void close(uint32_t slot, uint32_t generation);
    /// open, page_map of all its pages, sampler.
    void open(const ReplyStream& s);
    void window(const ReplyStream& s, int64_t accept_max);
    void chunk(const ReplyStream& s, int64_t end);
    /// Views into the builder, valid until the next `clear`.
    StepPlan plan(uint64_t step) const;
    bool empty() const { return ops_.empty() && windows_.empty() && chunks_.empty(); }

  private:
    PlanLimits limits_;
    std::vector<plan::SlotOp> ops_;
    std::vector<plan::PageMap> maps_;
    std::vector<plan::Sampler> samplers_;
    std::vector<plan::Window> windows_;
    std::vector<plan::Chunk> chunks_;
    std::vector<plan::Target> targets_;
    std::vector<int32_t> tokens_, pages_;
    std::vector<plan::Pair> pairs_;
};

}  // namespace tenon
