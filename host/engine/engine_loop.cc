// SPDX-License-Identifier: MIT
// The engine thread: admission, outline, plan, submit, collect, delivery; and what front ends may
// call.
#include "host/engine/engine_loop.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "host/engine/delivery.h"
#include "host/engine/page_pool.h"
#include "host/engine/plan_codec.h"
#include "host/engine/planner.h"
#include "host/engine/submission.h"

namespace tenon {
namespace {

constexpr int64_t kIdle_us = 250'000;

/// Series of serving.md 7.5 that the engine itself feeds.
struct EngineMetrics {
    Metric *running, *waiting, *prompt_tokens, *completion_tokens, *steps, *pages_ratio,
        *disconnects;
    Metric *latency, *first_token, *prefill_seconds, *decode_seconds;
    Metric* done_stop;
    Metric* done_length;
    Metric* done_error;
    Metric* done_cancelled;

    explicit EngineMetrics(Host& host) {
        static constexpr double kSeconds[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                              2.5,  5,     10,   30,  60,   120, 300};
        const auto make = [&](MetricKind kind, const char* name, const char* help,
                              const char* labels = "") {
            MetricDesc d;
            d.kind = kind;
            d.name = name;
            d.help = help;
            d.labels = labels;
            if (kind == MetricKind::histogram) {
                d.buckets = kSeconds;
            }
            return host.metric(d);
        };
        running = make(MetricKind::gauge, "requests_running", "replies in a slot");
        waiting = make(MetricKind::gauge, "requests_waiting", "replies waiting for a slot");
        pages_ratio =
            make(MetricKind::gauge, "kv_cache_usage_ratio", "pages in use, share of the pool");
        prompt_tokens = make(MetricKind::counter, "prompt_tokens_total", "prompt tokens computed");
        completion_tokens = make(MetricKind::counter, "generation_tokens_total", "tokens emitted");
        steps = make(MetricKind::counter, "steps_total", "steps executed");
        disconnects = make(MetricKind::counter, "client_disconnections_total",
                           "clients gone before their reply ended");
        latency = make(MetricKind::histogram, "request_latency_seconds", "submit to last token");
        first_token =
            make(MetricKind::histogram, "time_to_first_token_seconds", "submit to first token");
        prefill_seconds =
            make(MetricKind::histogram, "request_prefill_seconds", "admission to first token");
        decode_seconds =
            make(MetricKind::histogram, "request_decode_seconds", "first to last token");
        const char* name = "requests_total";
        const char* help = "ended replies by outcome";
        done_stop = make(MetricKind::counter, name, help, "outcome=stop");
        done_length = make(MetricKind::counter, name, help, "outcome=length");
        done_error = make(MetricKind::counter, name, help, "outcome=error");
        done_cancelled = make(MetricKind::counter, name, help, "outcome=cancelled");
    }
};

double seconds(int64_t us) {
    return static_cast<double>(us) * 1e-6;
}

const char* cancel_text(CancelReason reason) {
    switch (reason) {
        case CancelReason::client_gone:
            return "client_gone";
        case CancelReason::slow_client:
            return "slow_client: the reply was not read in time";
        case CancelReason::deadline:
            return "timeout: the request's deadline passed";
        case CancelReason::shutdown:
            return "shutdown: the server is ending";
        case CancelReason::memory:
            return "memory: the machine is short of memory";
        case CancelReason::none:
            break;
    }
    return "cancelled";
}

int exit_code_of(Code code) {
    return code == Code::peer ? 6 : code == Code::io || code == Code::device ? 5 : 70;
}

}  // namespace

struct EngineLoop::Impl {
    Impl(Model& m, EngineSettings s, Host& h, Span<ScheduleOverlay* const> chain)
        : model(m),
          info(m.info()),
          settings(std::move(s)),
          host(h),
          overlays(chain.begin(), chain.end()),
          pages(settings.pool_pages),
          limits{settings.slots,      settings.step_rows,      settings.chunk_rows,
                 info.prefill_stages, settings.context_tokens, info.page_tokens},
          builder(limits),
          delivery(h),
          metrics(h) {
        slots.resize(static_cast<size_t>(settings.slots));
        generations.resize(static_cast<size_t>(settings.slots), 0);
        slot_views.reserve(static_cast<size_t>(settings.slots));
        waiting_views.reserve(64);
        closing.reserve(static_cast<size_t>(settings.slots));
        waiting.reserve(static_cast<size_t>(settings.max_queued) + 8);
        incoming.reserve(static_cast<size_t>(settings.max_queued) + 8);
        for (const std::string& a : settings.aliases) {
            alias_views.emplace_back(a);
        }
    }

    // Shared with other threads.
    Model& model;
    const ModelInfo info;
    EngineSettings settings;
    Host& host;
    std::vector<ScheduleOverlay*> overlays;
    std::vector<StrView> alias_views;
    std::atomic<EngineState> state{EngineState::loading};
    std::atomic<bool> draining{false}, stopping{false};
    std::atomic<uint32_t> memory_level{0};
    std::atomic<int64_t> queued{0};
    std::atomic<int64_t> live{0};  ///< streams without a terminal event
    std::atomic<int64_t> shutdown_at{0};
    std::atomic<uint64_t> next_id{1};
    std::mutex mutex;  // guards incoming, woken, start_status, started
    std::condition_variable wake_up;
    std::vector<StreamPtr> incoming;
    bool woken = false, started = false;
    Status start_status;
    std::mutex stats_mutex;  // guards published
    EngineStats published;
    int64_t last_step_us = 0;

    // Engine thread only.
    PagePool pages;
    PlanLimits limits;
    PlanBuilder builder;
    Delivery delivery;
    EngineMetrics metrics;
    std::vector<StreamPtr> slots;
    std::vector<uint32_t> generations;
    struct Closing {
        uint32_t slot, generation;
    };
    std::vector<Closing> closing;    ///< open in the model, to be closed by the next plan
    std::vector<StreamPtr> waiting;  ///< arrival order
    std::vector<SlotView> slot_views;
    std::vector<WaitingView> waiting_views;
    std::vector<uint8_t> plan_bytes[4];
    PlanDecoder decoder;
    uint64_t step = 0;
    EngineStats counters;
    bool overlay_warned = false;
    std::thread thread;

    void wake() noexcept {
        {
            const std::lock_guard lock(mutex);
            woken = true;
        }
        wake_up.notify_one();
    }
    static void wake_from_sink(void* self) { static_cast<Impl*>(self)->wake(); }

    int64_t now() const { return host.now_us(); }

    // ---- ends
    // -------------------------------------------------------------------------------------

    void end_stream(const StreamPtr& s, DeliveryItem item) {
        if (s->state == StreamState::done) {
            return;
        }
        const int64_t t = now();
        ReplyTimings& r = s->timings;
        r.completion_tokens = s->emitted;
        if (s->admitted_us != 0) {
            r.queue = s->admitted_us - s->request->arrival_us;
            r.prefill = (s->prefilled_us != 0 ? s->prefilled_us : t) - s->admitted_us;
            r.decode = s->prefilled_us != 0 ? t - s->prefilled_us : 0;
        } else {
            r.queue = t - s->request->arrival_us;
        }
        item.stream = s;
        item.timings = r;
        if (s->slot >= 0) {
            if (s->opened) {
                closing.push_back({static_cast<uint32_t>(s->slot), s->generation});
            }
            pages.give_back(&s->pages);
            slots[static_cast<size_t>(s->slot)].reset();
        } else {
            queued.fetch_sub(1);
        }
        s->state = StreamState::done;
        s->slot = -1;
        counters.requests_total += 1;
        counters.prefill_us_total += r.prefill;
        counters.decode_us_total += r.decode;
        metrics.latency->observe(seconds(t - s->request->arrival_us));
        if (s->prefilled_us != 0) {
            metrics.prefill_seconds->observe(seconds(r.prefill));
            metrics.decode_seconds->observe(seconds(r.decode));
        }
        delivery.push(std::move(item));
        live.fetch_sub(1);
    }

    void finish_stream(const StreamPtr& s, ReplyEnd end) {
        DeliveryItem item;
        item.kind = DeliveryItem::Kind::finish;
        item.end = end;
        (end == ReplyEnd::length ? metrics.done_length : metrics.done_stop)->add(1);
        end_stream(s, std::move(item));
    }

    void fail_stream(const StreamPtr& s, Code code, const char* message) {
        DeliveryItem item;
        item.kind = DeliveryItem::Kind::error;
        item.code = code;
        item.message = message;
        (code == Code::cancelled ? metrics.done_cancelled : metrics.done_error)->add(1);
        end_stream(s, std::move(item));
    }

    // The reason why a stream must end now, or none.
    CancelReason verdict(ReplyStream& s, int64_t t) {
        const CancelReason asked = s.request->sink->cancelled();
        if (asked != CancelReason::none) {
            return asked;
        }
        if (s.request->deadline_us != 0 && t > s.request->deadline_us) {
            return CancelReason::deadline;
        }
        const int64_t end = shutdown_at.load(std::memory_order_acquire);
        if (end != 0 && t >= end) {
            return CancelReason::shutdown;
        }
        if (s.slot >= 0 && s.request->sink->blocked()) {
            s.blocked_since = s.blocked_since == 0 ? t : s.blocked_since;
            if (t - s.blocked_since > settings.slow_client_limit_us) {
                return CancelReason::slow_client;
            }
        } else {
            s.blocked_since = 0;
        }
        return CancelReason::none;
    }

    void end_cancelled(int64_t t) {
        const auto end = [&](const StreamPtr& s, CancelReason reason) {
            if (reason == CancelReason::client_gone) {
                metrics.disconnects->add(1);
            }
            fail_stream(s, reason == CancelReason::deadline ? Code::deadline : Code::cancelled,
                        cancel_text(reason));
        };
        for (size_t i = 0; i < slots.size(); ++i) {
            const StreamPtr s = slots[i];
            if (s) {
                const CancelReason reason = verdict(*s, t);
                if (reason != CancelReason::none) {
                    end(s, reason);
                }
            }
        }
        for (size_t i = 0; i < waiting.size();) {
            const StreamPtr s = waiting[i];
            const CancelReason reason = verdict(*s, t);
            if (reason != CancelReason::none) {
                end(s, reason);
                waiting.erase(waiting.begin() + static_cast<int64_t>(i));
            } else {
                ++i;
            }
        }
        if (memory_level.load(std::memory_order_acquire) >= 2) {
            StreamPtr newest;
            for (const StreamPtr& s : slots) {
                if (s && (!newest || s->request->arrival_seq > newest->request->arrival_seq)) {
                    newest = s;
                }
            }
            if (newest) {
                end(newest, CancelReason::memory);
            }
            memory_level.store(1, std::memory_order_release);  // one stream a reading
        }
    }

    // ---- admission
    // --------------------------------------------------------------------------------

    int64_t pages_for(const ReplyStream& s) const {
        const auto n = static_cast<int64_t>(s.request->tokens.size());
        // Window rows beyond the reply's end are never accepted, but a window's pages must exist.
        const int64_t last =
            std::min(n + s.request->max_new + plan::kMaxWindowRows, settings.context_tokens);
        return (last + info.page_tokens - 1) / info.page_tokens;
    }

    void admit(int64_t t) {
        if (memory_level.load(std::memory_order_acquire) >= 1) {
            return;
        }
        for (size_t i = 0; i < slots.size() && !waiting.empty(); ++i) {
            if (slots[i]) {
                continue;
            }
            // Foreground before background, then by arrival.
            auto best = waiting.begin();
            for (auto it = waiting.begin(); it != waiting.end(); ++it) {
                if ((*it)->request->background < (*best)->request->background) {
                    best = it;
                }
            }
            const StreamPtr s = *best;
            s->pages.reserve(static_cast<size_t>(pages_for(*s)));
            if (!pages.take(pages_for(*s), &s->pages)) {
                return;  // the oldest waits for pages; nobody overtakes it
            }
            waiting.erase(best);
            queued.fetch_sub(1);
            slots[i] = s;
            s->slot = static_cast<int32_t>(i);
            s->generation = ++generations[i];
            s->admitted_us = t;
            const auto n = static_cast<int64_t>(s->request->tokens.size());
            s->state = n > 1 ? StreamState::prefilling : StreamState::decoding;
            s->pending = s->request->tokens[static_cast<size_t>(n - 1)];
            DeliveryItem item;
            item.kind = DeliveryItem::Kind::started;
            item.stream = s;
            delivery.push(std::move(item));
        }
    }

    // ---- one step
    // ---------------------------------------------------------------------------------

    void fill_view(SchedulerView* view, int64_t t) {
        slot_views.clear();
        for (size_t i = 0; i < slots.size(); ++i) {
            const StreamPtr& s = slots[i];
            if (!s) {
                continue;
            }
            SlotView v;
            v.slot = static_cast<uint32_t>(i);
            v.state = s->state == StreamState::prefilling ? 1 : 2;
            v.arrival_seq = s->request->arrival_seq;
            v.length = s->length;
            v.prompt = static_cast<int64_t>(s->request->tokens.size());
            v.age_us = t - s->request->arrival_us;
            v.background = s->request->background ? 1 : 0;
            v.sink_blocked = s->request->sink->blocked() ? 1 : 0;
            slot_views.push_back(v);
        }
        waiting_views.clear();
        for (const StreamPtr& s : waiting) {
            if (waiting_views.size() == waiting_views.capacity()) {
                break;
            }
            WaitingView v;
            v.request = s->request->id;
            v.arrival_seq = s->request->arrival_seq;
            v.remaining = static_cast<int64_t>(s->request->tokens.size());
            v.age_us = t - s->request->arrival_us;
            waiting_views.push_back(v);
        }
        view->now_us = t;
        view->memory_level = memory_level.load();
        view->slots = slot_views;
        view->waiting = waiting_views;
        view->pages_free = pages.free();
        view->row_cap = settings.step_rows;
        view->chunk_rows = settings.chunk_rows;
        view->stages = info.prefill_stages;
    }

    /// Runs the overlay chain; the last in profile order is asked first.
    class Chain final : public Outliner {
      public:
        Chain(const std::vector<ScheduleOverlay*>& overlays, size_t count, BaseOutliner& base)
            : overlays_(overlays), count_(count), base_(base) {}
        Status outline(const SchedulerView& view, StepOutline* out) noexcept override {
            if (count_ == 0) {
                return base_.outline(view, out);
            }
            Chain inner(overlays_, count_ - 1, base_);
            return overlays_[count_ - 1]->outline(view, inner, out);
        }

      private:
        const std::vector<ScheduleOverlay*>& overlays_;
        size_t count_;
        BaseOutliner& base_;
    };

    StepOutline outline(int64_t t) {
        SchedulerView view;
        fill_view(&view, t);
        BaseOutliner base;
        StepOutline out;
        const Status status = Chain(overlays, overlays.size(), base).outline(view, &out);
        if (!status.ok() || !outline_valid(view, out)) {
            if (!overlay_warned) {
                overlay_warned = true;
                host.log(LogLevel::warn, "engine",
                         "a schedule overlay gave an invalid outline; the base planner is used");
            }
            static_cast<void>(base.outline(view, &out).ok());
        }
        return out;
    }

    void build(const StepOutline& o) {
        builder.clear();
        for (const Closing& c : closing) {
            builder.close(c.slot, c.generation);
        }
        closing.clear();
        const auto open_once = [&](ReplyStream& s) {
            if (!s.opened) {
                builder.open(s);
                s.opened = true;
            }
        };
        for (int32_t i = 0; i < o.decode_count; ++i) {
            ReplyStream& s = *slots[o.decode[i]];
            open_once(s);
            builder.window(s, s.request->max_new - s.emitted);
        }
        if (o.slice_slot >= 0) {
            ReplyStream& s = *slots[static_cast<size_t>(o.slice_slot)];
            open_once(s);
            const auto last = static_cast<int64_t>(s.request->tokens.size()) - 1;
            builder.chunk(s, std::min(s.length + o.slice_rows, last));
        }
    }

    Status execute(StepResult* result) {
        std::vector<uint8_t>& bytes = plan_bytes[step % 4];
        encode_plan(builder.plan(++step), &bytes);
        StepPlan decoded;
        TENON_TRY_CTX(decoder.decode(bytes, &decoded), "own plan");
        TENON_TRY(model.submit(decoded));
        TENON_TRY(model.collect(step, Stage::tokens, result));
        TENON_TRY(model.collect(step, Stage::drafts, result));
        return model.collect(step, Stage::done, result);
    }

    StreamPtr owner(uint32_t slot, uint32_t generation) const {
        if (slot >= slots.size() || !slots[slot] || slots[slot]->generation != generation) {
            return nullptr;
        }
        return slots[slot];
    }

    void take_window(const WindowResult& w, const StepResult& r) {
        const StreamPtr s = owner(w.slot, w.generation);
        if (!s) {
            return;
        }
        if (w.status != RowStatus::ok) {
            fail_stream(s, w.status == RowStatus::io ? Code::io : Code::internal,
                        w.status == RowStatus::io ? "storage: Engram rows could not be read"
                                                  : "numeric: the logits are not finite");
            return;
        }
        const int64_t t = now();
        if (s->prefilled_us == 0) {
            s->prefilled_us = t;
            s->timings.first_token = t - s->request->arrival_us;
            metrics.first_token->observe(seconds(s->timings.first_token));
        }
        ++s->timings.rounds;
        DeliveryItem item;
        item.stream = s;
        bool stopped_by_text = false;
        bool stopped_by_id = false;
        int32_t count = 0;
        for (int32_t i = 0; i < w.emitted && !stopped_by_text && !stopped_by_id; ++i) {
            const int32_t token = r.tokens[w.tokens_off + static_cast<uint32_t>(i)];
            ++s->emitted;
            ++s->length;
            s->pending = token;
            const auto& stops = s->request->stop_ids;
            stopped_by_id = std::find(stops.begin(), stops.end(), token) != stops.end();
            if (stopped_by_id) {
                break;  // an end token is counted, never shown
            }
            item.ids[count++] = token;
            stopped_by_text = s->stop && s->stop->feed(token);
        }
        counters.completion_tokens_total += w.emitted;
        metrics.completion_tokens->add(w.emitted);
        if (count > 0) {
            item.count = count;
            if (s->request->sampling.logprobs >= 0 && count == 1) {
                item.top = w.top;
                item.logprob_count = std::min(1 + w.top, DeliveryItem::kMaxLogprobs);
                for (int32_t k = 0; k < item.logprob_count; ++k) {
                    const TokenLogprob& lp = r.logprobs[w.logprobs_off + static_cast<uint32_t>(k)];
                    item.logprobs[k] = {lp.token, lp.logprob};
                }
            }
            delivery.push(std::move(item));
        }
        if (stopped_by_text) {
            finish_stream(s, ReplyEnd::stop_string);
        } else if (stopped_by_id) {
            finish_stream(s, ReplyEnd::eos);
        } else if (s->emitted >= s->request->max_new) {
            finish_stream(s, ReplyEnd::length);
        }
    }

    void take_chunk(const ChunkResult& c, int64_t end) {
        const StreamPtr s = owner(c.slot, c.generation);
        if (!s) {
            return;
        }
        if (c.status != RowStatus::ok) {
            fail_stream(s, Code::io, "storage: Engram rows could not be read");
            return;
        }
        counters.prompt_tokens_total += end - s->length;
        metrics.prompt_tokens->add(static_cast<double>(end - s->length));
        s->length = end;
        if (s->length + 1 == static_cast<int64_t>(s->request->tokens.size())) {
            s->state = StreamState::decoding;
        }
    }

    Status one_step(bool* worked) {
        const int64_t t = now();
        end_cancelled(t);
        admit(t);
        if (!delivery.room(4 * settings.slots + 8)) {
            *worked = false;
            return {};
        }
        const StepOutline o = outline(t);
        build(o);
        *worked = !builder.empty();
        if (!*worked) {
            return {};
        }
        const StepPlan plan = builder.plan(step);
        const int64_t chunk_end = plan.chunks.empty() ? 0 : plan.chunks[0].end;
        StepResult result;
        TENON_TRY(execute(&result));
        counters.rounds_total += result.windows.empty() ? 0 : 1;
        counters.steps_total += 1;
        metrics.steps->add(1);
        for (const WindowResult& w : result.windows) {
            take_window(w, result);
        }
        for (const ChunkResult& c : result.chunks) {
            take_chunk(c, chunk_end);
        }
        last_step_us = now();
        return {};
    }

    void publish() {
        int64_t decoding = 0;
        int64_t prefilling = 0;
        for (const StreamPtr& s : slots) {
            decoding += s && s->state == StreamState::decoding ? 1 : 0;
            prefilling += s && s->state == StreamState::prefilling ? 1 : 0;
        }
        metrics.running->set(static_cast<double>(decoding + prefilling));
        metrics.waiting->set(static_cast<double>(waiting.size()));
        metrics.pages_ratio->set(pages.total() == 0 ? 0
                                                    : 1.0 - static_cast<double>(pages.free()) /
                                                                static_cast<double>(pages.total()));
        const int64_t t = now();
        const std::lock_guard lock(stats_mutex);
        EngineStats& p = published;
        p = counters;
        p.struct_size = sizeof(EngineStats);
        p.last_step_age_us = last_step_us;
        p.running = decoding + prefilling;
        p.decoding = decoding;
        p.prefilling = prefilling;
        p.waiting = static_cast<int64_t>(waiting.size());
        p.pages_total = pages.total();
        p.pages_free = pages.free();
        p.slot_count = settings.slots;
        for (size_t i = 0; i < slots.size(); ++i) {
            SlotStats& out = p.slots[i];
            out = SlotStats();
            out.slot = static_cast<uint32_t>(i);
            if (const StreamPtr& s = slots[i]) {
                out.state = s->state == StreamState::prefilling ? 1
                            : s->request->sink->blocked()       ? 3
                                                                : 2;
                out.request = s->request->id;
                out.length = s->length;
                out.prompt = static_cast<int64_t>(s->request->tokens.size());
                out.emitted = s->emitted;
                out.age_us = t - s->request->arrival_us;
            }
        }
    }

    void take_incoming() {
        const std::lock_guard lock(mutex);
        waiting.insert(waiting.end(), std::make_move_iterator(incoming.begin()),
                       std::make_move_iterator(incoming.end()));
        incoming.clear();
        woken = false;
    }

    void end_all(Code code, const char* message) {
        take_incoming();
        for (size_t i = 0; i < slots.size(); ++i) {
            const StreamPtr s = slots[i];
            if (s) {
                fail_stream(s, code, message);
            }
        }
        for (const StreamPtr& s : waiting) {
            fail_stream(s, code, message);
        }
        waiting.clear();
    }

    void fail_engine(const Status& status) {
        host.log(LogLevel::error, "engine", format("step {}: {}", step, status.message()));
        state.store(EngineState::failed);
        EngineFailure failure;
        failure.code = status.code();
        failure.exit_code = exit_code_of(status.code());
        failure.event = status.code() == Code::peer     ? "peer_lost"
                        : status.code() == Code::device ? "device"
                                                        : "internal";
        failure.message = status.message().str();
        end_all(status.code(), status.code() == Code::peer
                                   ? "peer_lost: a rank of the group is gone"
                               : status.code() == Code::device ? "device: the device failed"
                                                               : "internal: the engine failed");
        publish();
        if (settings.on_failure) {
            settings.on_failure(failure);
        }
    }

    void run() {
        host.register_thread("engine");
        CostTable costs;
        Status warm = model.warm_up({}, &costs);
        {
            const std::lock_guard lock(mutex);
            started = true;
            start_status = std::move(warm);
            state.store(start_status.ok() ? EngineState::ready : EngineState::failed);
        }
        wake_up.notify_all();
        while (!stopping.load(std::memory_order_acquire)) {
            take_incoming();
            bool worked = false;
            if (state.load() == EngineState::failed) {
                end_all(Code::internal, "internal: the engine failed");
            } else {
                const Status status = one_step(&worked);
                if (!status.ok()) {
                    fail_engine(status);
                }
            }
            publish();
            if (!worked) {
                std::unique_lock lock(mutex);
                wake_up.wait_for(lock, std::chrono::microseconds(kIdle_us),
                                 [&] { return woken || !incoming.empty() || stopping.load(); });
            }
        }
        end_all(Code::cancelled, cancel_text(CancelReason::shutdown));
        publish();
    }
};

EngineLoop::EngineLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EngineLoop::~EngineLoop() {
    stop();
}

Result<Ref<EngineLoop>> EngineLoop::create(Model& model, EngineSettings s, Host& host,
                                           Span<ScheduleOverlay* const> overlays) {
    const ModelInfo& info = model.info();
    if (s.context_tokens == 0) {
        s.context_tokens = info.context_limit;
    }
    if (s.pool_pages == 0) {
        ModelRequest request;
        request.slots = s.slots;
        request.context_tokens = s.context_tokens;
        s.pool_pages = pool_pages(request, info);
    }
    if (s.slots < 1 || s.slots > 48 || s.step_rows < s.slots || s.chunk_rows < 1 ||
        s.context_tokens < 2) {
        return error(Code::invalid_argument,
                     "engine: slots = {}, step_rows = {}, chunk_rows = {}, context_tokens = {} "
                     "cannot work together",
                     s.slots, s.step_rows, s.chunk_rows, s.context_tokens);
    }
    if (s.chunk_rows > info.max_chunk_rows || s.step_rows > info.max_step_rows) {
        return error(
            Code::invalid_argument,
            "engine: chunk_rows = {} and step_rows = {}, but the model was loaded for {} and {}",
            s.chunk_rows, s.step_rows, info.max_chunk_rows, info.max_step_rows);
    }
    return Ref<EngineLoop>(
        new EngineLoop(std::make_unique<Impl>(model, std::move(s), host, overlays)));
}

Status EngineLoop::start() {
    Impl& e = *impl_;
    e.delivery.start();
    e.thread = std::thread([&e] { e.run(); });
    std::unique_lock lock(e.mutex);
    e.wake_up.wait(lock, [&] { return e.started; });
    return e.start_status.copy();
}

void EngineLoop::begin_drain() noexcept {
    impl_->draining.store(true);
    if (impl_->state.load() == EngineState::ready) {
        impl_->state.store(EngineState::draining);
    }
    impl_->wake();
}

Status EngineLoop::drain(int64_t deadline_us) {
    begin_drain();
    Impl& e = *impl_;
    bool forced = false;
    e.shutdown_at.store(std::max<int64_t>(deadline_us, 1));
    e.wake();
    while (e.thread.joinable() && e.live.load() > 0) {
        forced = forced || e.host.now_us() >= deadline_us;
        std::unique_lock lock(e.mutex);
        e.wake_up.wait_for(lock, std::chrono::milliseconds(5));
        e.woken = true;
        e.wake_up.notify_all();
    }
    return forced ? Status(Code::deadline,
                           "requests were still running at the deadline and were ended")
                  : Status();
}

void EngineLoop::stop() noexcept {
    Impl& e = *impl_;
    e.stopping.store(true, std::memory_order_release);
    e.wake();
    if (e.thread.joinable()) {
        e.thread.join();
    }
    e.delivery.stop();
}

EngineState EngineLoop::state() const noexcept {
    return impl_->state.load();
}

void EngineLoop::set_memory_level(uint32_t level) noexcept {
    impl_->memory_level.store(level, std::memory_order_release);
    impl_->wake();
}

EngineInfo EngineLoop::info() noexcept {
    const EngineSettings& s = impl_->settings;
    EngineInfo out;
    out.slots = s.slots;
    out.context_tokens = s.context_tokens;
    out.served_name = s.served_name;
    out.aliases = impl_->alias_views;
    out.profile_name = s.profile_name;
    out.profile_digest = s.profile_digest;
    out.version = s.version;
    out.created_unix = s.created_unix;
    out.temperature = s.sampling.temperature;
    out.top_p = s.sampling.top_p;
    out.min_p = s.sampling.min_p;
    out.top_k = s.sampling.top_k;
    out.max_tokens = s.sampling.max_tokens;
    out.vocab = impl_->info.vocab;
    out.max_queued = s.max_queued;
    return out;
}

TextCodec& EngineLoop::text() noexcept {
    return impl_->model.text();
}

Status EngineLoop::submit(const RequestDesc& request, ReplySink** out) noexcept {
    return guard([&]() -> Status {
        Impl& e = *impl_;
        switch (e.state.load()) {
            case EngineState::loading:
                return error(Code::unavailable, "loading: the model is not ready yet");
            case EngineState::failed:
                return error(Code::unavailable, "failed: the engine has stopped");
            case EngineState::draining:
                return error(Code::unavailable, "draining: the server is ending");
            case EngineState::ready:
                break;
        }
        if (e.memory_level.load() >= 1) {
            return error(Code::unavailable,
                         "memory: the machine is short of memory, no new requests");
        }
        SubmitLimits limits;
        limits.context_tokens = e.settings.context_tokens;
        limits.vocab = e.info.vocab;
        limits.known_ids = e.model.text().info().vocab;
        limits.now_us = e.now();
        limits.request_id = limits.arrival_seq = e.next_id.fetch_add(1);
        auto streams = make_streams(request, e.settings, limits, e.model.text());
        if (!streams.ok()) {
            return streams.take_status();
        }
        const auto count = static_cast<int64_t>(streams->size());
        if (e.queued.fetch_add(count) + count > e.settings.max_queued) {
            e.queued.fetch_sub(count);
            return error(Code::unavailable, "queue full: {} requests wait already",
                         e.settings.max_queued);
        }
        auto handle = std::make_unique<SinkHandle>(streams->front()->request->sink,
                                                   &Impl::wake_from_sink, &e);
        {
            const std::lock_guard lock(e.mutex);
            e.live.fetch_add(count);
            for (StreamPtr& s : *streams) {
                e.incoming.push_back(std::move(s));
            }
        }
        e.wake();
        *out = handle.release();
        return {};
    });
}

void EngineLoop::stats(EngineStats* out) noexcept {
    Impl& e = *impl_;
    const std::lock_guard lock(e.stats_mutex);
    *out = e.published;
    out->struct_size = sizeof(EngineStats);
    out->state = e.state.load();
    out->last_step_age_us =
        e.published.last_step_age_us == 0 ? 0 : e.now() - e.published.last_step_age_us;
    out->slot_count = e.settings.slots;
}

int32_t EngineLoop::retry_after_s() noexcept {
    EngineStats s;
    stats(&s);
    const int64_t ended = std::max<int64_t>(s.requests_total, 1);
    const double each =
        seconds(s.prefill_us_total + s.decode_us_total) / static_cast<double>(ended);
    const double wait =
        each * static_cast<double>(s.waiting + 1) / std::max(1, impl_->settings.slots);
    return static_cast<int32_t>(std::clamp(wait, 1.0, 60.0));
}

void* EngineLoop::query(StrView facet) noexcept {
    return facet == StrView(Engine::kFacet) ? static_cast<Engine*>(this) : nullptr;
}

void EngineLoop::release() noexcept {
    delete this;
}

std::vector<MemoryEntry> engine_memory(const EngineSettings& s, const ModelInfo& info) {
    const int64_t table = s.context_tokens / std::max<int64_t>(info.page_tokens, 1) + 2;
    std::vector<MemoryEntry> out;
    MemoryEntry plans;
    plans.tag = "plan";
    plans.place = PlanPlace::host;
    plans.count = 4;
    plans.bytes = 4 * (64 + int64_t{s.chunk_rows} * 4 + s.slots * (200 + table * 4));
    plans.note = "encoded step plans";
    out.push_back(plans);
    MemoryEntry queues;
    queues.tag = "queues";
    queues.place = PlanPlace::host;
    queues.bytes = 4096 * static_cast<int64_t>(sizeof(DeliveryItem)) +
                   (int64_t{s.slots} + 8) * (256 << 10) + int64_t{s.max_queued} * 16384;
    queues.note = "delivery ring, reply rings, waiting requests";
    out.push_back(queues);
    return out;
}

}  // namespace tenon
