// SPDX-License-Identifier: MIT
// Cuts on their way to and from disk: the planner's part of the spill tier (engine.md 4.5, 4.6).
#pragma once

#include "host/engine/plan_builder.h"
#include "host/engine/prefix_cache.h"
#include "host/engine/spill_catalogue.h"

namespace tenon::engine {

struct SpillPlanConfig {
    int32_t areas = 0;  ///< of staging; 0 = no spill tier
    int64_t area_bytes = 0, snapshot_bytes = 0;
    int64_t budget = 0;
    int32_t capacity = 8192;  ///< files
    SpillDigest key{};
    Span<const SpillFile> found;   ///< at the start; borrowed during construction
    int64_t stall_us = 5'000'000;  ///< a disk that does not answer for so long is not waited for
};

/// Rank 0's engine thread. Pure as the planner is: answers of the spill threads are inputs. At most
/// one cut leaves and one comes back at a time, each in pieces through the staging areas. Never
/// allocates after construction.
class SpillPlan {
  public:
    SpillPlan(const SpillPlanConfig& config, const ModelInfo& info, int64_t context_tokens,
              PrefixCache& cache);

    bool enabled() const { return config_.areas > 0; }
    const SpillCatalogue& catalogue() const { return catalogue_; }
    /// Loads that went live, and looked-up files that could not be used.
    int64_t hits() const { return hits_; }
    int64_t misses() const { return misses_; }

    // Inputs.
    void take(const SpillEvent& event, int64_t now_us, PlanBuilder& builder);
    /// The step in flight has ended.
    void take(Span<const JobResult> jobs, PlanBuilder& builder);
    /// Gives up on a disk that does not answer.
    void expire(int64_t now_us, PlanBuilder& builder);
    int64_t due_us() const;

    // Out. A cut is on disk, or on its way there, from `start_export` on.
    bool can_export() const {
        return enabled() && !out_.active && !waits_for_abort_ && !no_writes_;
    }
    bool is_exporting() const { return out_.active; }
    /// The cut is worth a file and has none.
    bool wants_export(const CutRef& ref);
    /// False: it has a file already, or the budget has no room.
    bool start_export(const CutRef& ref, int64_t now_us);

    // In.
    /// Something is under way that ends, or is given up when it stalls.
    bool is_active() const { return in_.active || out_.active; }
    bool is_writing_for(uint64_t owner) const { return out_.active && out_.owner == owner; }
    bool is_loading_for(uint64_t waiter) const { return in_.active && in_.waiter == waiter; }
    bool can_load() const;
    /// A stored cut of this sequence that lies so much deeper than `at` that a load is worth it.
    SpillRef deeper(const SymbolRun& run, int64_t last, int64_t at, bool prompt_class_only);
    int64_t position_of(const SpillRef& ref) const { return catalogue_.find(ref)->file.at; }
    /// Pages of `hit` that a load of `ref` would share.
    int64_t shared_pages(const SpillRef& ref, const PrefixCache::Hit& hit) const;
    /// Reserves pages and cells, which must be free or evictable. `waiter`: whose request it is
    /// for.
    bool start_load(const SpillRef& ref, const SymbolRun& run, const PrefixCache::Hit& hit,
                    uint64_t waiter, uint64_t step, int64_t now_us, PlanBuilder& builder);
    /// The request that a load was for uses it now, or is gone.
    void release(uint64_t waiter);
    /// What was loaded may be given up again, although its request has not used it yet. False:
    /// there is no such cut.
    bool let_go();
    /// Removes the file of a cut.
    void forget(const SpillRef& ref);
    /// The state of this parked reply, if it is on its way: file and cut go when it has arrived.
    void forget_moving(uint64_t owner);

    /// Pieces of the plan that is being built.
    void write(PlanBuilder& builder);

    Span<const SpillCommand> commands() const { return commands_; }
    void clear_commands() { commands_.clear(); }

  private:
    enum class AreaState { free, exporting, writing, reading, ready, importing };
    struct Area {
        AreaState state = AreaState::free;
        bool stale = false;  ///< its load was given up
        uint64_t job = 0;
        int64_t page = 0, pages = 0;  ///< of the cut
        bool snapshot = false;
        int32_t link = 0;
    };
    struct Out {
        bool active = false;
        bool staged = false;    ///< everything was read from the state
        bool unwanted = false;  ///< its reply is gone
        CutRef cut;
        SpillRef entry;
        uint64_t owner = 0;
        int64_t next_page = 0, end_page = 0;
        bool snapshot_sent = false;
        int64_t since_us = 0;
    };
    struct In {
        bool active = false;
        CutRef cut;  ///< reserved, not yet live
        CutRef hit;  ///< whose pages it shares; pinned
        SpillRef ref;
        uint64_t waiter = 0;
        int64_t next_page = 0, end_page = 0;
        bool snapshot_asked = false;
        bool unwanted = false;  ///< its reply is gone
        int64_t since_us = 0;
    };

    int64_t piece(int64_t pages_left, bool* snapshot) const;
    int64_t bytes_of(const Area& area) const {
        return area.pages * info_.page_bytes + (area.snapshot ? config_.snapshot_bytes : 0);
    }
    Area* free_area(bool for_export);
    Area* area_of(uint64_t job);
    void claim(Area* area, AreaState state);
    SpillCommand& command(SpillCommandKind kind);
    void remove(const SpillFile& file);
    void ask_pieces();
    void write_exports(PlanBuilder& builder);
    void write_imports(PlanBuilder& builder);
    void end_export(bool stored);
    void end_load(bool live, PlanBuilder& builder);

    const SpillPlanConfig config_;
    const ModelInfo info_;
    PrefixCache& cache_;
    SpillCatalogue catalogue_;
    std::vector<Area> areas_;
    uint64_t next_job_ = 1;
    Out out_;
    In in_;
    CutRef ready_;  ///< loaded, pinned until `ready_for_` uses it
    uint64_t ready_for_ = 0;
    bool waits_for_abort_ = false, no_writes_ = false;
    std::vector<int32_t> out_symbols_, in_symbols_;
    std::vector<SpillFile> chain_;
    std::vector<SpillRef> chain_refs_;
    std::vector<SpillCommand> commands_;
    int64_t hits_ = 0, misses_ = 0;
};

}  // namespace tenon::engine
