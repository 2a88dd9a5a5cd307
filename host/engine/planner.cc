// SPDX-License-Identifier: MIT
// Construction, the view for overlays, and the order of the parts in a step.
#include "host/engine/planner.h"

#include <algorithm>

namespace tenon::engine {

BuilderLimits builder_limits(const PlannerConfig& config) {
    const auto slots = static_cast<uint64_t>(config.slots);
    const auto vocab = static_cast<uint64_t>(config.info.vocab);
    BuilderLimits limits;
    limits.slots = slots;
    // A chunk, and the one whose rows are read ahead.
    limits.tokens = 2 * static_cast<uint64_t>(config.chunk_rows) +
                    static_cast<uint64_t>(config.step_rows) + slots * plan::kMaxStops;
    limits.pages = std::min<uint64_t>(plan::kMaxPageEntries,
                                      slots * static_cast<uint64_t>(config.pages_per_slot()));
    // One request may name every id of the vocabulary and a full bias list; a second one that large
    // waits a step.
    const uint64_t one =
        std::min<uint64_t>(vocab, static_cast<uint64_t>(config.context_tokens)) + plan::kMaxBias;
    limits.pairs = std::min<uint64_t>(2 * one, 384 * 1024);
    limits.cells = static_cast<uint64_t>(config.snapshot_cells);
    limits.areas = static_cast<uint64_t>(config.spill.areas);
    return limits;
}

uint64_t longest_plan_bytes(const PlannerConfig& config) {
    const BuilderLimits limits = builder_limits(config);
    const uint64_t records = 3 * sizeof(plan::SlotOp) + sizeof(plan::PageMap) +
                             sizeof(plan::Sampler) + sizeof(plan::Window) + sizeof(plan::Draft) +
                             sizeof(plan::PageCopy) + 2 * sizeof(plan::SnapOp);
    const uint64_t fixed =
        sizeof(plan::Header) + plan::kMaxSections * (sizeof(plan::SectionHeader) + 8) +
        sizeof(plan::Chunk) + plan::kMaxChunkTargets * sizeof(plan::Target) + sizeof(PlanNote) +
        sizeof(plan::Prefetch) + 2 * (limits.cells + limits.areas) * sizeof(plan::SnapOp);
    return fixed + limits.slots * records + limits.tokens * 4 + limits.pages * 4 + limits.pairs * 8;
}

Planner::Planner(const PlannerConfig& config, Span<ScheduleOverlay* const> overlays, Host& host)
    : config_(config),
      base_(config.fairness_us, config.fairness_background_us),
      chain_(base_, overlays, host),
      pages_(config.pool_pages),
      cache_({config.info, config.pool_pages, config.pages_per_slot(), config.slots,
              config.snapshot_cells},
             pages_),
      spill_(config.spill, config.info, config.context_tokens, cache_),
      builder_(builder_limits(config)),
      proposals_(static_cast<size_t>(config.slots)) {
    const auto slots = static_cast<size_t>(config.slots);
    const size_t sequences = slots + static_cast<size_t>(config.max_waiting);
    slots_.reserve(slots);
    parked_.reserve(2 * slots);
    while (slots_.size() < slots) {
        slots_.emplace_back(config.context_tokens);
        parked_.emplace_back(config.context_tokens);
        parked_.emplace_back(config.context_tokens);
    }
    for (Slot& s : slots_) {
        s.pages.reserve(static_cast<size_t>(config.pages_per_slot()));
    }
    restored_.reserve(slots);
    waiting_.reserve(sequences);
    waiting_views_.reserve(sequences);
    slot_views_.reserve(slots);
    effects_.reserve(2 * sequences + slots);
}

void Planner::set_costs(const CostTable& costs) {
    costs_.set(costs);
}

Planner::SlotInfo Planner::slot(int32_t index) const {
    const Slot& s = slots_[static_cast<size_t>(index)];
    return {s.state, s.blocked_since >= 0, s.generation, s.length, s.emitted, s.spec, s.known()};
}

bool Planner::idle() const {
    return waiting() == 0 && std::all_of(slots_.begin(), slots_.end(),
                                         [](const Slot& s) { return s.state == SlotState::free; });
}

int64_t Planner::next_due_us() const {
    int64_t due = spill_.due_us();
    const auto look = [&](const SequenceSpec& spec, int64_t blocked_since) {
        if (spec.deadline_us > 0) {
            due = std::min(due, spec.deadline_us);
        }
        if (blocked_since >= 0) {
            due = std::min(due, blocked_since + config_.slow_client_limit_us);
        }
    };
    for (const Slot& s : slots_) {
        if (s.spec != nullptr) {
            look(*s.spec, s.blocked_since);
        }
    }
    for (const Waiting& w : waiting_) {
        look(*w.spec, w.blocked_since);
        if (w.join_slot >= 0) {
            due = std::min(due, w.join_until_us);
        }
    }
    for (const Parked& p : parked_) {
        if (p.spec != nullptr) {
            look(*p.spec, p.blocked_since);
        }
    }
    return due;
}

void Planner::outline(const OutlineInput& input) {
    now_us_ = input.now_us;
    builder_.reset();
    effects_.clear();
    spill_.clear_commands();
    close_saved();
    forget_spent();
    for (const SpillEvent& event : input.spill) {
        spill_.take(event, input.now_us, builder_);
    }
    spill_.expire(input.now_us, builder_);
    costs_.publish();
    note_ = PlanNote{input.now_us, input.memory_level, static_cast<uint32_t>(input.events.size)};
    for (const PlannerEvent& event : input.events) {
        take_event(event, input.now_us);
    }
    expire(input.now_us);
    if (input.memory_level >= 2) {
        end_newest();
    }
    while (input.memory_level >= 1 && cache_.evict(builder_)) {
    }
    grow_pages();
    resume_parked();
    if (input.memory_level == 0) {
        admit(input.now_us);
    }
    write_spill();
    // The chain can only fail where its own base does, which never fails; an empty outline is safe.
    if (!chain_.outline(make_view(input), &outline_).ok()) {
        outline_ = StepOutline{};
    }
}

const SchedulerView& Planner::make_view(const OutlineInput& input) {
    slot_views_.clear();
    waiting_views_.clear();
    view_ = SchedulerView{};
    view_.memory_level = input.memory_level;
    view_.now_us = input.now_us;
    view_.pages_free = pages_.free();
    view_.pages_evictable = pages_.held_only();
    view_.row_cap = input.may_decode ? config_.step_rows : 0;
    view_.chunk_rows = config_.chunk_rows;
    view_.stages = config_.info.prefill_stages;
    view_.window_us = costs_.window_table();
    view_.stage_us = costs_.stage_table();
    for (size_t i = 0; i < slots_.size(); ++i) {
        const Slot& s = slots_[i];
        SlotView v;
        v.slot = static_cast<uint32_t>(i);
        if (s.state != SlotState::free) {
            v.sink_blocked = s.blocked_since >= 0 ? 1 : 0;
            const bool rests = v.sink_blocked != 0 || s.parking || s.starved;
            v.state = rests ? kPausedState : static_cast<uint32_t>(s.state);
            v.arrival_seq = s.spec->arrival_seq;
            v.length = s.length;
            v.prompt = static_cast<int64_t>(s.spec->prompt.size);
            v.age_us = input.now_us - s.spec->arrival_us;
            v.background = s.spec->background ? 1 : 0;
        }
        slot_views_.push_back(v);
    }
    for (const Waiting& w : waiting_) {
        WaitingView v;
        v.request = w.spec->request;
        v.arrival_seq = w.spec->arrival_seq;
        v.remaining = w.remaining();
        v.age_us = input.now_us - w.spec->arrival_us;
        v.background = w.spec->background ? 1 : 0;
        v.overdue = base_.is_overdue(view_, v.age_us, v.remaining, w.spec->background) ? 1 : 0;
        waiting_views_.push_back(v);
    }
    view_.slots = slot_views_;
    view_.waiting = waiting_views_;
    return view_;
}

bool Planner::finish(const FinishInput& input, StepPlan* plan) {
    effects_.clear();
    costs_.observe(step_rows_, step_streams_, step_chunk_, config_.chunk_rows, input.timing);
    step_rows_ = step_streams_ = step_chunk_ = 0;
    spill_.clear_commands();
    apply_results(input);
    spill_.take(input.jobs, builder_);
    park_marked();
    write_windows();
    write_chunk();
    release_restored();
    if (builder_.empty()) {
        return false;
    }
    *plan = builder_.view();
    plan->header.step = ++step_;
    plan->header.group_epoch = config_.group_epoch;
    plan->header.chain_step = input.chain_step;
    plan->header.chain = input.chain;
    plan->note = {reinterpret_cast<const uint8_t*>(&note_), sizeof note_};
    return true;
}

}  // namespace tenon::engine
