// SPDX-License-Identifier: MIT
// One sleeping thread that any other may wake: an eventfd with a flag that spares the system call.
#pragma once

#include <atomic>
#include <cstdint>

namespace tenon::engine {

/// signal: any thread, never blocks, allocates nothing. wait: the one sleeper.
///
/// No wake-up is lost: both sides exchange the flag. Either the signal finds the announcement and
/// makes the descriptor readable, or the announcement comes second, acquires the signal's exchange
/// and so sees the work that was published before it.
class WakeEvent {
  public:
    WakeEvent();
    ~WakeEvent();
    WakeEvent(const WakeEvent&) = delete;
    WakeEvent& operator=(const WakeEvent&) = delete;

    void signal() noexcept;
    /// Call before the last look for work; then `wait` or `dismiss`.
    void announce() noexcept { sleeping_.exchange(true, std::memory_order_acq_rel); }
    void dismiss() noexcept { sleeping_.exchange(false, std::memory_order_acq_rel); }
    /// Returns after a signal or the timeout.
    void wait(int64_t timeout_us) noexcept;

  private:
    int fd_;
    std::atomic<bool> sleeping_{false};
};

}  // namespace tenon::engine
