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
    static constexpr int64_t kStopUs = 10'000'000;
    explicit SpillTier(std::unique_ptr<SpillStore> store);
    ~SpillTier() { stop(); }

    /// Starts both threads; `wake` is signalled with every answer. Without it `take` runs what was
    /// pushed, on the caller's thread (tests with a clock of their own).
    void start(Host& host, std::shared_ptr<WakeEvent> wake);
    /// Finishes what was pushed, then ends the threads. False: a disk ended no command for
    /// `limit_us`, and its thread is left behind with the store and whatever memory the command
    /// names: the process should end without giving memory back. Idempotent.
    bool stop(int64_t limit_us = kStopUs) noexcept;

    /// False: the queue is full.
    bool push(const SpillCommand& command);
    /// Calls f(event) for each answer since the last call.
    template <class F>
    void take(F&& f) {
        if (!writing_.joinable()) {
            run_here();
        }
        for (SpillEvent event; pop(&event);) {
            f(event);
        }
    }
    Span<const SpillFile> found() const { return shared_->store->found(); }

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
        std::condition_variable pushed;
        Ring<SpillCommand> commands;
    };
    /// With both threads: one that a disk never gives back outlives the tier.
    struct Shared {
        std::unique_ptr<SpillStore> store;
        std::shared_ptr<WakeEvent> wake;
        std::mutex mutex;  // guards what follows
        Worker writing, reading;
        Ring<SpillEvent> events;
        std::condition_variable ended;  ///< a command or a thread
        int64_t commands_ended = 0;
        int running = 0;
        bool stopping = false;

        void run(Worker& worker, bool writes);
        void answer(const SpillEvent& event);
    };

    void run_here();
    bool pop(SpillEvent* out);
    static bool is_write(const SpillCommand& c) { return c.kind <= SpillCommandKind::remove; }

    std::shared_ptr<Shared> shared_;
    std::thread writing_, reading_;
    bool left_behind_ = false;
};

}  // namespace tenon::engine
