// SPDX-License-Identifier: MIT
// Threads, admission and life of the engine around EngineCore.
#include "host/engine/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include "host/engine/engine_core.h"
#include "host/engine/replay_memory.h"
#include "host/engine/request_check.h"
#include "host/engine/sha256.h"
#include "host/engine/spill_tier.h"

namespace tenon {

using engine::EndCause;

namespace {

constexpr int64_t kBeatUs = 250'000;         // stats stay fresh while idle
constexpr int64_t kShutdownUs = 10'000'000;  // for one step in flight and the events behind it
constexpr int64_t kGuessUs = 1'000'000;      // service time while none was measured
constexpr uint32_t kMemoryLast = 3;
constexpr int64_t kReplySlack =
    engine::kMaxReplies - 1;  // the request that fills the queue may have n replies

int exit_code_of(EndCause cause) {
    switch (cause) {
        case EndCause::device:
        case EndCause::storage:
            return 5;
        case EndCause::peer_lost:
            return 6;
        default:
            return 70;
    }
}

/// Entries from `first` on, for a log line.
std::string listed(Span<const int64_t> values, uint64_t first) {
    std::string text;
    for (uint64_t i = first; i < values.size; ++i) {
        text += (i > first ? " " : "") + std::to_string(values[i]);
    }
    return text;
}

engine::PlannerConfig planner_config(const EngineSettings& s, const ModelInfo& info) {
    engine::PlannerConfig c;
    c.info = info;
    c.slots = s.slots;
    c.context_tokens = s.context_tokens > 0 ? s.context_tokens : info.context_limit;
    ModelRequest request;
    request.slots = s.slots;
    request.context_tokens = c.context_tokens;
    c.pool_pages = s.pool_pages > 0 ? s.pool_pages : pool_pages(request, info);
    c.step_rows = std::min(s.step_rows, info.max_step_rows);
    c.window_rows = std::min(s.window_rows, info.max_window_rows);
    c.chunk_rows = std::min(s.chunk_rows, info.max_chunk_rows);
    c.draft_depth = info.draft_rows > 0 ? std::min(s.draft_depth, info.draft_max) : 0;
    c.copy_drafts = s.copy_drafts;
    c.snapshot_cells = s.snapshot_cells;
    c.prefix_strict = s.prefix_strict;
    c.bounded_replay = s.bounded_replay;
    c.image_states = s.image_states;
    c.join_wait_us = s.join_wait_us;
    c.prefetch = s.prefetch;
    c.max_waiting = s.max_queued + static_cast<int32_t>(kReplySlack);
    c.fairness_us = s.fairness_us;
    c.fairness_background_us = s.fairness_background_us;
    c.slow_client_limit_us = s.slow_client_limit_us;
    return c;
}

Status check_config(const engine::PlannerConfig& c, const EngineSettings& s) {
    const ModelInfo& info = c.info;
    if (s.slots < 1 || s.slots > engine::kMaxSlots || s.slots > c.step_rows) {
        return error(
            Code::invalid_argument,
            "slots: {} with step_rows {}; each slot needs a row, and at most {} slots exist",
            s.slots, c.step_rows, engine::kMaxSlots);
    }
    if (info.page_tokens < 1 || info.vocab < 1 || c.window_rows < 1 || c.chunk_rows < 1 ||
        info.prefill_stages < 1) {
        return error(
            Code::invalid_argument,
            "model info: page_tokens {}, vocab {}, window rows {}, chunk rows {}, stages {}; each "
            "must be at least 1",
            info.page_tokens, info.vocab, c.window_rows, c.chunk_rows, info.prefill_stages);
    }
    if (c.context_tokens < 2 || c.context_tokens > info.context_limit) {
        return error(Code::invalid_argument, "context_tokens: {}, the model's limit is {}",
                     c.context_tokens, info.context_limit);
    }
    // What the memory plan always gives; the oldest reply then ends without waiting for others
    // (engine.md 1.7, 3.3). The planner goes on with one context too, only slower.
    const int64_t least = c.pages_per_slot() + 2 * int64_t{c.slots};
    if (c.pool_pages < least) {
        return error(Code::invalid_argument,
                     "pool_pages: {} pages of {} tokens; one context of {} and two pages for each "
                     "of {} slots need {}",
                     c.pool_pages, info.page_tokens, c.context_tokens, c.slots, least);
    }
    if (s.max_queued < 1 || s.max_queued > 4096) {
        return error(Code::invalid_argument, "max_queued: {} is out of range 1 to 4096",
                     s.max_queued);
    }
    if (engine::longest_plan_bytes(c) > plan::kMaxPlanBytes) {
        return error(Code::invalid_argument,
                     "chunk_rows {} and slots {}: a plan could take {} bytes, limit {}",
                     c.chunk_rows, s.slots, engine::longest_plan_bytes(c), plan::kMaxPlanBytes);
    }
    return {};
}

}  // namespace

std::vector<MemoryEntry> engine_memory(const EngineSettings& settings, const ModelInfo& info) {
    const engine::PlannerConfig c = planner_config(settings, info);
    const int64_t sequences = settings.slots + settings.max_queued + kReplySlack;
    std::vector<MemoryEntry> entries(3);
    entries[0].tag = "plan";
    entries[0].place = PlanPlace::host;
    entries[0].count = 4;
    entries[0].bytes = 4 * static_cast<int64_t>(engine::longest_plan_bytes(c));
    entries[0].note = "encoded steps in rotation";
    entries[1].tag = "queues";
    entries[1].place = PlanPlace::host;
    entries[1].count = sequences;
    entries[1].bytes = sequences * engine::SinkRing::kBytes + (2 << 20);
    entries[1].note = "reply rings of running and waiting requests, delivery queue";
    entries[2].tag = "history";
    entries[2].place = PlanPlace::host;
    entries[2].count = settings.slots;
    entries[2].bytes = 3 * settings.slots * engine::TokenHistory::bytes(c.context_tokens);
    entries[2].note = "tokens of each slot and parked reply, with an index for copies";
    MemoryEntry& overflow = entries.emplace_back();
    overflow.tag = "queues";
    overflow.place = PlanPlace::host;
    overflow.count = settings.slots;
    overflow.bytes = settings.slots * engine::SinkRing::kOverflowBytes;
    overflow.note = "text of running replies that came in one piece, at most";
    if (settings.replay_bytes > 0) {
        MemoryEntry& replay = entries.emplace_back();
        replay.tag = "replay";
        replay.place = PlanPlace::host;
        replay.count = 1;
        replay.bytes = settings.replay_bytes;
        replay.note = "ids of earlier replies";
    }
    if (c.snapshot_cells > 0) {
        MemoryEntry& index = entries.emplace_back();
        index.tag = "prefix.index";
        index.place = PlanPlace::host;
        index.count = c.snapshot_cells;
        // Symbols of every page; pages of every cut, in the planner and again in the mirror.
        index.bytes = 4 * c.pool_pages * info.page_tokens +
                      2 * int64_t{c.snapshot_cells} *
                          (4 * c.pages_per_slot() + static_cast<int64_t>(sizeof(engine::Cut)));
        index.note = "tokens and pages of kept cuts";
    }
    if (!settings.spill_dir.empty() && c.snapshot_cells > 1) {
        MemoryEntry& index = entries.emplace_back();
        index.tag = "spill.index";
        index.place = PlanPlace::host;
        index.count = c.spill.capacity;
        index.bytes = engine::SpillCatalogue::memory(c.spill.capacity) + 2 * 4 * c.context_tokens;
        index.note = "files of kept cuts on disk, tokens of two that are moved";
        MemoryEntry& files = entries.emplace_back();
        files.tag = "spill.files";
        files.place = PlanPlace::disk;
        files.bytes = settings.spill_budget;
        files.note = "at most, in kv_spill.dir";
    }
    return entries;
}

namespace {

/// The folder of the spill tier, and what the planner has to know of it.
Result<std::unique_ptr<engine::SpillTier>> open_spill(Model& model, const EngineSettings& s,
                                                      Host& host, engine::PlannerConfig* c) {
    if (s.spill_dir.empty()) {
        return std::unique_ptr<engine::SpillTier>();
    }
    if (c->snapshot_cells < 2) {
        return error(Code::invalid_argument,
                     "kv_spill.dir: nothing is kept, so nothing can go to disk; set "
                     "prefix.snapshot_budget");
    }
    auto* staging = facet_of<ModelStaging>(&model);
    if (staging == nullptr) {
        return error(Code::unavailable, "kv_spill.dir: the model {} has no facet {}",
                     StrView(c->info.family), ModelStaging::kFacet);
    }
    engine::Sha256 sha;
    for (const StrView text : {StrView(s.spill_identity), staging->state_format()}) {
        const uint64_t bytes = text.size;
        sha.add({reinterpret_cast<const uint8_t*>(&bytes), sizeof bytes});
        sha.add({reinterpret_cast<const uint8_t*>(text.data), text.size});
    }
    c->spill.key = sha.finish();
    c->spill.areas = staging->areas();
    c->spill.area_bytes = static_cast<int64_t>(staging->area(0).size);
    c->spill.snapshot_bytes = staging->snapshot_bytes();
    c->spill.budget = s.spill_budget;
    engine::SpillStoreConfig store;
    store.dir = s.spill_dir;
    store.key = c->spill.key;
    store.page_bytes = c->info.page_bytes;
    store.snapshot_bytes = c->spill.snapshot_bytes;
    store.world = s.world;
    TENON_ASSIGN(auto opened, engine::SpillStore::open(std::move(store), host));
    auto tier = std::make_unique<engine::SpillTier>(std::move(opened));
    c->spill.found = tier->found();
    return tier;
}

}  // namespace

struct EngineLoop::Impl {
    Impl(Model& m, EngineSettings s, Host& h, const engine::PlannerConfig& c,
         Span<ScheduleOverlay* const> overlays, std::unique_ptr<engine::SpillTier> spill)
        : model(m),
          host(h),
          settings(std::move(s)),
          config(c),
          metrics(h),
          wake(std::make_shared<engine::WakeEvent>()),
          queue(static_cast<size_t>(c.slots + c.max_waiting)),
          replay(settings.replay_bytes, m.text().info().think_close),
          delivery(h, metrics, c.slots + c.max_waiting, m.text().info().eos, wake),
          tier(std::move(spill)),
          core({m, h, delivery, metrics, queue, settings.recorder, tier.get()}, c, overlays) {
        const TextInfo text = m.text().info();
        limits.context_tokens = c.context_tokens;
        limits.vocab = c.info.vocab;
        limits.text_vocab = text.vocab;
        limits.eos = text.eos;
        limits.pairs = engine::builder_limits(c).pairs;
        limits.default_max_tokens = settings.sampling.max_tokens;
        limits.clamp_max_tokens = settings.clamp_max_tokens;
        limits.seed_salt = settings.sampling.seed_salt;
        limits.records_turns = replay.enabled();
        delivery.set_replay(&replay);
        for (const std::string& alias : settings.aliases) {
            aliases.emplace_back(alias);
        }
    }

    void run();
    void serve();
    Status warm_up();
    void fail(const Status& status);
    Status refusal() const;
    void set_state(EngineState next);

    Model& model;
    Host& host;
    const EngineSettings settings;
    const engine::PlannerConfig config;
    engine::RequestLimits limits;
    std::vector<StrView> aliases;
    engine::EngineMetrics metrics;
    std::shared_ptr<engine::WakeEvent> wake;
    engine::SubmitQueue queue;
    engine::ReplayMemory replay;
    engine::Delivery delivery;
    std::unique_ptr<engine::SpillTier> tier;  // null: no disk tier
    engine::EngineCore core;
    std::atomic<uint64_t> next_id{1};
    std::atomic<EngineState> state{EngineState::loading};
    std::atomic<bool> stopping{false}, left_behind{false};
    std::thread thread;

    std::mutex mutex;  // guards warm, warm_status, ended
    std::condition_variable warmed, left;
    bool warm = false;
    bool ended = false;  // the engine's thread is about to
    Status warm_status;
};

void EngineLoop::Impl::set_state(EngineState next) {
    // failed is final, and draining never turns back into ready.
    EngineState now = state.load(std::memory_order_acquire);
    while (now != EngineState::failed && now < next &&
           !state.compare_exchange_weak(now, next, std::memory_order_acq_rel)) {
    }
}

Status EngineLoop::Impl::warm_up() {
    CostTable costs;
    TENON_TRY_CTX(model.warm_up(WarmUp{}, &costs), "warm-up");
    core.set_costs(costs);
    host.log(LogLevel::info, "engine",
             format("costs window_us=[{}] draft_us=[{}] stage_us=[{}]", listed(costs.window_us, 1),
                    listed(costs.draft_us, 1), listed(costs.stage_us, 0)));
    return {};
}

void EngineLoop::Impl::run() {
    host.register_thread("engine");
    Status status = guard([this] { return warm_up(); });
    const bool ok = status.ok();
    if (ok) {
        set_state(EngineState::ready);
    } else {
        set_state(EngineState::failed);
        queue.close();
    }
    {
        const std::lock_guard<std::mutex> lock(mutex);
        warm_status = std::move(status);
        warm = true;
    }
    warmed.notify_all();
    if (ok) {
        serve();
    }
    const std::lock_guard<std::mutex> lock(mutex);
    ended = true;
    left.notify_all();
}

void EngineLoop::Impl::serve() {
    bool announced = false;
    for (;;) {
        const bool stop = stopping.load(std::memory_order_acquire);
        engine::Round round = engine::Round::idle;
        const Status status = guard([&] { return core.round(&round); });
        if (!status.ok()) {
            fail(status);
            return;
        }
        if (round == engine::Round::worked) {
            if (std::exchange(announced, false)) {
                wake->dismiss();
            }
            continue;
        }
        if (stop && core.idle()) {
            return;
        }
        // One more round after the announcement: whatever came before it was seen by that round.
        if (!std::exchange(announced, true)) {
            wake->announce();
            continue;
        }
        announced = false;
        const int64_t due = core.next_due_us();
        const int64_t until_due =
            due == std::numeric_limits<int64_t>::max() ? kBeatUs : due - host.now_us();
        wake->wait(std::clamp<int64_t>(until_due, 0, kBeatUs));
    }
}

void EngineLoop::Impl::fail(const Status& status) {
    EngineFailure failure;
    const EndCause cause = engine::EngineCore::cause_of(status, settings.world);
    failure.code = status.code();
    failure.exit_code = exit_code_of(cause);
    failure.event = engine::end_text(cause).kind;
    failure.message = status.message().str();
    set_state(EngineState::failed);
    queue.close();
    host.log(LogLevel::error, "engine",
             format("failed event={} exit={} step={} cause: {}", failure.event, failure.exit_code,
                    core.steps(), failure.message));
    if (cause == EndCause::internal) {
        core.plans().each_line([&](const std::string& line) {
            host.log(LogLevel::error, "engine", format("plan {}", line));
        });
    }
    core.fail(cause);
    if (settings.on_failure) {
        settings.on_failure(failure);
    }
}

Status EngineLoop::Impl::refusal() const {
    switch (state.load(std::memory_order_acquire)) {
        case EngineState::loading:
            return Status(Code::unavailable, "loading: the model is not ready yet");
        case EngineState::draining:
            return Status(Code::unavailable, "draining: the server is shutting down");
        case EngineState::failed:
            return Status(Code::unavailable, "the engine has failed and the server is ending");
        case EngineState::ready:
            break;
    }
    if (core.memory_level() > 0) {
        return Status(Code::unavailable,
                      "memory: the server is short of memory and admits nothing for now");
    }
    return {};
}

Status EngineLoop::check(const ModelInfo& info, const EngineSettings& settings) {
    return check_config(planner_config(settings, info), settings);
}

Result<Ref<EngineLoop>> EngineLoop::create(Model& model, EngineSettings settings, Host& host,
                                           Span<ScheduleOverlay* const> overlays) {
    engine::PlannerConfig config = planner_config(settings, model.info());
    TENON_TRY(check_config(config, settings));
    TENON_ASSIGN(auto tier, open_spill(model, settings, host, &config));
    return Ref<EngineLoop>(new EngineLoop(std::make_unique<Impl>(
        model, std::move(settings), host, config, overlays, std::move(tier))));
}

EngineLoop::EngineLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

EngineLoop::~EngineLoop() {
    stop();
}

Status EngineLoop::start() {
    Impl& i = *impl_;
    if (i.thread.joinable() || i.stopping.load(std::memory_order_acquire)) {
        return Status(Code::internal, "engine: started twice, or after stop");
    }
    i.delivery.start();
    if (i.tier) {
        i.tier->start(i.host, i.wake);
    }
    i.thread = std::thread([&i] { i.run(); });
    std::unique_lock<std::mutex> lock(i.mutex);
    if (!i.warmed.wait_for(lock, std::chrono::microseconds(i.settings.warm_up_us),
                           [&i] { return i.warm; })) {
        i.set_state(EngineState::failed);
        return error(Code::deadline,
                     "the model's first passes did not end within {} s (engine.warm_up); does the "
                     "device answer, or is it that slow?",
                     i.settings.warm_up_us / 1'000'000);
    }
    return i.warm_status.copy();
}

void EngineLoop::begin_drain() noexcept {
    impl_->set_state(EngineState::draining);
}

Status EngineLoop::drain(int64_t deadline_us) {
    Impl& i = *impl_;
    begin_drain();
    if (i.delivery.wait_delivered(deadline_us - i.host.now_us())) {
        return {};
    }
    const int64_t left = i.delivery.undelivered().load(std::memory_order_acquire);
    i.core.cancel_all(CancelReason::shutdown);
    i.wake->signal();
    i.delivery.wait_delivered(kShutdownUs);
    return error(Code::deadline, "drain: {} replies had not ended at the deadline and were ended",
                 left);
}

bool EngineLoop::flush_spill() noexcept {
    Impl& i = *impl_;
    if (!i.tier || !i.settings.spill_on_exit ||
        i.state.load(std::memory_order_acquire) == EngineState::failed) {
        return true;
    }
    i.core.flush();
    i.wake->signal();
    return i.core.flushed();
}

void EngineLoop::stop() noexcept {
    Impl& i = *impl_;
    if (i.stopping.exchange(true, std::memory_order_acq_rel)) {
        return;
    }
    begin_drain();
    i.queue.close();
    i.core.cancel_all(CancelReason::shutdown);
    i.wake->signal();
    if (i.thread.joinable()) {
        std::unique_lock<std::mutex> lock(i.mutex);
        const std::chrono::microseconds limit(kShutdownUs);
        if (!i.left.wait_for(lock, limit, [&i] { return i.ended; })) {
            i.model.abort();  // a device that does not end its step
        }
        lock.unlock();
        i.thread.join();
        i.core.settle();
    }
    if (i.tier && !i.tier->stop()) {
        i.left_behind.store(true, std::memory_order_release);
        i.host.log(
            LogLevel::error, "engine",
            format("kv_spill.dir={}: its disk ended nothing for {} s; a thread is left behind",
                   i.settings.spill_dir, engine::SpillTier::kStopUs / 1'000'000));
    }
    i.delivery.stop();
}

bool EngineLoop::left_behind() const noexcept {
    return impl_->left_behind.load(std::memory_order_acquire);
}

EngineState EngineLoop::state() const noexcept {
    return impl_->state.load(std::memory_order_acquire);
}

void EngineLoop::set_memory_level(uint32_t level) noexcept {
    if (level >= kMemoryLast) {
        begin_drain();
        impl_->core.cancel_all(CancelReason::memory);
    }
    impl_->core.set_memory_level(level);
    impl_->wake->signal();
}

EngineInfo EngineLoop::info() noexcept {
    const Impl& i = *impl_;
    const EngineSettings& s = i.settings;
    EngineInfo info;
    info.slots = s.slots;
    info.context_tokens = i.config.context_tokens;
    info.served_name = s.served_name;
    info.aliases = i.aliases;
    info.profile_name = s.profile_name;
    info.profile_digest = s.profile_digest;
    info.version = s.version;
    info.created_unix = s.created_unix;
    info.temperature = s.sampling.temperature;
    info.top_p = s.sampling.top_p;
    info.min_p = s.sampling.min_p;
    info.top_k = s.sampling.top_k;
    info.max_tokens = s.sampling.max_tokens;
    info.vocab = i.config.info.vocab;
    info.max_queued = s.max_queued;
    return info;
}

TextCodec& EngineLoop::text() noexcept {
    return impl_->model.text();
}

Status EngineLoop::submit(const RequestDesc& desc, ReplySink** out) noexcept {
    Impl& i = *impl_;
    return guard([&]() -> Status {
        TENON_TRY(i.refusal());
        TENON_TRY(engine::check_request(desc, i.limits));
        const int64_t replies = desc.replies;
        const int64_t limit = i.settings.slots + i.settings.max_queued;
        const int64_t before = i.core.active().fetch_add(replies, std::memory_order_acq_rel);
        if (before >= limit) {
            i.core.active().fetch_sub(replies, std::memory_order_acq_rel);
            return error(Code::unavailable, "queue full: {} replies run or wait, limit {}", before,
                         limit);
        }
        const uint64_t id = i.next_id.fetch_add(1, std::memory_order_relaxed);
        Result<engine::Request*> made =
            engine::make_request(desc, i.limits, i.model.text(), id, i.host.now_us(), i.wake);
        if (!made.ok()) {
            i.core.active().fetch_sub(replies, std::memory_order_acq_rel);
            return made.take_status();
        }
        engine::Request* request = *made;
        i.delivery.undelivered().fetch_add(replies, std::memory_order_acq_rel);
        if (!i.queue.push(request)) {
            i.delivery.undelivered().fetch_sub(replies, std::memory_order_acq_rel);
            i.core.active().fetch_sub(replies, std::memory_order_acq_rel);
            for (int64_t r = 0; r <= replies; ++r) {
                request->unref();
            }
            const Status why = i.refusal();
            return why.ok() ? error(Code::unavailable,
                                    "queue full: {} replies run or wait, limit {}; the "
                                    "engine has not taken the newest yet",
                                    before, limit)
                            : why.copy();
        }
        i.wake->signal();
        *out = request;
        return {};
    });
}

void EngineLoop::stats(EngineStats* out) noexcept {
    EngineStats s = impl_->core.stats();
    s.state = state();
    s.last_step_age_us = std::max<int64_t>(impl_->host.now_us() - s.last_step_age_us, 0);
    const uint32_t bytes = std::min<uint32_t>(out->struct_size, sizeof s);
    s.struct_size = out->struct_size;
    std::memcpy(static_cast<void*>(out), &s, bytes);
}

uint64_t EngineLoop::cache_salt(StrView key, StrView wish) noexcept {
    return engine::caller_salt(impl_->settings.salt_by_key ? key.view() : std::string_view(), wish);
}

Status EngineLoop::render(StrView request_json, uint64_t cache_salt, Prompt** out) noexcept {
    return guard([&]() -> Status {
        TextCodec& codec = impl_->model.text();
        if (!impl_->replay.enabled()) {
            return codec.render(request_json, out);
        }
        engine::ReplayLookup lookup(impl_->replay, cache_salt);
        TENON_TRY(codec.render_with(request_json, lookup, out));
        impl_->metrics.replayed_turns->add(static_cast<double>(lookup.hits()));
        return {};
    });
}

int32_t EngineLoop::retry_after_s() noexcept {
    const Impl& i = *impl_;
    const int64_t mean = i.core.mean_service_us() > 0 ? i.core.mean_service_us() : kGuessUs;
    const int64_t active = impl_->core.active().load(std::memory_order_acquire);
    const int64_t ahead = std::max<int64_t>(active - i.settings.slots, 0) + 1;
    const int64_t seconds = (ahead * mean / i.settings.slots + 999'999) / 1'000'000;
    return static_cast<int32_t>(std::clamp<int64_t>(seconds, 1, 60));
}

void* EngineLoop::query(StrView facet) noexcept {
    return facet == StrView(Engine::kFacet) ? static_cast<Engine*>(this) : nullptr;
}

void EngineLoop::release() noexcept {
    delete this;
}

}  // namespace tenon
