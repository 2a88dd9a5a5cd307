// SPDX-License-Identifier: MIT
// One request's bounded ring of events between the delivery thread and its front end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tenon/engine.h"

namespace tenon {

/// An event that owns its bytes.
struct OwnedEvent {
    SinkEventKind kind = SinkEventKind::content;
    int32_t reply = 0, index = 0, top = 0;
    Code code = Code::ok;
    std::string text, id;
    std::vector<int32_t> ids;
    std::vector<SinkLogprob> logprobs;
    bool terminal = false;
    ReplyTimings timings;
};

/// Shared by front end, delivery and engine thread. 256 events or 256 KiB; from 3/4 on `blocked` is
/// set, and the engine pauses the request, so what a step can still produce fits into the last
/// quarter.
class SinkState {
  public:
    SinkState(uint64_t request, int32_t replies) : request_(request), open_replies_(replies) {}

    /// Delivery thread; never waits. Adjacent text of one kind is joined.
    void push(OwnedEvent event);
    /// Front-end thread. False: nothing came within the time.
    bool next(int64_t timeout_us, OwnedEvent* out);
    bool finished();
    bool blocked() const { return blocked_.load(std::memory_order_acquire); }

    void cancel(CancelReason reason) {
        uint32_t none = 0;
        cancel_.compare_exchange_strong(none, static_cast<uint32_t>(reason));
    }
    CancelReason cancelled() const {
        return static_cast<CancelReason>(cancel_.load(std::memory_order_acquire));
    }
    uint64_t request() const { return request_; }

  private:
    static constexpr size_t kMaxEvents = 256;
    static constexpr size_t kMaxBytes = 256 << 10;

    const uint64_t request_;
    std::mutex mutex_;  // guards events_, bytes_, open_replies_
    std::condition_variable ready_;
    std::deque<OwnedEvent> events_;
    size_t bytes_ = 0;
    int32_t open_replies_;
    std::atomic<bool> blocked_{false};
    std::atomic<uint32_t> cancel_{0};
};

/// The front end's handle; its release cancels what still runs.
class SinkHandle final : public Implements<SinkHandle, ReplySink> {
  public:
    SinkHandle(std::shared_ptr<SinkState> state, void (*wake)(void*), void* wake_arg)
        : state_(std::move(state)), wake_(wake), wake_arg_(wake_arg) {}

    bool next(int64_t timeout_us, SinkEvent* out) noexcept override;
    bool finished() noexcept override { return state_->finished(); }
    void cancel(CancelReason reason) noexcept override {
        state_->cancel(reason);
        wake_(wake_arg_);
    }
    uint64_t request_id() noexcept override { return state_->request(); }
    void release() noexcept override {
        if (!state_->finished()) {
            cancel(CancelReason::client_gone);
        }
        delete this;
    }

  private:
    std::shared_ptr<SinkState> state_;  // shared: the engine may still hold the request
    void (*wake_)(void*);
    void* wake_arg_;
    OwnedEvent current_;
};

}  // namespace tenon
