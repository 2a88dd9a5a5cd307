// SPDX-License-Identifier: MIT
// Total deadlines of connections. A socket timeout bounds one read; a client that sends a byte a
// second is bounded only by someone else's clock, which is this thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "tenon/host.h"

namespace tenon::http {

/// One connection's deadline. Thread: its connection's, except what the watch does.
///
/// Protocol: whoever swaps `deadline_us_` from a real time wins. The watch swaps to kFired and then
/// shuts the socket down, so the connection's blocked call returns; the connection swaps to its
/// next deadline and learns whether it came too late.
class Deadline {
  public:
    enum class Closes { reading, both };

    explicit Deadline(int socket) : socket_(socket) {}

    /// Sets or replaces the deadline (0 = none). False: the old one had passed.
    bool arm(int64_t at_us, Closes closes = Closes::reading) noexcept;
    bool disarm() noexcept { return arm(0); }
    bool fired() const noexcept { return deadline_us_.load() == kFired; }
    /// Forgets a deadline that has passed, so that the refusal that follows has one of its own.
    void restart() noexcept { deadline_us_.store(0); }

    /// Marks the connection as waiting for its next request; only such ones are evicted.
    void set_idle(int64_t since_us) noexcept { idle_since_us_.store(since_us); }
    /// Ends that. False: it was evicted meanwhile.
    bool leave_idle() noexcept { return idle_since_us_.exchange(0) != kFired; }

  private:
    friend class ConnectionWatch;
    static constexpr int64_t kFired = -1;

    const int socket_;
    std::atomic<int64_t> deadline_us_{0};
    std::atomic<Closes> closes_{Closes::reading};
    std::atomic<int64_t> idle_since_us_{0};
};

/// All connections of a listener. Thread: any.
class ConnectionWatch {
  public:
    explicit ConnectionWatch(Host& host);
    ~ConnectionWatch();

    void start();
    void stop();

    /// Registers; returns the number of live connections with this one. `remove` must come before
    /// the socket is closed.
    int64_t add(Deadline* entry);
    void remove(Deadline* entry);
    int64_t live() const { return live_.load(); }

    /// Closes the connection that has been idle longest. False: none is idle.
    bool evict_idle();
    void close_all_idle();
    /// Shuts every socket down, both ways.
    void close_all();
    /// True when no connection is left, at the latest at `deadline_us` of the host's clock.
    bool wait_until_empty(int64_t deadline_us);

  private:
    void run();
    void fire(Deadline& entry, int64_t now_us);

    Host& host_;
    std::mutex mutex_;  // guards entries_, stopping_
    std::condition_variable changed_;
    std::vector<Deadline*> entries_;
    bool stopping_ = false;
    std::atomic<int64_t> live_{0};
    std::thread thread_;
};

}  // namespace tenon::http
