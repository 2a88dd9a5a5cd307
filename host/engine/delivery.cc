// SPDX-License-Identifier: MIT
// The delivery thread: parses tokens, fills sink rings, ends replies with exactly one terminal
// event.
#include "host/engine/delivery.h"

#include <algorithm>
#include <chrono>

#include "host/engine/end_cause.h"

namespace tenon::engine {
namespace {

constexpr uint64_t kItems = 4096;
constexpr uint64_t kIds = 64 * 1024;
constexpr uint64_t kLogprobs = 128 * 1024;  // 1 MiB
constexpr int64_t kIdleUs = 250'000;
constexpr double kUs = 1e-6;

/// Hands the parser's events to the ring, under the reply's index.
class Forward final : public ReplyEvents {
  public:
    explicit Forward(Reply& reply) : reply_(reply) {}

    void on_event(const ReplyEvent& event) noexcept override {
        if (reply_.turn) {
            // Out of memory for it, the next turn is written in its canonical form.
            if (!guard([&] { reply_.turn->add(event); }).ok()) {
                reply_.turn.reset();
            }
        }
        SinkEvent out;
        out.reply = reply_.reply;
        out.index = event.index;
        out.text = event.text;
        out.id = event.id;
        switch (event.kind) {
            case ReplyEventKind::reasoning:
                out.kind = SinkEventKind::reasoning;
                break;
            case ReplyEventKind::content:
                out.kind = SinkEventKind::content;
                break;
            case ReplyEventKind::call:
                out.kind = SinkEventKind::call;
                break;
            case ReplyEventKind::arguments:
                out.kind = SinkEventKind::arguments;
                break;
            case ReplyEventKind::finish:
                finish_reason = event.text.str();
                return;  // sent with the timings, once everything else is in the ring
        }
        push(out);
    }

    void push(const SinkEvent& event) {
        if (!reply_.events_lost && !reply_.owner->ring().push(event)) {
            reply_.events_lost = true;
            reply_.owner->cancel(CancelReason::slow_client);
        }
    }

    std::string finish_reason;

  private:
    Reply& reply_;
};

}  // namespace

static_assert(sizeof(TokenLogprob) == sizeof(SinkLogprob),
              "sinks take the model's entries as they are");

Delivery::Delivery(Host& host, EngineMetrics& metrics, int32_t max_sequences, int32_t eos,
                   std::shared_ptr<WakeEvent> engine_wake)
    : host_(host),
      metrics_(metrics),
      // Each sequence can start, give one window, end and be dropped within a round.
      reserve_(4 * static_cast<uint64_t>(max_sequences)),
      eos_(eos),
      engine_wake_(std::move(engine_wake)),
      items_(kItems + 3 * reserve_),
      ids_(kIds),
      logprobs_(kLogprobs) {}

Delivery::~Delivery() {
    stop();
}

void Delivery::start() {
    thread_ = std::thread([this] { run(); });
}

void Delivery::stop() {
    stopping_.store(true, std::memory_order_release);
    wake_.signal();
    if (thread_.joinable()) {
        thread_.join();
    }
    drain();
}

bool Delivery::has_room(int64_t step_rows, int32_t top) const noexcept {
    const auto rows = static_cast<uint64_t>(step_rows);
    const uint64_t entries = 1 + static_cast<uint64_t>(top < 0 ? 0 : top);
    return items_.room() > 2 * reserve_ && ids_.has_room(rows, plan::kMaxWindowRows) &&
           logprobs_.has_room(rows * entries, plan::kMaxWindowRows * entries);
}

void Delivery::push(DeliveryItem item, Span<const int32_t> ids,
                    Span<const TokenLogprob> logprobs) noexcept {
    item.count = static_cast<int32_t>(ids.size);
    item.ids_at = ids_.write(ids.data, ids.size);
    item.logprobs_at = logprobs_.write(logprobs.data, logprobs.size);
    items_.push(item);
}

void Delivery::run() {
    host_.register_thread("delivery");
    while (!stopping_.load(std::memory_order_acquire)) {
        if (drain()) {
            continue;
        }
        wake_.announce();
        if (!items_.empty() || stopping_.load(std::memory_order_acquire)) {
            wake_.dismiss();
            continue;
        }
        wake_.wait(kIdleUs);
    }
}

bool Delivery::drain() {
    bool any = false;
    DeliveryItem item;
    while (items_.pop(&item)) {
        any = true;
        deliver(item);
    }
    if (any && starved_.exchange(false, std::memory_order_acq_rel)) {
        engine_wake_->signal();
    }
    return any;
}

void Delivery::deliver(const DeliveryItem& item) {
    Reply& reply = *item.reply;
    if (item.start != 0) {
        SinkEvent event;
        event.kind = SinkEventKind::started;
        event.reply = reply.reply;
        Forward(reply).push(event);
    }
    if (item.count > 0) {
        const Status status = guard([&] { return send_tokens(reply, item); });
        if (!status.ok()) {
            fail_text(reply, status);
        }
    }
    const auto entries = static_cast<uint64_t>(item.top < 0 ? 0 : 1 + item.top);
    ids_.release(item.ids_at + static_cast<uint64_t>(item.count));
    logprobs_.release(item.logprobs_at + static_cast<uint64_t>(item.count) * entries);
    if (item.end != 0) {
        send_end(reply, item);
    }
    if (item.drop != 0) {
        reply.owner->unref();  // the engine's reference; `reply` may be gone now
    }
}

Status Delivery::send_tokens(Reply& reply, const DeliveryItem& item) {
    const Span<const int32_t> ids(ids_.at(item.ids_at), static_cast<uint64_t>(item.count));
    reply.sha.add_ids(ids);
    Forward forward(reply);
    if (reply.owner->wants_ids) {
        // Before the text, so that a front end can attach them to what follows.
        SinkEvent event;
        event.kind = SinkEventKind::tokens;
        event.reply = reply.reply;
        event.ids = ids;
        if (item.top >= 0) {
            event.top = item.top;
            event.logprobs = {reinterpret_cast<const SinkLogprob*>(logprobs_.at(item.logprobs_at)),
                              ids.size * (1 + static_cast<uint64_t>(item.top))};
        }
        forward.push(event);
    }
    if (reply.text_failed) {
        return {};
    }
    const int32_t* const end = ids.begin() + item.text_count;
    if (reply.turn) {
        // An end token inside a reply (ignore_eos) is no text, so no client can send it back.
        reply.turn->is_odd |= std::find(ids.begin(), end, eos_) != end;
        reply.turn->ids.insert(reply.turn->ids.end(), ids.begin(), end);
    }
    for (const int32_t* at = ids.begin(); at != end;) {
        const int32_t* const stop = std::find(at, end, eos_);
        if (at != stop) {
            TENON_TRY(reply.text->feed({at, static_cast<uint64_t>(stop - at)}, forward));
        }
        at = stop == end ? end : stop + 1;
    }
    return {};
}

void Delivery::fail_text(Reply& reply, const Status& status) {
    // The engine learns of it as a cancellation; the end that comes back is reported as our error.
    reply.text_failed = true;
    reply.owner->cancel(CancelReason::shutdown);
    host_.log(LogLevel::error, "engine",
              format("reply text request={} error={}", reply.request, status.message()));
}

/// Before the terminal event, so that whoever saw it can send the next turn.
void Delivery::keep_turn(Reply& reply, EndCause cause, ReplyEnd how) {
    const std::unique_ptr<RecordedTurn> turn = std::move(reply.turn);
    // A stop string cuts the text inside of what was sampled.
    if (!turn || replay_ == nullptr || cause != EndCause::complete ||
        how == ReplyEnd::stop_string) {
        return;
    }
    const Status status = guard([&] { replay_->put(*turn); });
    if (!status.ok()) {
        host_.log(LogLevel::warn, "engine",
                  format("replay memory request={} error={}", reply.request, status.message()));
    }
}

void Delivery::send_end(Reply& reply, const DeliveryItem& item) {
    EndCause cause = item.cause;
    Forward forward(reply);
    // Text held by the parser goes out also before an error: the client keeps what was generated.
    const Status status =
        reply.text_failed ? Status() : guard([&] { return reply.text->finish(item.how, forward); });
    if (reply.text_failed || (!status.ok() && cause == EndCause::complete)) {
        cause = EndCause::internal;
    } else if (reply.events_lost && cause == EndCause::complete) {
        cause = EndCause::slow_client;
    }
    keep_turn(reply, cause, item.how);
    reply.timings.reasoning_tokens = reply.text->reasoning_tokens();
    const std::array<uint8_t, 32> sha = reply.sha.finish();
    std::memcpy(reply.timings.token_sha, sha.data(), sha.size());

    SinkEvent event;
    event.reply = reply.reply;
    event.timings = &reply.timings;
    if (cause == EndCause::complete) {
        event.kind = SinkEventKind::finish;
        event.text =
            forward.finish_reason.empty() ? StrView("stop") : StrView(forward.finish_reason);
    } else {
        const EndText text = end_text(cause);
        event.kind = SinkEventKind::error;
        event.code = text.code;
        event.id = text.kind;
        event.text = text.message;
    }
    observe(reply, cause);
    reply.owner->ring().push(event);
    if (undelivered_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        // Through the mutex, so that a waiter is either before its look at the count or asleep.
        { const std::lock_guard<std::mutex> lock(mutex_); }
        all_delivered_.notify_all();
    }
}

bool Delivery::wait_delivered(int64_t timeout_us) {
    std::unique_lock<std::mutex> lock(mutex_);
    return all_delivered_.wait_for(
        lock, std::chrono::microseconds(std::max<int64_t>(timeout_us, 0)),
        [this] { return undelivered_.load(std::memory_order_acquire) == 0; });
}

void Delivery::observe(const Reply& reply, EndCause cause) {
    const ReplyTimings& t = reply.timings;
    metrics_.outcome(cause)->add(1);
    if (cause == EndCause::client_gone) {
        metrics_.disconnections->add(1);
    }
    if (t.first_token > 0) {
        metrics_.first_token->observe(static_cast<double>(t.first_token) * kUs);
        metrics_.prefill_time->observe(static_cast<double>(t.prefill) * kUs);
        metrics_.queue_time->observe(static_cast<double>(t.queue) * kUs);
        metrics_.decode_time->observe(static_cast<double>(t.decode) * kUs);
        metrics_.latency->observe(static_cast<double>(t.first_token + t.decode) * kUs);
    }
    if (host_.log_enabled(LogLevel::debug)) {
        host_.log(
            LogLevel::debug, "engine",
            format("request={} reply={} label={} outcome={} prompt={} completion={} queue_us={} "
                   "prefill_us={} decode_us={} rounds={} drafted={} accepted={}",
                   reply.request, reply.reply, reply.owner->label, end_text(cause).outcome,
                   t.prompt_tokens, t.completion_tokens, t.queue, t.prefill, t.decode, t.rounds,
                   t.drafted, t.accepted));
    }
}

}  // namespace tenon::engine
