// SPDX-License-Identifier: MIT
// Queues and threads in front of the store.
#include "host/engine/spill_tier.h"

#include <chrono>

namespace tenon::engine {

SpillTier::SpillTier(std::unique_ptr<SpillStore> store) : shared_(std::make_shared<Shared>()) {
    shared_->store = std::move(store);
}

void SpillTier::start(Host& host, std::shared_ptr<WakeEvent> wake) {
    shared_->wake = std::move(wake);
    const auto begin = [&](Worker Shared::*worker, bool writes) {
        const std::lock_guard<std::mutex> lock(shared_->mutex);
        std::thread thread([shared = shared_, worker, writes, &host] {
            host.register_thread(writes ? "spill-write" : "spill-read");
            shared->run((*shared).*worker, writes);
        });
        ++shared_->running;
        return thread;
    };
    writing_ = begin(&Shared::writing, true);
    reading_ = begin(&Shared::reading, false);
}

bool SpillTier::stop(int64_t limit_us) noexcept {
    if (left_behind_) {
        return false;  // not waited for again
    }
    Shared& s = *shared_;
    {
        std::unique_lock<std::mutex> lock(s.mutex);
        s.stopping = true;
        s.writing.pushed.notify_all();
        s.reading.pushed.notify_all();
        // As long as something comes to its end the disk is slow, not dead.
        for (int64_t seen = -1; s.running > 0 && seen != s.commands_ended;) {
            seen = s.commands_ended;
            s.ended.wait_for(lock, std::chrono::microseconds(limit_us),
                             [&] { return s.running == 0 || s.commands_ended != seen; });
        }
        left_behind_ = s.running > 0;
    }
    for (std::thread* thread : {&writing_, &reading_}) {
        if (thread->joinable() && left_behind_) {
            thread->detach();
        } else if (thread->joinable()) {
            thread->join();
        }
    }
    return !left_behind_;
}

bool SpillTier::push(const SpillCommand& command) {
    Shared& s = *shared_;
    Worker& worker = is_write(command) ? s.writing : s.reading;
    const std::lock_guard<std::mutex> lock(s.mutex);
    const bool taken = !s.stopping && worker.commands.push(command);
    worker.pushed.notify_one();
    return taken;
}

void SpillTier::Shared::answer(const SpillEvent& event) {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        // The planner has at most kSpillJobs commands under way.
        TENON_CHECK(events.push(event), "{} answers wait", events.count);
    }
    if (wake) {
        wake->signal();
    }
}

bool SpillTier::pop(SpillEvent* out) {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    return shared_->events.pop(out);
}

void SpillTier::Shared::run(Worker& worker, bool writes) {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        SpillCommand command;
        worker.pushed.wait(lock, [&] { return worker.commands.count > 0 || stopping; });
        if (!worker.commands.pop(&command)) {
            break;
        }
        lock.unlock();
        SpillEvent event;
        if (writes ? store->write(command, &event) : store->read(command, &event)) {
            answer(event);
        }
        lock.lock();
        ++commands_ended;
        ended.notify_all();
    }
    --running;
    ended.notify_all();
}

void SpillTier::run_here() {
    Shared& s = *shared_;
    for (Worker* worker : {&s.writing, &s.reading}) {
        SpillCommand command;
        while (worker->commands.pop(&command)) {
            SpillEvent event;
            const bool has_answer = worker == &s.writing ? s.store->write(command, &event)
                                                         : s.store->read(command, &event);
            if (has_answer) {
                s.answer(event);
            }
        }
    }
}

}  // namespace tenon::engine
