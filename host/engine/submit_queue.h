// SPDX-License-Identifier: MIT
// Requests on their way from front ends to the engine thread.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "host/engine/request.h"

namespace tenon::engine {

/// push: any thread. take: the engine thread. Once closed nothing gets in, so no request is left
/// behind.
class SubmitQueue {
  public:
    explicit SubmitQueue(size_t capacity) { queue_.reserve(capacity); }

    /// False: closed or full.
    bool push(Request* request) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (closed_ || queue_.size() == queue_.capacity()) {
            return false;
        }
        queue_.push_back(request);
        size_.store(queue_.size(), std::memory_order_release);
        return true;
    }

    bool empty() const { return size_.load(std::memory_order_acquire) == 0; }

    /// Calls f(request) for all that are queued, in order. f does not block.
    template <class F>
    void take(F&& f) {
        if (empty()) {
            return;
        }
        const std::lock_guard<std::mutex> lock(mutex_);
        for (Request* request : queue_) {
            f(*request);
        }
        queue_.clear();
        size_.store(0, std::memory_order_release);
    }

    void close() {
        const std::lock_guard<std::mutex> lock(mutex_);
        closed_ = true;
    }

  private:
    std::mutex mutex_;  // guards queue_, closed_
    std::vector<Request*> queue_;
    bool closed_ = false;
    std::atomic<size_t> size_{0};
};

}  // namespace tenon::engine
