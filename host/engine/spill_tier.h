// SPDX-License-Identifier: MIT
// The spill threads: one writes, one reads; the engine thread only fills and empties their queues.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "host/engine/spill_store.h"
#include "host/engine/wake_event.h"

namespace tenon::engine {

/// `push` and `take`: the engine thread; neither blocks on a file nor allocates. The mutex is held
/// for copies of a command or an answer only.
class SpillTier {
  public:
    explicit SpillTier(std::unique_ptr<SpillStore> store);
    ~SpillTier() { stop(); }

    /// Starts both threads; `wake` is signalled with every answer. Without it `take` runs what was
    /// pushed, on the caller's thread (tests with a clock of their own).
    void start(Host& host, std::shared_ptr<WakeEvent> wake);
    /// Finishes what was pushed, then ends the threads. Idempotent.
    void stop() noexcept;

    /// False: the queue is full.
    bool push(const SpillCommand& command);
    /// Calls f(event) for each answer since the last call.
    template <class F>
    void take(F&& f) {
        if (!writing_.thread.joinable()) {
            run_here();
        }
        for (SpillEvent event; pop(&event);) {
            f(event);
        }
    }
    Span<const SpillFile> found() const { return store_->found(); }

  private:
    template <class T>
    struct Ring {
        T items[2 * kSpillJobs];
        size_t first = 0, count = 0;
        bool push(const T& item) {
            if (count == 2 * kSpillJobs) {
                return false;
            }
            items[(first + count++) % (2 * kSpillJobs)] = item;
            return true;
        }
        bool pop(T* out) {
            if (count == 0) {
                return false;
            }
            *out = items[first];
            first = (first + 1) % (2 * kSpillJobs);
            --count;
            return true;
        }
    };
    struct Worker {
        std::thread thread;
        std::condition_variable pushed;
        Ring<SpillCommand> commands;
    };

    void run(Worker& worker, Host& host, bool writes);
    void run_here();
    void answer(const SpillEvent& event);
    bool pop(SpillEvent* out);
    static bool is_write(const SpillCommand& c) { return c.kind <= SpillCommandKind::remove; }

    std::unique_ptr<SpillStore> store_;
    std::shared_ptr<WakeEvent> wake_;
    std::mutex mutex_;  // guards rings and stopping_
    Worker writing_, reading_;
    Ring<SpillEvent> events_;
    bool stopping_ = false;
};

}  // namespace tenon::engine
