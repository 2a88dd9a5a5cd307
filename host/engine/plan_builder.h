// SPDX-License-Identifier: MIT
// Collects the records of one step in memory that was reserved once.
#pragma once

#include <vector>

#include "tenon/plan.h"
#include "tenon/plan_check.h"

namespace tenon::engine {

struct BuilderLimits {
    uint64_t slots = 0;
    uint64_t tokens = 0;  ///< chunk rows, window rows and stop ids of one step
    uint64_t pages = 0;
    uint64_t pairs = 0;
    uint64_t cells = 0;  ///< of snapshots: at most that many drops
    uint64_t areas = 0;  ///< of staging: a piece each
};

/// Engine thread. `reset` starts a step; the spans of `view` live until the next one.
class PlanBuilder {
  public:
    explicit PlanBuilder(const BuilderLimits& limits) : limits_(limits) {
        slot_ops.reserve(3 * limits.slots);
        page_maps.reserve(limits.slots);
        samplers.reserve(limits.slots);
        windows.reserve(limits.slots);
        drafts.reserve(limits.slots);
        chunks.reserve(1);
        prefetches.reserve(1);
        targets.reserve(plan::kMaxChunkTargets);
        page_copies.reserve(limits.slots);
        snap_in.reserve(limits.slots + 2 * limits.cells + limits.areas);
        snap_out.reserve(limits.slots + limits.areas);
        tokens_.reserve(limits.tokens);
        pages_.reserve(limits.pages);
        pairs_.reserve(limits.pairs);
    }

    void reset() {
        slot_ops.clear();
        page_maps.clear();
        samplers.clear();
        windows.clear();
        drafts.clear();
        chunks.clear();
        prefetches.clear();
        targets.clear();
        page_copies.clear();
        snap_in.clear();
        snap_out.clear();
        tokens_.clear();
        pages_.clear();
        pairs_.clear();
    }

    /// Room for one more sequence with this many page entries and pairs.
    bool has_room(uint64_t pages, uint64_t pairs) const {
        return pages_.size() + pages <= limits_.pages && pairs_.size() + pairs <= limits_.pairs;
    }

    uint32_t add_tokens(Span<const int32_t> run) { return add(tokens_, run); }
    uint32_t add_pages(Span<const int32_t> run) { return add(pages_, run); }
    uint32_t add_pairs(Span<const plan::Pair> run) { return add(pairs_, run); }

    /// Nothing would change state.
    bool empty() const {
        return slot_ops.empty() && windows.empty() && chunks.empty() && snap_in.empty() &&
               snap_out.empty();
    }
    /// One more drop fits.
    bool has_snap_room() const { return snap_in.size() < limits_.slots + 2 * limits_.cells; }

    /// The step, except header and note.
    StepPlan view() const {
        StepPlan p;
        p.slot_ops = slot_ops;
        p.page_maps = page_maps;
        p.page_copies = page_copies;
        p.snap_in = snap_in;
        p.snap_out = snap_out;
        p.samplers = samplers;
        p.windows = windows;
        p.drafts = drafts;
        p.chunks = chunks;
        p.prefetches = prefetches;
        p.targets = targets;
        p.tokens = tokens_;
        p.pages = pages_;
        p.pairs = pairs_;
        return p;
    }

    std::vector<plan::SlotOp> slot_ops;
    std::vector<plan::PageMap> page_maps;
    std::vector<plan::Sampler> samplers;
    std::vector<plan::Window> windows;
    std::vector<plan::Draft> drafts;
    std::vector<plan::Chunk> chunks;
    std::vector<plan::Prefetch> prefetches;  ///< their tokens are the last of the pool
    std::vector<plan::Target> targets;
    std::vector<plan::PageCopy> page_copies;
    std::vector<plan::SnapOp> snap_in, snap_out;

  private:
    template <class T>
    uint32_t add(std::vector<T>& pool, Span<const T> run) {
        TENON_CHECK(pool.size() + run.size <= pool.capacity(), "pool of {} is full",
                    pool.capacity());
        const size_t offset = pool.size();
        pool.insert(pool.end(), run.begin(), run.end());
        return static_cast<uint32_t>(offset);
    }

    BuilderLimits limits_;
    std::vector<int32_t> tokens_;
    std::vector<int32_t> pages_;
    std::vector<plan::Pair> pairs_;
};

}  // namespace tenon::engine
