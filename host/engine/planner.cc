// SPDX-License-Identifier: MIT
// Events, admission, slots and pages of the planner, and the plan of each step.
#include "host/engine/planner.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace tenon::engine {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

EndCause cause_of(CancelReason reason) {
    switch (reason) {
        case CancelReason::slow_client:
            return EndCause::slow_client;
        case CancelReason::deadline:
            return EndCause::deadline;
        case CancelReason::shutdown:
            return EndCause::shutdown;
        case CancelReason::memory:
            return EndCause::memory;
        case CancelReason::none:
        case CancelReason::client_gone:
            break;
    }
    return EndCause::client_gone;
}

int64_t prompt_rows(const SequenceSpec& spec) {
    return static_cast<int64_t>(spec.prompt.size) - 1;
}

/// Positions whose state a sequence can ever hold: the last emitted token is never computed.
int64_t positions_needed(const SequenceSpec& spec) {
    return prompt_rows(spec) + spec.max_new;
}

}  // namespace

BuilderLimits builder_limits(const PlannerConfig& config) {
    const auto slots = static_cast<uint64_t>(config.slots);
    const auto vocab = static_cast<uint64_t>(config.info.vocab);
    BuilderLimits limits;
    limits.slots = slots;
    limits.tokens = static_cast<uint64_t>(config.chunk_rows) +
                    static_cast<uint64_t>(config.step_rows) + slots * plan::kMaxStops;
    limits.pages = std::min<uint64_t>(plan::kMaxPageEntries,
                                      slots * static_cast<uint64_t>(config.pages_per_slot()));
    // One request may name every id of the vocabulary and a full bias list; a second one that large
    // waits a step.
    const uint64_t one =
        std::min<uint64_t>(vocab, static_cast<uint64_t>(config.context_tokens)) + plan::kMaxBias;
    limits.pairs = std::min<uint64_t>(2 * one, 384 * 1024);
    return limits;
}

uint64_t longest_plan_bytes(const PlannerConfig& config) {
    const BuilderLimits limits = builder_limits(config);
    const uint64_t records = 3 * sizeof(plan::SlotOp) + sizeof(plan::PageMap) +
                             sizeof(plan::Sampler) + sizeof(plan::Window) + sizeof(plan::Draft);
    const uint64_t fixed = sizeof(plan::Header) +
                           plan::kMaxSections * (sizeof(plan::SectionHeader) + 8) +
                           sizeof(plan::Chunk) + sizeof(plan::Target) + sizeof(PlanNote);
    return fixed + limits.slots * records + limits.tokens * 4 + limits.pages * 4 + limits.pairs * 8;
}

Planner::Planner(const PlannerConfig& config, Span<ScheduleOverlay* const> overlays, Host& host)
    : config_(config),
      base_(config.fairness_us, config.fairness_background_us),
      chain_(base_, overlays, host),
      pages_(config.pool_pages),
      builder_(builder_limits(config)),
      slots_(static_cast<size_t>(config.slots)) {
    const auto slots = static_cast<size_t>(config.slots);
    const size_t sequences = slots + static_cast<size_t>(config.max_waiting);
    for (Slot& s : slots_) {
        s.pages.reserve(static_cast<size_t>(config.pages_per_slot()));
    }
    waiting_.reserve(sequences);
    waiting_views_.reserve(sequences);
    slot_views_.reserve(slots);
    effects_.reserve(2 * sequences + slots);
}

void Planner::set_costs(const CostTable& costs) {
    window_us_.assign(costs.window_us.begin(), costs.window_us.end());
    stage_us_.assign(costs.stage_us.begin(), costs.stage_us.end());
}

Planner::SlotInfo Planner::slot(int32_t index) const {
    const Slot& s = slots_[static_cast<size_t>(index)];
    return {s.state, s.blocked_since >= 0, s.generation, s.length, s.emitted, s.spec};
}

bool Planner::idle() const {
    return waiting_.empty() && std::all_of(slots_.begin(), slots_.end(), [](const Slot& s) {
               return s.state == SlotState::free;
           });
}

int64_t Planner::next_due_us() const {
    int64_t due = kNever;
    const auto look = [&](const SequenceSpec& spec, int64_t blocked_since) {
        if (spec.deadline_us > 0) {
            due = std::min(due, spec.deadline_us);
        }
        if (blocked_since >= 0) {
            due = std::min(due, blocked_since + config_.slow_client_limit_us);
        }
    };
    for (const Slot& s : slots_) {
        if (s.state != SlotState::free) {
            look(*s.spec, s.blocked_since);
        }
    }
    for (const Waiting& w : waiting_) {
        look(*w.spec, w.blocked_since);
    }
    return due;
}

void Planner::outline(const OutlineInput& input) {
    builder_.reset();
    effects_.clear();
    note_ = PlanNote{input.now_us, input.memory_level, static_cast<uint32_t>(input.events.size)};
    for (const PlannerEvent& event : input.events) {
        take_event(event, input.now_us);
    }
    expire(input.now_us);
    if (input.memory_level >= 2) {
        end_newest();
    }
    if (input.memory_level == 0) {
        admit(input.now_us);
    }
    // The chain can only fail where its own base does, which never fails; an empty outline is safe.
    if (!chain_.outline(make_view(input), &outline_).ok()) {
        outline_ = StepOutline{};
    }
}

void Planner::take_event(const PlannerEvent& event, int64_t now_us) {
    switch (event.kind) {
        case PlannerEventKind::submit:
            TENON_CHECK(waiting_.size() < waiting_.capacity(), "waiting list of {}",
                        waiting_.capacity());
            waiting_.push_back({event.spec, -1});
            return;
        case PlannerEventKind::cancel:
            cancel(event.request, cause_of(event.reason));
            return;
        case PlannerEventKind::sink_blocked:
        case PlannerEventKind::sink_free:
            break;
    }
    const int64_t since = event.kind == PlannerEventKind::sink_blocked ? now_us : -1;
    for (Slot& s : slots_) {
        if (s.state != SlotState::free && s.spec->request == event.request) {
            s.blocked_since = since;
        }
    }
    for (Waiting& w : waiting_) {
        if (w.spec->request == event.request) {
            w.blocked_since = since;
        }
    }
}

void Planner::cancel(uint64_t request, EndCause cause) {
    for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].state != SlotState::free && slots_[i].spec->request == request) {
            end(i, cause);
        }
    }
    const auto gone = [&](const Waiting& w) {
        if (w.spec->request != request) {
            return false;
        }
        effects_.push_back({EffectKind::ended, cause, 0, 0, w.spec});
        return true;
    };
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), gone), waiting_.end());
}

void Planner::expire(int64_t now_us) {
    // Ending a request removes entries, so the search starts again; each round ends at least one
    // sequence.
    for (;;) {
        uint64_t request = 0;
        EndCause cause = EndCause::complete;
        const auto look = [&](const SequenceSpec& spec, int64_t blocked_since) {
            if (spec.deadline_us > 0 && now_us >= spec.deadline_us) {
                cause = EndCause::deadline;
            } else if (blocked_since >= 0 &&
                       now_us - blocked_since >= config_.slow_client_limit_us) {
                cause = EndCause::slow_client;
            } else {
                return false;
            }
            request = spec.request;
            return true;
        };
        const bool found =
            std::any_of(slots_.begin(), slots_.end(),
                        [&](const Slot& s) {
                            return s.state != SlotState::free && look(*s.spec, s.blocked_since);
                        }) ||
            std::any_of(waiting_.begin(), waiting_.end(),
                        [&](const Waiting& w) { return look(*w.spec, w.blocked_since); });
        if (!found) {
            return;
        }
        cancel(request, cause);
    }
}

void Planner::end_newest() {
    size_t newest = slots_.size();
    for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].state != SlotState::free &&
            (newest == slots_.size() ||
             slots_[i].spec->arrival_seq > slots_[newest].spec->arrival_seq)) {
            newest = i;
        }
    }
    if (newest < slots_.size()) {
        end(newest, EndCause::memory);
    }
}

void Planner::close(size_t index) {
    Slot& s = slots_[index];
    plan::SlotOp op;
    op.slot = static_cast<uint32_t>(index);
    op.generation = s.generation;
    op.op = plan::SlotOpKind::close;
    op.request = s.spec->request;
    builder_.slot_ops.push_back(op);
    for (const int32_t page : s.pages) {
        pages_.release(page);
    }
    s.pages.clear();
    s.state = SlotState::free;
    s.spec = nullptr;
    s.candidate_count = 0;
    s.blocked_since = -1;
}

void Planner::end(size_t index, EndCause cause) {
    const Slot& s = slots_[index];
    effects_.push_back(
        {EffectKind::ended, cause, static_cast<uint32_t>(index), s.generation, s.spec});
    close(index);
}

size_t Planner::next_waiting(const SchedulerView& view) const {
    size_t best = waiting_.size();
    std::tuple<int, bool, int64_t, uint64_t> best_key{};
    for (size_t i = 0; i < waiting_.size(); ++i) {
        const SequenceSpec& spec = *waiting_[i].spec;
        if (waiting_[i].blocked_since >= 0) {
            continue;  // its front end does not even take what it has
        }
        const int64_t rows = prompt_rows(spec);
        const bool overdue =
            base_.is_overdue(view, view.now_us - spec.arrival_us, rows, spec.background);
        const auto key =
            std::make_tuple(overdue ? 0 : 1, spec.background, overdue ? 0 : rows, spec.arrival_seq);
        if (best == waiting_.size() || key < best_key) {
            best = i;
            best_key = key;
        }
    }
    return best;
}

void Planner::admit(int64_t now_us) {
    SchedulerView costs;
    costs.now_us = now_us;
    costs.chunk_rows = config_.chunk_rows;
    costs.stage_us = stage_us_;
    for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].state != SlotState::free) {
            continue;
        }
        const size_t next = next_waiting(costs);
        if (next == waiting_.size()) {
            return;
        }
        const SequenceSpec& spec = *waiting_[next].spec;
        const auto pages = static_cast<uint64_t>(config_.pages_of(positions_needed(spec)));
        // Nobody overtakes a reply that waits for pages: it would starve behind smaller ones.
        if (static_cast<uint64_t>(pages_.free()) < pages ||
            !builder_.has_room(pages, spec.bias.size + spec.counts.size)) {
            return;
        }
        const Waiting chosen = waiting_[next];
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(next));
        open(i, chosen);
    }
}

void Planner::open(size_t index, const Waiting& next) {
    const SequenceSpec& spec = *next.spec;
    Slot& s = slots_[index];
    const auto slot_id = static_cast<uint32_t>(index);
    ++s.generation;
    s.spec = next.spec;
    s.length = 0;
    s.emitted = 0;
    s.candidate_count = 0;
    s.blocked_since = next.blocked_since;
    s.state = s.prefill_end() > 0 ? SlotState::prefilling : SlotState::decoding;
    s.pending = spec.prompt[spec.prompt.size - 1];
    s.pages.resize(static_cast<size_t>(config_.pages_of(positions_needed(spec))));
    TENON_CHECK(pages_.take(s.pages), "{} pages", s.pages.size());

    plan::SlotOp op;
    op.slot = slot_id;
    op.generation = s.generation;
    op.op = plan::SlotOpKind::open;
    op.request = spec.request;
    builder_.slot_ops.push_back(op);

    plan::PageMap map;
    map.slot = slot_id;
    map.generation = s.generation;
    map.count = static_cast<uint32_t>(s.pages.size());
    map.pages_off = builder_.add_pages(s.pages);
    builder_.page_maps.push_back(map);

    plan::Sampler sampler = spec.sampler;
    sampler.slot = slot_id;
    sampler.generation = s.generation;
    sampler.bias_off = spec.bias.empty() ? 0 : builder_.add_pairs(spec.bias);
    sampler.bias_count = static_cast<uint32_t>(spec.bias.size);
    sampler.stop_off = spec.stops.empty() ? 0 : builder_.add_tokens(spec.stops);
    sampler.stop_count = static_cast<uint32_t>(spec.stops.size);
    sampler.counts_off = spec.counts.empty() ? 0 : builder_.add_pairs(spec.counts);
    sampler.counts_count = static_cast<uint32_t>(spec.counts.size);
    builder_.samplers.push_back(sampler);

    effects_.push_back({EffectKind::started, EndCause::complete, slot_id, s.generation, next.spec});
}

const SchedulerView& Planner::make_view(const OutlineInput& input) {
    slot_views_.clear();
    waiting_views_.clear();
    view_ = SchedulerView{};
    view_.memory_level = input.memory_level;
    view_.now_us = input.now_us;
    view_.pages_free = pages_.free();
    view_.row_cap = input.may_decode ? config_.step_rows : 0;
    view_.chunk_rows = config_.chunk_rows;
    view_.stages = config_.info.prefill_stages;
    view_.window_us = window_us_;
    view_.stage_us = stage_us_;
    for (size_t i = 0; i < slots_.size(); ++i) {
        const Slot& s = slots_[i];
        SlotView v;
        v.slot = static_cast<uint32_t>(i);
        if (s.state != SlotState::free) {
            v.sink_blocked = s.blocked_since >= 0 ? 1 : 0;
            v.state = v.sink_blocked != 0 ? kPausedState : static_cast<uint32_t>(s.state);
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
        v.remaining = prompt_rows(*w.spec);
        v.age_us = input.now_us - w.spec->arrival_us;
        v.background = w.spec->background ? 1 : 0;
        v.overdue = base_.is_overdue(view_, v.age_us, v.remaining, w.spec->background) ? 1 : 0;
        waiting_views_.push_back(v);
    }
    view_.slots = slot_views_;
    view_.waiting = waiting_views_;
    return view_;
}

Planner::Slot* Planner::live_slot(uint32_t slot, uint32_t generation) {
    if (slot >= slots_.size()) {
        return nullptr;
    }
    Slot& s = slots_[slot];
    return s.state != SlotState::free && s.generation == generation ? &s : nullptr;
}

void Planner::apply_results(const FinishInput& input) {
    for (Slot& s : slots_) {
        s.candidate_count = 0;
    }
    const auto failed = [](RowStatus status) {
        return status == RowStatus::io ? EndCause::storage : EndCause::numeric;
    };
    // A slot that was closed since, or opened anew, has another generation: its results are
    // dropped.
    for (const SlotOutcome& o : input.outcomes) {
        Slot* s = live_slot(o.slot, o.generation);
        if (s == nullptr) {
            continue;
        }
        if (o.status != RowStatus::ok) {
            end(o.slot, failed(o.status));
            continue;
        }
        s->length += o.emitted;
        s->emitted += o.kept;
        s->pending = o.last;
        if (o.ended) {
            close(o.slot);
        }
    }
    for (const ChunkResult& c : input.chunks) {
        if (c.status != RowStatus::ok && live_slot(c.slot, c.generation) != nullptr) {
            end(c.slot, failed(c.status));
        }
    }
    for (const DraftResult& d : input.drafts) {
        Slot* s = live_slot(d.slot, d.generation);
        for (int32_t i = 0; s != nullptr && i < std::min(d.count, config_.draft_depth); ++i) {
            if (d.tokens[i] < 0 || d.tokens[i] >= config_.info.vocab) {
                break;  // the list ends at an id that cannot be looked up
            }
            s->candidates[i] = d.tokens[i];
            s->candidate_count = i + 1;
        }
    }
}

bool Planner::finish(const FinishInput& input, StepPlan* plan) {
    effects_.clear();
    apply_results(input);
    write_windows();
    write_chunk();
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

void Planner::write_windows() {
    // Rows beyond one per slot go round by round, so that every slot gets its first draft before
    // any gets a second.
    int32_t rows[StepOutline::kMaxSlots] = {};
    int32_t count = 0;
    uint32_t order[StepOutline::kMaxSlots];
    for (int32_t i = 0; i < outline_.decode_count; ++i) {
        if (slots_[outline_.decode[i]].state == SlotState::decoding) {
            order[count++] = outline_.decode[i];
        }
    }
    int32_t left = std::min(outline_.row_cap, config_.step_rows) - count;
    std::fill(rows, rows + count, 1);
    for (bool given = true; given && left > 0;) {
        given = false;
        for (int32_t i = 0; i < count && left > 0; ++i) {
            const Slot& s = slots_[order[i]];
            const int64_t most =
                std::min<int64_t>({s.candidate_count + 1, s.remaining(), config_.window_rows});
            if (rows[i] < most) {
                ++rows[i];
                --left;
                given = true;
            }
        }
    }
    for (int32_t i = 0; i < count; ++i) {
        const Slot& s = slots_[order[i]];
        plan::Window w;
        w.slot = order[i];
        w.generation = s.generation;
        w.position = s.length;
        w.rows = rows[i];
        w.accept_max = rows[i];
        w.tokens_off = builder_.add_tokens({&s.pending, 1});
        if (rows[i] > 1) {
            w.flags |= plan::kDrafted;
            builder_.add_tokens({s.candidates, static_cast<uint64_t>(rows[i] - 1)});
        }
        if (s.spec->sampler.logprobs >= 0) {
            w.flags |= plan::kWantLogprobs;
            w.top = s.spec->sampler.logprobs;
        }
        builder_.windows.push_back(w);

        const int32_t depth = std::min(config_.draft_depth, config_.info.draft_max);
        // After this window one token at least is gone; drafts pay only if two more may follow.
        if (depth > 0 && s.spec->drafts_allowed && config_.step_rows > count && s.remaining() > 2) {
            plan::Draft d;
            d.slot = order[i];
            d.generation = s.generation;
            d.rows = depth;
            builder_.drafts.push_back(d);
        }
    }
}

void Planner::write_chunk() {
    if (outline_.slice_slot < 0) {
        return;
    }
    Slot& s = slots_[static_cast<size_t>(outline_.slice_slot)];
    if (s.state != SlotState::prefilling) {
        return;
    }
    plan::Target target;  // the header cut: layer state at n - 1 must be exact, whatever the chunk
    target.at = s.prefill_end();
    plan::Chunk c;
    c.slot = static_cast<uint32_t>(outline_.slice_slot);
    c.generation = s.generation;
    c.begin = s.length;
    c.end = std::min(s.length + outline_.slice_rows, s.prefill_end());
    c.stage_end = config_.info.prefill_stages;
    c.tokens_off = builder_.add_tokens(s.spec->prompt.subspan(
        static_cast<uint64_t>(c.begin), static_cast<uint64_t>(c.end - c.begin)));
    c.target_off = static_cast<uint32_t>(builder_.targets.size());
    c.target_count = 1;
    builder_.targets.push_back(target);
    builder_.chunks.push_back(c);
    s.length = c.end;
    if (s.length == s.prefill_end()) {
        s.state = SlotState::decoding;
    }
}

}  // namespace tenon::engine
