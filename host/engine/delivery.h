// SPDX-License-Identifier: MIT
// From tokens to reply events: the delivery thread and the queue that feeds it.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "host/engine/engine_metrics.h"
#include "host/engine/replay_memory.h"
#include "host/engine/request.h"
#include "host/engine/rings.h"
#include "host/engine/wake_event.h"

namespace tenon::engine {

/// One window's tokens, a start, an end, or the engine's last use of the reply.
struct DeliveryItem {
    Reply* reply = nullptr;
    uint64_t ids_at = 0, logprobs_at = 0;
    int32_t count = 0;       ///< ids of the reply
    int32_t text_count = 0;  ///< of them fed to the parser (an end token is not text)
    int32_t top = -1;        ///< logprobs: 1 + top entries an id; -1 = none
    uint8_t start = 0, end = 0, drop = 0, reserved = 0;
    EndCause cause = EndCause::complete;
    ReplyEnd how = ReplyEnd::eos;
};
static_assert(sizeof(DeliveryItem) <= 64);

/// Producer: the engine thread, after `has_room`. Consumer: the delivery thread, or a test through
/// `drain`.
class Delivery {
  public:
    /// `max_sequences` replies may end at once; `engine_wake` is signalled when a starved engine
    /// has room again.
    /// `eos` is never fed to a parser, also where it does not end the reply.
    Delivery(Host& host, EngineMetrics& metrics, int32_t max_sequences, int32_t eos,
             std::shared_ptr<WakeEvent> engine_wake);
    ~Delivery();

    /// Where finished turns go; borrowed, null = nowhere. Before `start`.
    void set_replay(ReplayMemory* memory) { replay_ = memory; }
    void start();
    /// Delivers what is queued, then ends the thread.
    void stop();

    /// Room for the tokens of one worst-case step, and for the end of every reply beside it.
    bool has_room(int64_t step_rows, int32_t top) const noexcept;
    /// The engine waits for room: it is woken after the next drain.
    void starve() noexcept { starved_.store(true, std::memory_order_release); }

    /// Queues `item`; ids and logprobs are copied. With `end` set the engine's reference goes with
    /// it.
    void push(DeliveryItem item, Span<const int32_t> ids,
              Span<const TokenLogprob> logprobs) noexcept;
    /// Wakes the thread; once a round, after its pushes.
    void flush() noexcept { wake_.signal(); }

    /// Delivers everything queued and returns whether there was anything. Consumer side.
    bool drain();

    /// Replies whose terminal event is not in their ring yet. Counted up at submit.
    std::atomic<int64_t>& undelivered() { return undelivered_; }
    /// Waits until none is left, at most `timeout_us`; false: some are. Any thread but the delivery
    /// thread.
    bool wait_delivered(int64_t timeout_us);

  private:
    void run();
    void deliver(const DeliveryItem& item);
    Status send_tokens(Reply& reply, const DeliveryItem& item);
    void keep_turn(Reply& reply, EndCause cause, ReplyEnd how);
    void fail_text(Reply& reply, const Status& status);
    void send_end(Reply& reply, const DeliveryItem& item);
    void observe(const Reply& reply, EndCause cause);

    Host& host_;
    EngineMetrics& metrics_;
    const uint64_t reserve_;
    const int32_t eos_;
    std::shared_ptr<WakeEvent> engine_wake_;
    ReplayMemory* replay_ = nullptr;
    EntryRing<DeliveryItem> items_;
    RunRing<int32_t> ids_;
    RunRing<TokenLogprob> logprobs_;
    WakeEvent wake_;
    std::atomic<bool> starved_{false};
    std::atomic<bool> stopping_{false};
    std::atomic<int64_t> undelivered_{0};
    std::mutex mutex_;  // guards nothing but the sleep in wait_delivered
    std::condition_variable all_delivered_;
    std::thread thread_;
};

}  // namespace tenon::engine
