// SPDX-License-Identifier: MIT
// SIGTERM, SIGINT and SIGHUP as events of the main thread; before that they end the process at
// once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace tenon {

/// Order: `block` before any thread exists; then load libraries; then make one of these.
///
/// Until `take_over` an ending signal kills the process as it would without us: nothing is served
/// yet, so nothing is lost. Afterwards signals are counted for `wait`; the third ending one kills.
class SignalThread {
  public:
    /// Blocks the signals in this thread and in all that it will start. They stay pending.
    static void block();
    SignalThread();
    ~SignalThread();
    SignalThread(const SignalThread&) = delete;
    SignalThread& operator=(const SignalThread&) = delete;

    void take_over();

    struct Event {
        int ending = 0;       ///< ending signals so far
        bool reopen = false;  ///< SIGHUP came since the last event
        bool woken = false;   ///< `wake` was called since the last event
    };
    /// The next event within `timeout_us`, or an unchanged one. Main thread.
    Event wait(int64_t timeout_us);
    /// Ends a `wait` early. Any thread, any time.
    void wake() noexcept;

  private:
    void run();

    std::mutex mutex_;  // guards event_, seen_
    std::condition_variable changed_;
    Event event_;
    int seen_ = 0;
    std::atomic<bool> taken_over_{false};
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace tenon
