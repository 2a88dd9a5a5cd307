// SPDX-License-Identifier: MIT
// A number that is costly to read and needed often, kept for a tenth of a second.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tenon::kernels {

/// Thread-safe: two threads may read at the same time, both numbers are right.
class Lasting {
  public:
    template <class Read>
    int64_t get(const Read& read) {
        using std::chrono::steady_clock;
        const int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(
                                steady_clock::now().time_since_epoch())
                                .count();
        if (now - read_at_ms_.load(std::memory_order_acquire) >= kLastsMs) {
            value_.store(read(), std::memory_order_relaxed);
            read_at_ms_.store(now, std::memory_order_release);
        }
        return value_.load(std::memory_order_relaxed);
    }

  private:
    static constexpr int64_t kLastsMs = 100;
    std::atomic<int64_t> value_{0};
    std::atomic<int64_t> read_at_ms_{-kLastsMs};
};

}  // namespace tenon::kernels
