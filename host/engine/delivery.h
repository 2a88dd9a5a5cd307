// SPDX-License-Identifier: MIT
// Turns emitted tokens into reply events on a thread of its own, so that the engine thread never
// touches text.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "host/engine/stream.h"

namespace tenon {

/// What the engine hands over, at most one window's worth.
struct DeliveryItem {
    static constexpr int kMaxIds = 16;
    static constexpr int kMaxLogprobs = 21;
    enum class Kind : uint8_t { started, tokens, finish, error } kind = Kind::tokens;
    StreamPtr stream;
    int32_t count = 0;
    int32_t ids[kMaxIds] = {};
    int32_t top = 0;
    int32_t logprob_count = 0;
    SinkLogprob logprobs[kMaxLogprobs] = {};
    ReplyEnd end = ReplyEnd::eos;
    Code code = Code::ok;
    const char* message = "";  ///< error event: a literal
    ReplyTimings timings;
};

/// Bounded ring, engine thread to delivery thread. Each stream ends with exactly one finish or
/// error.
class Delivery {
  public:
    explicit Delivery(Host& host);
    ~Delivery();

    void start();
    /// Delivers what is queued, then ends the thread.
    void stop();
    /// Engine thread; waits only when the ring is full, which `room` tells beforehand.
    void push(DeliveryItem item);
    bool room(int64_t items);

  private:
    static constexpr size_t kCapacity = 4096;
    void run();
    void deliver(DeliveryItem& item);
    void raw_text(ReplyStream& s, std::string_view text);

    Host& host_;
    std::mutex mutex_;  // guards ring_, first_, count_, ending_
    std::condition_variable filled_, freed_;
    std::vector<DeliveryItem> ring_;
    size_t first_ = 0, count_ = 0;
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace tenon
