// SPDX-License-Identifier: MIT
// One request with its replies: what the engine copied from the front end, and the sink that goes
// back.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "host/engine/reply_text.h"
#include "host/engine/sequence.h"
#include "host/engine/sha256.h"
#include "host/engine/sink_ring.h"
#include "host/engine/turn_key.h"
#include "host/engine/wake_event.h"

namespace tenon::engine {

class Request;

/// One of the n replies. The members say which thread owns them.
struct Reply : SequenceSpec {
    Request* owner = nullptr;

    // Engine thread, until the end was queued; the delivery thread from then on.
    Ref<StopMatcher> stop;
    bool started = false, ended = false;
    int64_t emitted = 0;
    int64_t admitted_us = 0, first_us = 0, last_us = 0;
    ReplyTimings timings;

    // Delivery thread.
    std::unique_ptr<ReplyText> text;
    Sha256 sha;
    std::unique_ptr<RecordedTurn> turn;  ///< null: the replay memory does not take it
    bool text_failed = false;
    bool events_lost = false;
};

/// Shared by the front end (one reference) and the engine (one a reply, given back with the
/// terminal event).
class Request final : public ReplySink {
  public:
    /// `wake` is shared because a front end may hold its sink longer than the engine lives.
    Request(uint64_t id, int32_t replies, std::shared_ptr<WakeEvent> wake);

    // ReplySink: the front-end thread; cancel: any.
    bool next(int64_t timeout_us, SinkEvent* out) noexcept override;
    bool finished() noexcept override;
    void cancel(CancelReason reason) noexcept override;
    uint64_t request_id() noexcept override { return id_; }
    void* query(StrView facet) noexcept override;
    void release() noexcept override;

    /// One reference less; the last one deletes. Any thread but the engine's.
    void unref() noexcept;

    CancelReason cancelled() const { return cancelled_.load(std::memory_order_acquire); }
    SinkRing& ring() { return ring_; }
    Span<Reply> replies() { return replies_; }

    // Written in submit, constant afterwards.
    std::vector<int32_t> tokens;
    std::vector<Border> borders;
    std::vector<ImageSpan> images;
    std::vector<int32_t> stops;
    std::vector<plan::Pair> bias, counts;
    std::string label;
    uint32_t flags = 0;
    bool wants_ids = false;  ///< ids or logprobs go to the sink

    // Engine thread.
    bool cancel_seen = false;
    bool blocked_seen = false;
    int32_t live_replies = 0;

  private:
    ~Request() = default;

    const uint64_t id_;
    std::shared_ptr<WakeEvent> wake_;
    std::vector<Reply> replies_;
    SinkRing ring_;
    int32_t terminals_taken_ = 0;  // front-end thread
    std::atomic<int32_t> references_;
    std::atomic<CancelReason> cancelled_{CancelReason::none};
};

}  // namespace tenon::engine
