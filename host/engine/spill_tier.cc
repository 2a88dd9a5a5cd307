// SPDX-License-Identifier: MIT
// Queues and threads in front of the store.
#include "host/engine/spill_tier.h"

namespace tenon::engine {

SpillTier::SpillTier(std::unique_ptr<SpillStore> store) : store_(std::move(store)) {}

void SpillTier::start(Host& host, std::shared_ptr<WakeEvent> wake) {
    wake_ = std::move(wake);
    writing_.thread = std::thread([this, &host] { run(writing_, host, true); });
    reading_.thread = std::thread([this, &host] { run(reading_, host, false); });
}

void SpillTier::stop() noexcept {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    for (Worker* worker : {&writing_, &reading_}) {
        worker->pushed.notify_all();
        if (worker->thread.joinable()) {
            worker->thread.join();
        }
    }
}

bool SpillTier::push(const SpillCommand& command) {
    Worker& worker = is_write(command) ? writing_ : reading_;
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool taken = !stopping_ && worker.commands.push(command);
    worker.pushed.notify_one();
    return taken;
}

void SpillTier::answer(const SpillEvent& event) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        // The planner has at most kSpillJobs commands under way.
        TENON_CHECK(events_.push(event), "{} answers wait", events_.count);
    }
    if (wake_) {
        wake_->signal();
    }
}

bool SpillTier::pop(SpillEvent* out) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return events_.pop(out);
}

void SpillTier::run(Worker& worker, Host& host, bool writes) {
    host.register_thread(writes ? "spill-write" : "spill-read");
    for (;;) {
        SpillCommand command;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            worker.pushed.wait(lock, [&] { return worker.commands.count > 0 || stopping_; });
            if (!worker.commands.pop(&command)) {
                return;
            }
        }
        SpillEvent event;
        if (writes ? store_->write(command, &event) : store_->read(command, &event)) {
            answer(event);
        }
    }
}

void SpillTier::run_here() {
    for (Worker* worker : {&writing_, &reading_}) {
        SpillCommand command;
        while (worker->commands.pop(&command)) {
            SpillEvent event;
            const bool has_answer = worker == &writing_ ? store_->write(command, &event)
                                                        : store_->read(command, &event);
            if (has_answer) {
                answer(event);
            }
        }
    }
}

}  // namespace tenon::engine
