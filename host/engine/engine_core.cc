// SPDX-License-Identifier: MIT
// The round: what the engine thread does between two submitted steps.
#include "host/engine/engine_core.h"

#include <algorithm>

#include "host/engine/plan_digest.h"

namespace tenon::engine {
namespace {

constexpr int64_t kFailureSpanUs =
    60'000'000;  // kFailureWindow slot failures within it end the engine

MirrorConfig mirror_config(const PlannerConfig& c) {
    MirrorConfig m;
    m.info = c.info;
    m.slots = c.slots;
    m.context_tokens = c.context_tokens;
    m.pool_pages = c.pool_pages;
    m.step_rows = c.step_rows;
    m.window_rows = c.window_rows;
    m.chunk_rows = c.chunk_rows;
    m.snapshot_cells = c.snapshot_cells;
    m.staging_areas = c.spill.areas;
    m.staging_pages = c.spill.areas > 0
                          ? static_cast<int32_t>(piece_pages(c.spill.area_bytes, c.info.page_bytes))
                          : 0;
    m.group_epoch = c.group_epoch;
    return m;
}

Reply& reply_of(const SequenceSpec& spec) {
    // Every spec that the planner sees was put in as a Reply by `gather`.
    return const_cast<Reply&>(static_cast<const Reply&>(spec));
}

Status broken(uint64_t step, std::string_view what) {
    return error(Code::internal, "step {}: the model's result breaks its contract: {}", step, what);
}

}  // namespace

EngineCore::EngineCore(const CoreParts& parts, const PlannerConfig& planner,
                       Span<ScheduleOverlay* const> overlays)
    : model_(parts.model),
      host_(parts.host),
      delivery_(parts.delivery),
      metrics_(parts.metrics),
      queue_(parts.queue),
      recorder_(parts.recorder),
      staging_(facet_of<ModelStaging>(&parts.model)),
      spill_(parts.spill),
      info_(planner.info),
      config_(planner),
      planner_(planner, overlays, parts.host),
      mirror_(mirror_config(planner)),
      flights_(static_cast<size_t>(planner.slots)) {
    const auto slots = static_cast<size_t>(planner.slots);
    const size_t sequences = slots + static_cast<size_t>(planner.max_waiting);
    requests_.reserve(sequences);
    events_.reserve(4 * sequences);
    ended_.reserve(sequences);
    outcomes_.reserve(slots);
    windows_.reserve(slots);
    drafts_.reserve(slots);
    chunks_.reserve(plan::kMaxChunks);
    jobs_.reserve(static_cast<size_t>(planner.spill.areas));
    spill_events_.reserve(4 * kSpillJobs);
    tokens_.reserve(slots * plan::kMaxWindowRows);
    for (std::vector<uint64_t>& buffer : buffers_) {
        buffer.resize((longest_plan_bytes(planner) + 7) / 8);
    }
    push_spill();
    publish();
}

EngineCore::~EngineCore() = default;

EndCause EngineCore::cause_of(const Status& status, int32_t world) {
    switch (status.code()) {
        case Code::device:
        case Code::does_not_fit:
            return EndCause::device;
        case Code::io:
            return EndCause::storage;
        case Code::deadline:
            return EndCause::stalled;
        case Code::peer:
            return world > 1 ? EndCause::peer_lost : EndCause::internal;
        default:
            return EndCause::internal;
    }
}

Status EngineCore::round(Round* out) {
    *out = Round::worked;
    bool room = delivery_.has_room(config_.step_rows, widest_top_);
    if (!room && !in_flight_) {
        delivery_.starve();
        room = delivery_.has_room(config_.step_rows, widest_top_);
        if (!room) {
            *out = Round::starved;
            delivery_.flush();
            publish();
            return {};
        }
    }
    OutlineInput input;
    gather(&input);
    input.may_decode = room;
    if (recorder_ != nullptr) {
        recorder_->on_outline(input);
    }
    planner_.outline(input);
    push_spill();
    take_effects();

    FinishInput finish;
    const bool collected = in_flight_;
    outcomes_.clear();
    if (in_flight_) {
        TENON_TRY(collect());
        finish.drafts = drafts_;
        finish.chunks = chunks_;
        finish.jobs = jobs_;
        finish.timing = result_.timing;
    }
    finish.outcomes = outcomes_;
    finish.chain = chain_;
    finish.chain_step = chain_step_;
    if (recorder_ != nullptr) {
        recorder_->on_finish(finish);
    }
    StepPlan plan;
    const bool has_plan = planner_.finish(finish, &plan);
    push_spill();
    take_effects();
    drop_ended();
    delivery_.flush();
    TENON_TRY(check_failures(input.now_us));
    if (has_plan) {
        TENON_TRY(submit(plan));
    } else if (!collected) {
        *out = Round::idle;
    }
    publish();
    return {};
}

void EngineCore::gather(OutlineInput* input) {
    events_.clear();
    queue_.take([this](Request& request) {
        requests_.push_back(&request);
        ++totals_.requests_total;
        for (Reply& reply : request.replies()) {
            reply.arrival_seq = next_arrival_++;
            widest_top_ = std::max(widest_top_, reply.sampler.logprobs);
            events_.push_back(
                {PlannerEventKind::submit, CancelReason::none, request.request_id(), &reply});
        }
    });
    const CancelReason cancel_all = cancel_all_.load(std::memory_order_acquire);
    for (Request* request : requests_) {
        if (cancel_all != CancelReason::none) {
            request->cancel(cancel_all);
        }
        const CancelReason reason = request->cancelled();
        if (reason != CancelReason::none && !request->cancel_seen) {
            request->cancel_seen = true;
            events_.push_back({PlannerEventKind::cancel, reason, request->request_id(), nullptr});
        }
        const bool blocked = request->ring().blocked();
        if (blocked != request->blocked_seen) {
            request->blocked_seen = blocked;
            events_.push_back(
                {blocked ? PlannerEventKind::sink_blocked : PlannerEventKind::sink_free,
                 CancelReason::none, request->request_id(), nullptr});
        }
    }
    if (flush_.load(std::memory_order_acquire) && !std::exchange(flush_seen_, true)) {
        events_.push_back({PlannerEventKind::flush, CancelReason::none, 0, nullptr});
    }
    spill_events_.clear();
    if (spill_ != nullptr) {
        spill_->take([this](const SpillEvent& event) { spill_events_.push_back(event); });
    }
    input->spill = spill_events_;
    input->now_us = host_.now_us();
    input->memory_level = memory_level();
    input->events = events_;
}

void EngineCore::take_effects() {
    for (const PlannerEffect& effect : planner_.effects()) {
        Reply& reply = reply_of(*effect.spec);
        if (effect.kind == EffectKind::parked) {
            metrics_.preemptions->add(1);
        } else if (effect.kind == EffectKind::started) {
            reply.started = true;
            reply.admitted_us = host_.now_us();
            const auto prompt = static_cast<int64_t>(reply.prompt.size);
            totals_.prompt_tokens_total += prompt;
            totals_.cached_tokens_total += effect.cached;
            reply.timings.cached_tokens = effect.cached;
            metrics_.cached_tokens->add(static_cast<double>(effect.cached));
            metrics_.prompt_tokens->add(static_cast<double>(prompt));
            DeliveryItem item;
            item.reply = &reply;
            item.start = 1;
            delivery_.push(item, {}, {});
        } else {
            if (effect.cause == EndCause::storage || effect.cause == EndCause::numeric) {
                metrics_.slot_failures->add(1);
                failures_us_[failures_++ % kFailureWindow] = host_.now_us();
                last_failure_ = effect.cause;
                failed_now_ = true;
            }
            end_reply(reply, effect.cause, ReplyEnd::eos);
        }
    }
}

void EngineCore::end_reply(Reply& reply, EndCause cause, ReplyEnd how) {
    TENON_CHECK(!reply.ended, "request {} reply {}", reply.request, reply.reply);
    reply.ended = true;
    ReplyTimings& t = reply.timings;
    t.completion_tokens = reply.emitted;
    t.queue = (reply.started ? reply.admitted_us : host_.now_us()) - reply.arrival_us;
    if (reply.first_us > 0) {
        t.first_token = reply.first_us - reply.arrival_us;
        t.prefill = reply.first_us - reply.admitted_us;
        t.decode = reply.last_us - reply.first_us;
    }
    if (cause == EndCause::complete) {
        const int64_t held = reply.last_us - reply.admitted_us;
        const int64_t mean = mean_service_us();
        mean_service_us_.store(mean == 0 ? held : mean + (held - mean) / 8,
                               std::memory_order_relaxed);
    }
    active_.fetch_sub(1, std::memory_order_acq_rel);
    if (--reply.owner->live_replies == 0) {
        requests_.erase(std::find(requests_.begin(), requests_.end(), reply.owner));
    }
    DeliveryItem item;
    item.reply = &reply;
    item.end = 1;
    item.cause = cause;
    item.how = how;
    delivery_.push(item, {}, {});
    ended_.push_back(&reply);
}

void EngineCore::drop_ended() {
    for (Reply* reply : ended_) {
        DeliveryItem item;
        item.reply = reply;
        item.drop = 1;
        delivery_.push(item, {}, {});
    }
    ended_.clear();
}

Status EngineCore::collect() {
    StepResult result;
    TENON_TRY_CTX(model_.collect(step_, Stage::tokens, &result), "step {} tokens", step_);
    windows_.clear();
    tokens_.clear();
    for (const WindowResult& window : result.windows) {
        TENON_TRY(read_window(window, result));
    }
    delivery_.flush();
    TENON_TRY_CTX(model_.collect(step_, Stage::drafts, &result), "step {} drafts", step_);
    TENON_TRY(read_drafts(result));
    TENON_TRY_CTX(model_.collect(step_, Stage::done, &result), "step {} done", step_);
    in_flight_ = false;
    if (recorder_ != nullptr) {
        recorder_->on_result(result);
    }
    if (result.jobs.size > static_cast<uint64_t>(config_.spill.areas)) {
        return broken(step_, "more job results than staging areas");
    }
    if (result.chunks.size > plan::kMaxChunks) {
        return broken(step_, "more chunk results than a plan can have");
    }
    chunks_.assign(result.chunks.begin(), result.chunks.end());
    result_.step = result.step;
    result_.windows = windows_;
    result_.drafts = drafts_;
    result_.chunks = chunks_;
    jobs_.assign(result.jobs.begin(), result.jobs.end());
    result_.jobs = jobs_;
    result_.tokens = tokens_;
    result_.probe = result.probe;
    result_.timing = result.timing;
    TENON_TRY(mirror_.apply(result_));
    chain_ = next_chain(chain_, digest_, result_);
    chain_step_ = step_;
    totals_.prefill_us_total += result.timing.chunks;
    totals_.decode_us_total += result.timing.windows + result.timing.drafts;
    if (!windows_.empty()) {
        ++totals_.rounds_total;
        metrics_.decode_rounds->add(1);
    }
    return {};
}

Status EngineCore::read_window(const WindowResult& window, const StepResult& result) {
    if (window.slot >= flights_.size()) {
        return broken(step_, format("window of slot {}", window.slot));
    }
    Flight& flight = flights_[window.slot];
    if (flight.reply == nullptr || flight.generation != window.generation) {
        return broken(step_, format("slot {} generation {} had no window, or two results",
                                    window.slot, window.generation));
    }
    SlotOutcome outcome;
    outcome.slot = window.slot;
    outcome.generation = window.generation;
    outcome.status = window.status;
    WindowResult kept = window;
    kept.tokens_off = static_cast<uint32_t>(tokens_.size());
    kept.logprobs_off = 0;
    if (window.status == RowStatus::ok) {
        const auto n = static_cast<uint64_t>(window.emitted < 0 ? 0 : window.emitted);
        if (window.emitted < 1 || window.emitted > std::min(flight.rows, flight.accept_max) ||
            !plan::detail::inside(window.tokens_off, n, result.tokens.size)) {
            return broken(step_, format("slot {} emitted {} of {} rows, accept_max {}", window.slot,
                                        window.emitted, flight.rows, flight.accept_max));
        }
        const uint64_t entries = flight.top < 0 ? 0 : n * (1 + static_cast<uint64_t>(flight.top));
        if (!plan::detail::inside(window.logprobs_off, entries, result.logprobs.size)) {
            return broken(step_, format("slot {}: logprobs are missing", window.slot));
        }
        for (const int32_t id : result.tokens.subspan(window.tokens_off, n)) {
            if (id < 0 || id >= info_.vocab) {
                return broken(
                    step_, format("slot {} emitted token {} of {}", window.slot, id, info_.vocab));
            }
            tokens_.push_back(id);
        }
        outcome.emitted = window.emitted;
        const auto skip = static_cast<uint64_t>(std::min(flight.skip, window.emitted));
        outcome.tokens = {tokens_.data() + kept.tokens_off + skip, n - skip};
        if (!flight.reply->ended) {
            take_tokens(*flight.reply, flight, window, result, &outcome);
        }
    } else {
        kept.emitted = 0;
    }
    windows_.push_back(kept);
    outcomes_.push_back(outcome);
    flight.reply = nullptr;
    return {};
}

void EngineCore::take_tokens(Reply& reply, const Flight& flight, const WindowResult& window,
                             const StepResult& result, SlotOutcome* outcome) {
    const auto skip = static_cast<uint64_t>(std::min(flight.skip, window.emitted));
    const Span<const int32_t> ids = result.tokens.subspan(
        window.tokens_off + skip, static_cast<uint64_t>(window.emitted) - skip);
    if (ids.empty()) {
        return;
    }
    ReplyEnd how = ReplyEnd::eos;
    int32_t text_count = 0;
    for (const int32_t id : ids) {
        ++outcome->kept;
        ++reply.emitted;
        if (std::find(reply.stops.begin(), reply.stops.end(), id) != reply.stops.end()) {
            outcome->ended = true;
            break;
        }
        ++text_count;
        if (reply.stop && reply.stop->feed(id)) {
            outcome->ended = true;
            how = ReplyEnd::stop_string;
            break;
        }
        if (reply.emitted == reply.max_new) {
            outcome->ended = true;
            how = ReplyEnd::length;
            break;
        }
    }
    const auto kept = static_cast<uint64_t>(outcome->kept);
    reply.last_us = host_.now_us();
    if (reply.first_us == 0) {
        reply.first_us = reply.last_us;
    }
    ++reply.timings.rounds;
    reply.timings.drafted += flight.drafted;
    reply.timings.accepted += window.accepted;
    totals_.completion_tokens_total += outcome->kept;
    totals_.drafted_total += flight.drafted;
    totals_.accepted_total += window.accepted;
    metrics_.generated_tokens->add(static_cast<double>(outcome->kept));
    if (flight.drafted > 0) {
        metrics_.drafted->add(flight.drafted);
        metrics_.accepted->add(window.accepted);
    }
    DeliveryItem item;
    item.reply = &reply;
    item.text_count = text_count;
    item.top = flight.top;
    const uint64_t entries = flight.top < 0 ? 0 : kept * (1 + static_cast<uint64_t>(flight.top));
    const uint64_t known = flight.top < 0 ? 0 : skip * (1 + static_cast<uint64_t>(flight.top));
    delivery_.push(item, ids.subspan(0, kept),
                   result.logprobs.subspan(window.logprobs_off + known, entries));
    if (outcome->ended) {
        end_reply(reply, EndCause::complete, how);
    }
}

Status EngineCore::read_drafts(const StepResult& result) {
    drafts_.clear();
    if (result.drafts.size > flights_.size()) {
        return broken(step_, "more draft results than slots");
    }
    for (const DraftResult& d : result.drafts) {
        if (d.slot >= flights_.size() || d.count < 0 || d.count > plan::kMaxDrafts) {
            return broken(step_, format("draft result of slot {} with {} ids", d.slot, d.count));
        }
        drafts_.push_back(d);
    }
    return {};
}

Status EngineCore::check_failures(int64_t now_us) {
    if (!std::exchange(failed_now_, false) || failures_ < kFailureWindow) {
        return {};
    }
    const int64_t oldest = failures_us_[failures_ % kFailureWindow];
    if (now_us - oldest > kFailureSpanUs) {
        return {};
    }
    const bool storage = last_failure_ == EndCause::storage;
    return error(storage ? Code::io : Code::internal,
                 "{} replies ended with {} errors within 60 s; the {} cannot be relied on",
                 kFailureWindow, end_text(last_failure_).kind, storage ? "table storage" : "model");
}

/// Pieces get their staging here: the planner knows no addresses.
void EngineCore::push_spill() {
    const SpillPlan& plan = planner_.spill();
    for (SpillCommand command : planner_.spill_commands()) {
        if (command.bytes > 0) {
            const auto areas = static_cast<uint64_t>(staging_->areas());
            command.to = staging_->area(static_cast<int32_t>(command.job % areas))
                             .subspan(0, static_cast<uint64_t>(command.bytes));
            command.from = command.to;
        }
        // Only removals can be too many; such a file goes at the next start.
        [[maybe_unused]] const bool taken = spill_ == nullptr || spill_->push(command);
    }
    flushed_.store(planner_.flushed(), std::memory_order_release);
    metrics_.spill_hits->add(static_cast<double>(plan.hits() - spill_hits_));
    metrics_.spill_misses->add(static_cast<double>(plan.misses() - spill_misses_));
    spill_hits_ = plan.hits();
    spill_misses_ = plan.misses();
}

/// A replay has no files: the record keeps what they gave.
void EngineCore::record_imports(const StepPlan& plan) {
    for (const plan::SnapOp& op : plan.snap_in) {
        if (op.op == plan::SnapOpKind::import) {
            const auto areas = static_cast<uint64_t>(staging_->areas());
            const int64_t bytes =
                op.staged * info_.page_bytes + (op.snapshot != 0 ? staging_->snapshot_bytes() : 0);
            recorder_->on_import(op.job, staging_->area(static_cast<int32_t>(op.job % areas))
                                             .subspan(0, static_cast<uint64_t>(bytes)));
        }
    }
}

Status EngineCore::submit(const StepPlan& plan) {
    std::vector<uint64_t>& buffer = buffers_[plan.header.step % kBuffers];
    const Span<uint8_t> bytes(reinterpret_cast<uint8_t*>(buffer.data()),
                              buffer.size() * sizeof(uint64_t));
    uint64_t size = 0;
    TENON_TRY(plan::encode(plan, &plan_digest, bytes, &size));
    plans_.note(plan, size);
    if (recorder_ != nullptr) {
        record_imports(plan);
        recorder_->on_plan({bytes.data, size});
    }
    // The model always executes what a follower would decode, so the wire form cannot drift from
    // memory.
    TENON_TRY(decoder_.decode({bytes.data, size}, &plan_digest, &plan_));
    TENON_TRY(mirror_.apply(plan_));
    for (const plan::Window& w : plan_.windows) {
        Flight& flight = flights_[w.slot];
        flight.reply = &reply_of(*planner_.slot(static_cast<int32_t>(w.slot)).spec);
        flight.generation = w.generation;
        flight.rows = w.rows;
        flight.accept_max = w.accept_max;
        flight.drafted = (w.flags & plan::kDrafted) != 0 ? w.rows - 1 - w.forced : 0;
        const Planner::SlotInfo info = planner_.slot(static_cast<int32_t>(w.slot));
        flight.skip = static_cast<int32_t>(
            std::min<int64_t>(w.rows, std::max<int64_t>(info.known - 1 - info.length, 0)));
        flight.top = (w.flags & plan::kWantLogprobs) != 0 ? w.top : -1;
    }
    step_ = plan_.header.step;
    digest_ = plan_.header.digest;
    TENON_TRY_CTX(model_.submit(plan_), "step {}", step_);
    in_flight_ = true;
    ++totals_.steps_total;
    return {};
}

void EngineCore::fail(EndCause cause) {
    queue_.take([this](Request& request) { requests_.push_back(&request); });
    // Ending the last reply of a request takes it off the list, so the list shrinks to nothing.
    while (!requests_.empty()) {
        Request& request = *requests_.back();
        for (Reply& reply : request.replies()) {
            if (!reply.ended) {
                end_reply(reply, cause, ReplyEnd::eos);
            }
        }
    }
    drop_ended();
    delivery_.flush();
    publish();
}

void EngineCore::settle() noexcept {
    if (in_flight_) {
        StepResult result;
        [[maybe_unused]] const Status status = model_.collect(step_, Stage::done, &result);
        in_flight_ = false;
    }
}

void EngineCore::publish() {
    EngineStats s = totals_;
    s.last_step_age_us = host_.now_us();  // a time here; readers turn it into an age
    s.slot_count = config_.slots;
    for (int32_t i = 0; i < config_.slots; ++i) {
        const Planner::SlotInfo info = planner_.slot(i);
        SlotStats& slot = s.slots[i];
        slot.slot = static_cast<uint32_t>(i);
        if (info.state == SlotState::free || info.spec == nullptr) {
            continue;
        }
        slot.state = info.blocked ? kPausedState : static_cast<uint32_t>(info.state);
        slot.request = info.spec->request;
        slot.length = info.length;
        slot.prompt = static_cast<int64_t>(info.spec->prompt.size);
        slot.emitted = info.emitted;
        const Reply& reply = reply_of(*info.spec);
        slot.reply = reply.reply;
        slot.priority =
            static_cast<uint32_t>(reply.background ? Priority::background : Priority::foreground);
        slot.max_new = reply.max_new;
        slot.cached = reply.timings.cached_tokens;
        slot.rounds = reply.timings.rounds;
        slot.drafted = reply.timings.drafted;
        slot.accepted = reply.timings.accepted;
        const int64_t now = s.last_step_age_us;
        const int64_t first = reply.first_us > 0 ? reply.first_us : now;
        slot.age_us = now - reply.arrival_us;
        slot.queue_us = reply.admitted_us - reply.arrival_us;
        slot.prefill_us = first - reply.admitted_us;
        slot.decode_us = now - first;
        ++s.running;
        s.decoding += info.state == SlotState::decoding ? 1 : 0;
        s.prefilling += info.state == SlotState::prefilling ? 1 : 0;
    }
    s.waiting = planner_.waiting();
    s.pages_total = planner_.pages().total();
    s.pages_free = planner_.pages().free();
    metrics_.requests_running->set(static_cast<double>(s.running));
    metrics_.requests_waiting->set(static_cast<double>(s.waiting));
    metrics_.cache_usage->set(static_cast<double>(s.pages_total - s.pages_free) /
                              static_cast<double>(s.pages_total));
    stats_.write(s);
}

}  // namespace tenon::engine
