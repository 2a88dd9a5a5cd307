// SPDX-License-Identifier: MIT
// Decides what each step does. Pure: state and recorded inputs give the same plans, bit for bit
// (engine.md 3).
#pragma once

#include <algorithm>
#include <tuple>
#include <vector>

#include "host/engine/draft_policy.h"
#include "host/engine/outline_chain.h"
#include "host/engine/page_allocator.h"
#include "host/engine/plan_builder.h"
#include "host/engine/prefix_pass.h"
#include "host/engine/sequence.h"
#include "host/engine/spill_plan.h"
#include "host/engine/step_costs.h"
#include "host/engine/token_history.h"
#include "tenon/model.h"

namespace tenon::engine {

struct PlannerConfig {
    ModelInfo info;
    int32_t slots = 4;
    int64_t context_tokens = 0;
    int64_t pool_pages = 0;
    int32_t step_rows = 16, window_rows = 16, chunk_rows = 2048;
    int32_t draft_depth = 0;      ///< most drafts of the model a window; 0 = no draft passes
    bool copy_drafts = false;     ///< drafts from the slot's own text
    int32_t snapshot_cells = 0;   ///< 0 = nothing is kept
    bool prefix_strict = false;   ///< reuse prompt-class cuts only
    bool bounded_replay = false;  ///< chunks carry the flag
    bool image_states = false;    ///< cuts may lie beyond an image
    bool prefetch = true;         ///< rows of the next chunk are asked for beside a chunk
    int64_t join_wait_us = 60'000'000;
    int64_t join_min_rows = 512;  ///< shared rows for which a request waits for another's pass
    int32_t max_waiting = 64;     ///< replies
    int64_t fairness_us = 60'000'000, fairness_background_us = 600'000'000;
    int64_t slow_client_limit_us = 30'000'000;
    uint64_t group_epoch = 0;
    SpillPlanConfig spill;

    int64_t pages_of(int64_t tokens) const {
        return (tokens + info.page_tokens - 1) / info.page_tokens;
    }
    int64_t pages_per_slot() const { return pages_of(context_tokens); }
};

/// Rank 0's engine thread. Each step: `outline` while the step before is on the device, then
/// `finish` with that step's results. Reads no clock, no atomic and no address; allocates nothing
/// after construction.
///
/// A reply is admitted when pages for its prompt are free, and gets more as it grows. When none are
/// left the newest slot is parked: its pages go, its tokens stay, and when pages are there again
/// its prompt is computed anew and its tokens run as given rows (engine.md 3.3). The oldest of all
/// is never parked and its parked state never waits for a younger one, so with pages for one
/// context every reply ends. A step has one window of every runnable slot and at most one whole
/// chunk.
class Planner {
  public:
    /// Borrows overlays and host (only for the chain's log line).
    Planner(const PlannerConfig& config, Span<ScheduleOverlay* const> overlays, Host& host);

    /// Measured at warm-up; copied. Before the first outline.
    void set_costs(const CostTable& costs);

    /// Takes events, ends what was cancelled or expired, admits, and chooses slots and slice.
    void outline(const OutlineInput& input);

    /// Applies the results of the step before and writes the plan, whose spans live until the next
    /// outline. False: there is nothing to do, no step is used.
    bool finish(const FinishInput& input, StepPlan* plan);

    /// Decisions of the last `outline` or `finish`, in order; valid until the next of either.
    Span<const PlannerEffect> effects() const { return effects_; }

    /// Earliest time at which an outline would do something without a new event; INT64_MAX = none.
    int64_t next_due_us() const;

    struct SlotInfo {
        SlotState state = SlotState::free;
        bool blocked = false;
        uint32_t generation = 0;
        int64_t length = 0, emitted = 0;
        const SequenceSpec* spec = nullptr;
        int64_t known = 0;  ///< prompt and emitted tokens
    };
    SlotInfo slot(int32_t index) const;
    const PageAllocator& pages() const { return pages_; }
    /// Replies without a slot, parked ones included.
    int64_t waiting() const { return static_cast<int64_t>(waiting_.size()) + parked(); }
    int64_t parked() const;
    const PrefixCache& cache() const { return cache_; }
    const SpillPlan& spill() const { return spill_; }
    /// What the spill threads shall do; valid until the next outline or finish.
    Span<const SpillCommand> spill_commands() const { return spill_.commands(); }
    /// After a `flush`: nothing is left that could go to disk.
    bool flushed() const { return flushed_; }
    bool idle() const;
    /// Calls f(page) once for each reference to a page: of slots, then of cuts.
    template <class F>
    void each_page_reference(F&& f) const {
        for (const Slot& s : slots_) {
            std::for_each(s.pages.begin(), s.pages.end(), f);
        }
        for (int32_t i = 0; i < cache_.index().capacity(); ++i) {
            const Cut& c = cache_.index().cut(i);
            std::for_each(c.pages.begin(), c.pages.end(), f);
        }
    }

  private:
    struct Slot {
        explicit Slot(int64_t context_tokens) : history(context_tokens) {}
        SlotState state = SlotState::free;
        uint32_t generation = 0;
        const SequenceSpec* spec = nullptr;  // null while saving
        int64_t length = 0, emitted = 0;
        int32_t pending = 0;
        int64_t blocked_since = -1;  // -1 = not blocked
        std::vector<int32_t> pages;
        int32_t candidate_count = 0;  // of the drafter, for the next window
        PassState pass;
        uint64_t closing_request = 0;
        int32_t candidates[plan::kMaxDrafts] = {};
        float confidence[plan::kMaxDrafts] = {};
        TokenHistory history;  // prompt and reply, the pending token last
        DraftRecord draft;
        bool parking = false;  // loses its slot when the step in flight is collected
        CutRef spent;          // the cut of its own parked state, when it came back from it
        bool starved = false;  // no pages for its next window

        int64_t prefill_end() const { return static_cast<int64_t>(spec->prompt.size) - 1; }
        int64_t remaining() const { return spec->max_new - emitted; }
        int64_t known() const { return static_cast<int64_t>(history.tokens().size); }
        /// Rows that a resumed reply has to run again before its pending token.
        int64_t replay_rows() const {
            return state == SlotState::decoding ? known() - 1 - length : 0;
        }
        bool has_penalties() const { return !spec->counts.empty(); }
    };
    struct Waiting {
        const SequenceSpec* spec = nullptr;
        int64_t blocked_since = -1;
        int32_t parked = -1;  // index of the parked reply that goes on
        int64_t cached = 0;   // positions that a kept cut had when it came
        // The pass whose cut at join_at it waits for; a request joins once.
        bool joined = false;
        bool spill_tried = false, wants_load = false;
        int32_t join_slot = -1;
        uint32_t join_generation = 0;
        int64_t join_at = 0, join_until_us = 0;

        int64_t remaining() const { return spec->prompt_rows() - cached; }
    };
    /// A reply without a slot that had one. `spec` null: the entry is free.
    struct Parked {
        explicit Parked(int64_t context_tokens) : history(context_tokens) {}
        const SequenceSpec* spec = nullptr;
        int64_t emitted = 0;
        int64_t blocked_since = -1;
        bool has_state = false;  // saved as a cut of its own, in memory or on disk
        TokenHistory history;
    };

    void take_event(const PlannerEvent& event, int64_t now_us);
    void cancel(uint64_t request, EndCause cause);
    void expire(int64_t now_us);
    void end_newest();
    void close(size_t index);
    void end(size_t index, EndCause cause);
    void admit(int64_t now_us);
    size_t next_waiting(const SchedulerView& view) const;
    void open(size_t index, const Waiting& next, const PrefixCache::Hit& hit);
    // Pages that run out (planner_pages.cc).
    std::tuple<bool, uint64_t> seniority(const SequenceSpec& spec) const;
    int64_t first_pages(const SequenceSpec& spec, int64_t known) const;
    bool reserve(int64_t pages, const SequenceSpec& spec, PrefixCache::Hit* hit);
    int64_t live_slots() const;
    void grow_pages();
    void mark_for(const Slot* needy);
    void park_marked();
    void resume_parked();
    Parked* oldest_parked();
    const SchedulerView& make_view(const OutlineInput& input);
    void apply_results(const FinishInput& input);
    Slot* live_slot(uint32_t slot, uint32_t generation);
    void write_windows();
    /// Drafts that a slot could verify next, and how far they are believed.
    struct Proposal {
        Offer offer;
        DraftSource source = DraftSource::none;
        int32_t tokens[plan::kMaxDrafts] = {};
        float raw[plan::kMaxDrafts] = {};
        int64_t match = 0;
    };
    void propose(Slot& slot, Proposal* out);
    void write_window(uint32_t index, const Proposal& proposal, int32_t rows);
    int32_t write_replay(uint32_t index, int32_t row_cap);
    int32_t write_drafts(Span<const uint32_t> order);
    void write_chunk();
    void write_prefetch(const Slot& done);

    // Prefix reuse (planner_prefix.cc).
    PrefixCache::Hit look_up(const SequenceSpec& spec);
    bool awaits_reply(const SequenceSpec& spec, const PrefixCache::Hit& hit);
    void plan_pass(Slot& slot, const PrefixCache::Hit& hit);
    int64_t next_target(const Slot& slot) const;
    bool may_keep(const SequenceSpec& spec, int64_t at) const;
    uint32_t begin_cut(size_t index, const PassTarget& target, int64_t min_target);
    void add_targets(size_t index, plan::Chunk* chunk);
    void settle_cuts(const FinishInput& input);
    bool save_reply(size_t index);
    bool join(Waiting& waiting, const PrefixCache::Hit& hit, int64_t now_us);
    bool is_joining(const Waiting& waiting, int64_t now_us) const;
    bool make_room(int64_t pages, const PrefixCache::Hit& hit);
    // Spill tier (planner_spill.cc).
    bool load_deeper(Waiting& waiting, const PrefixCache::Hit& hit, int64_t now_us);
    bool give_up_for_room();
    bool save_parked(size_t index);
    bool find_parked(const Parked& parked, PrefixCache::Hit* hit);
    void forget_parked(const SequenceSpec& spec, Span<const int32_t> tokens);
    void forget_own(const CutRef& ref);
    void forget_spent();
    bool has_parked(uint64_t owner) const;
    void write_spill();
    void restore(size_t index, const PrefixCache::Hit& hit);
    void release_restored();
    void close_saved();

    PlannerConfig config_;
    BaseOutliner base_;
    OutlineChain chain_;
    PageAllocator pages_;
    PrefixCache cache_;
    SpillPlan spill_;
    PlanBuilder builder_;
    std::vector<Slot> slots_;
    std::vector<Waiting> waiting_;  // by arrival
    std::vector<Parked> parked_;    // twice as many as slots
    std::vector<PlannerEffect> effects_;
    StepCosts costs_;
    DraftPolicy drafts_;
    std::vector<Proposal> proposals_;  // by order of the step's windows
    std::vector<CutRef> restored_;     // in the plan that is being built
    std::vector<SlotView> slot_views_;
    std::vector<WaitingView> waiting_views_;
    SchedulerView view_;
    StepOutline outline_;
    PlanNote note_;
    uint64_t step_ = 0;
    int64_t now_us_ = 0;  // of the last outline
    bool flush_ = false, flushed_ = false;
    int64_t step_rows_ = 0, step_streams_ = 0, step_chunk_ = 0;  // of the last plan
};

/// Sizes of the builder and of the longest encoded plan for a configuration.
BuilderLimits builder_limits(const PlannerConfig& config);
uint64_t longest_plan_bytes(const PlannerConfig& config);

}  // namespace tenon::engine
