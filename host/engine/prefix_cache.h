// SPDX-License-Identifier: MIT
// Kept cuts with their pages and cells: look-up, new cuts, eviction (engine.md 4).
#pragma once

#include <tuple>

#include "host/engine/page_allocator.h"
#include "host/engine/plan_builder.h"
#include "host/engine/prefix_index.h"
#include "host/engine/snapshot_cells.h"
#include "tenon/model.h"

namespace tenon::engine {

/// Names a cut that may have been given up since.
struct CutRef {
    int32_t id = -1;
    uint32_t stamp = 0;
};

/// Rank 0's engine thread; part of the planner. Never allocates after construction. Reads no clock:
/// age is counted in steps.
///
/// Every cut holds one reference to each page of [0, at) and its cells. Drops go into the plan that
/// is being built, ahead of whatever that plan saves.
class PrefixCache {
  public:
    struct Config {
        ModelInfo info;
        int64_t pool_pages = 0, pages_per_slot = 0;
        int32_t slots = 0;
        int32_t cells = 0;  ///< 0 = nothing is kept
    };
    PrefixCache(const Config& config, PageAllocator& pages);

    bool enabled() const { return cells_.total() > 1; }
    const PrefixIndex& index() const { return index_; }
    const SnapshotCells& cells() const { return cells_; }

    struct Hit {
        CutRef cut;
        int64_t at = 0;       ///< 0 = no cut
        int64_t matched = 0;  ///< symbols known to the index, whether a cut lies there or not
    };
    /// The deepest cut at or before `last` from which a pass can reach the full target `last`.
    /// `prompt_class_only`: skips cuts with generated rows below (only with two numeric classes).
    Hit best(const SymbolRun& run, int64_t last, bool prompt_class_only);

    /// The step in flight saves a reply from which this run can go on, deeper than `hit`: after the
    /// step a look-up finds it.
    bool comes_deeper(const SymbolRun& run, int64_t last, bool prompt_class_only, const Hit& hit);

    const Cut* find(const CutRef& ref) const;
    /// Counts a restore in `step`.
    void touch(const CutRef& ref, uint64_t step);
    /// A hard pin keeps the cut, a soft one makes it (and what lies above it) the last to go. A
    /// reference to a cut that is gone is ignored.
    void pin_hard(const CutRef& ref, int32_t delta);
    void pin_soft(const CutRef& ref, int32_t delta);

    struct NewCut {
        plan::CutKind kind = plan::CutKind::full;
        CutOrigin origin = CutOrigin::pass;
        int64_t at = 0, min_target = 0;
        bool prompt_class = true;
        uint32_t slot = 0, generation = 0;  ///< whose state is saved
        bool by_chunk = true;               ///< saved by a chunk, whose status decides
    };
    /// Reserves a cut that this step's plan saves; gives up others for its cells. `pages`: the
    /// slot's table. Symbols are written from position `symbols_from` on. 0 = no room; else its
    /// snapshot id.
    uint32_t begin(const NewCut& cut, Span<const int32_t> pages, const SymbolRun& run,
                   int64_t symbols_from, uint64_t step, PlanBuilder& builder);
    /// The step that saves has ended: f(slot, generation) says whether the slot's chunk was good.
    /// Calls done(ref of the cut under which the state is kept now, new cut) for those that went
    /// live.
    template <class Good, class Done>
    void settle(PlanBuilder& builder, Good&& good, Done&& done) {
        for (const Pending& p : pending_) {
            if (p.by_chunk && !good(p.slot, p.generation)) {
                drop(p.cut.id, builder);
                continue;
            }
            done(go_live(p.cut.id, builder), p.slot, p.generation);
        }
        pending_.clear();
    }

    // Cuts that come back from disk.
    /// Reserves cells, an entry and pages behind `shared`; gives up others for them. The cut is not
    /// live. A reference to nothing: there is no room.
    CutRef reserve(const NewCut& cut, Span<const int32_t> shared, const SymbolRun& run,
                   uint64_t step, PlanBuilder& builder);
    /// The step that imported it has ended; the cut under which the state is kept now.
    CutRef settle_import(const CutRef& ref, PlanBuilder& builder) {
        return go_live(ref.id, builder);
    }
    /// A reserved cut that was not imported.
    void abandon(const CutRef& ref);
    void set_spill(const CutRef& ref, const SpillName& file, bool never);
    Span<const int32_t> symbols(const CutRef& ref) { return index_.symbols_of(index_.cut(ref.id)); }
    /// The `count` cuts that would be given up next, least valuable first; returns how many.
    int32_t victims(CutRef* out, int32_t count) const;
    /// Calls f(ref) for every live cut.
    template <class F>
    void each_live(F&& f) const {
        for (int32_t i = 0; i < index_.capacity(); ++i) {
            if (index_.cut(i).used && index_.cut(i).live) {
                f(ref_of(i));
            }
        }
    }

    /// Gives up this cut, unless it is pinned hard.
    void give_up(const CutRef& ref, PlanBuilder& builder);
    /// Gives up the least valuable cut; false: none may go.
    bool evict(PlanBuilder& builder);
    /// Pages that only cuts refer to, those of `except` not counted.
    int64_t evictable_pages(const CutRef& except) const;

  private:
    struct Pending {
        CutRef cut;
        uint32_t slot = 0, generation = 0;
        bool by_chunk = true;
    };
    static int32_t cut_capacity(const Config& config);
    CutRef ref_of(int32_t id) const { return {id, index_.cut(id).stamp}; }
    using Worth = std::tuple<uint8_t, CutOrigin, uint64_t, uint32_t>;
    Worth worth_of(int32_t id) const;
    int32_t take(plan::CutKind kind, PlanBuilder& builder, uint32_t* snapshot);
    static void describe(const NewCut& n, const SymbolRun& run, uint32_t snapshot, uint64_t step,
                         Cut* out);
    CutRef go_live(int32_t id, PlanBuilder& builder);
    void drop(int32_t id, PlanBuilder& builder);
    int32_t victim() const;
    void mark_kept() const;

    Config config_;
    PageAllocator& pages_;
    PrefixIndex index_;
    SnapshotCells cells_;
    std::vector<Pending> pending_;       // saved by the step that is being built or in flight
    mutable std::vector<uint8_t> kept_;  // by cut: on the path of a soft pin
};

}  // namespace tenon::engine
