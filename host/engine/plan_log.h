// SPDX-License-Identifier: MIT
// The last plans in short, for the log when a step breaks a rule (engine.md 7).
#pragma once

#include <array>
#include <string>

#include "tenon/plan.h"

namespace tenon::engine {

/// Engine thread. `note` allocates nothing; what it keeps names no token.
class PlanLog {
  public:
    static constexpr uint64_t kPlans = 64;

    /// `bytes`  of its wire form
    void note(const StepPlan& plan, uint64_t bytes);
    /// A line for each plan that is kept, oldest first.
    template <class F>
    void each_line(F&& f) const {
        for (uint64_t i = noted_ < kPlans ? 0 : noted_ - kPlans; i < noted_; ++i) {
            f(line_of(plans_[i % kPlans]));
        }
    }

  private:
    static constexpr uint64_t kWindows = 16, kChunks = 4;  ///< that are kept of a plan
    struct Range {
        uint32_t slot = 0, generation = 0;
        int64_t begin = 0, end = 0;
    };
    struct Kept {
        uint64_t step = 0, bytes = 0, windows = 0, chunks = 0;
        uint64_t slot_ops = 0, page_maps = 0, page_copies = 0, snap_in = 0, snap_out = 0;
        uint64_t samplers = 0, drafts = 0, targets = 0, pages = 0;
        std::array<Range, kWindows> window;
        std::array<Range, kChunks> chunk;
    };
    static std::string line_of(const Kept& kept);

    std::array<Kept, kPlans> plans_;
    uint64_t noted_ = 0;
};

}  // namespace tenon::engine
