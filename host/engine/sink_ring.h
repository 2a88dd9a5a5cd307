// SPDX-License-Identifier: MIT
// The bounded ring between the delivery thread and the front end of one request.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "tenon/engine.h"

namespace tenon::engine {

/// push: the delivery thread, never waits. next: one front-end thread. blocked: any thread.
///
/// At three quarters the ring counts as blocked and the engine pauses the request; the last quarter
/// holds what steps in flight still give. Text that a parser held back can come in one piece larger
/// than that: it goes into an overflow list, bounded too, so that nothing is lost and delivery
/// never waits.
class SinkRing {
  public:
    static constexpr int64_t kEvents = 256;
    static constexpr int64_t kBytes = 256 * 1024;
    static constexpr int64_t kOverflowBytes = 4 * 1024 * 1024;

    SinkRing();

    /// Copies the event in. False: even the overflow is full and the event was dropped; terminal
    /// events are always taken.
    bool push(const SinkEvent& event);

    /// Waits at most `timeout_us`; views live until the next call. `freed` is set when this call
    /// ended the blocked state.
    bool next(int64_t timeout_us, SinkEvent* out, bool* freed);

    bool blocked() const { return blocked_.load(std::memory_order_acquire); }

    /// Nobody takes events any more: what comes is dropped, and the ring does not block.
    void abandon();

  private:
    struct Stored {
        SinkEvent event;  // views are set again when it is taken
        int64_t at = 0;   // of the payload in bytes_
        int64_t bytes = 0;
    };
    struct Overflow {
        Stored stored;
        std::unique_ptr<uint8_t[]> payload;
    };

    static int64_t payload_bytes(const SinkEvent& event);
    static void write_payload(const SinkEvent& event, uint8_t* to);
    static SinkEvent read_payload(const SinkEvent& event, const uint8_t* from);
    bool place(int64_t bytes, int64_t* at);
    void update_blocked(bool* freed);

    std::mutex mutex_;  // guards everything below except blocked_
    std::condition_variable ready_;
    std::vector<Stored> events_;
    int64_t head_ = 0, tail_ = 0;  // event counters
    std::unique_ptr<uint8_t[]> bytes_;
    int64_t byte_head_ = 0, byte_tail_ = 0;
    bool taken_ = false;  // the event at tail_ is in the front end's hands
    std::deque<Overflow> overflow_;
    int64_t overflow_bytes_ = 0;
    Overflow held_;  // the overflow event in the front end's hands
    bool abandoned_ = false;
    std::atomic<bool> blocked_{false};
};

}  // namespace tenon::engine
