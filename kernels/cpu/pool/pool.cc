// SPDX-License-Identifier: MIT
// Protocol of the pool: a caller opens an epoch (odd), everybody takes units, the caller closes it
// and waits until no worker is active. A worker becomes active first and then looks at the epoch
// again, so it can never read a job that is being replaced.
// A worker that gives up spinning counts itself as a sleeper and looks at the epoch once more; a
// caller opens the epoch and looks at the count after it. So either sees the other.
#include "pool/pool.h"

#include <algorithm>
#include <chrono>
#include <fstream>

namespace tenon::cpu {

namespace {

// Longer than the pause between two loops of one forward pass, far below a scheduler tick.
constexpr std::chrono::microseconds kSpin{40};
constexpr int kSpinsPerLook = 32;
constexpr int kSpinsBeforeYield = 400;  // about 10 us
constexpr int64_t kBatchesPerWorker = 6;

thread_local int32_t current_worker = -1;  // >= 0 while inside a body

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void run_units(ParallelFor::Body body, void* arg, int64_t n, int64_t grain, int64_t first,
               int64_t last, int32_t worker) {
    for (int64_t unit = first; unit < last; ++unit) {
        body(arg, unit * grain, std::min(n, (unit + 1) * grain), worker);
    }
}

/// Whole cores of "quota period" (microseconds); INT64_MAX for "max period" and for no such file.
int64_t quota_cores(const std::string& file) {
    int64_t quota = 0, period = 0;
    std::ifstream in(file);
    return in >> quota >> period && quota > 0 && period > 0 ? (quota - 1) / period + 1 : INT64_MAX;
}

}  // namespace

int64_t usable_cores(const std::string& cgroups, const std::string& membership) {
    int64_t cores = std::max(1u, std::thread::hardware_concurrency());
    std::string group, line;
    std::ifstream in(membership);
    while (group.empty() && std::getline(in, line)) {
        group = line.rfind("0::/", 0) == 0 ? line.substr(3) : "";
    }
    // From the group itself to the root, which has the file in a container only.
    for (;;) {
        cores = std::min(cores, quota_cores(cgroups + group + "/cpu.max"));
        if (group.empty()) {
            return cores;
        }
        group.resize(group.rfind('/'));
    }
}

Pool::Pool(int64_t threads, Host* host) : host_(host) {
    if (threads <= 0) {
        threads = usable_cores();
    }
    threads_.reserve(static_cast<size_t>(threads));
    for (int32_t i = 1; i < threads; ++i) {
        threads_.emplace_back([this, i] { serve(i); });
    }
}

Pool::~Pool() {
    stop_.store(true);
    epoch_.fetch_add(2);
    epoch_.notify_all();
    for (std::thread& t : threads_) {
        t.join();
    }
}

void* Pool::query(StrView facet) noexcept {
    return facet == StrView(ParallelFor::kFacet) ? static_cast<ParallelFor*>(this) : nullptr;
}

void Pool::run(int64_t n, int64_t grain, Body body, void* arg) noexcept {
    if (n <= 0) {
        return;
    }
    grain = std::max<int64_t>(grain, 1);
    const int64_t units = (n + grain - 1) / grain;
    const bool nested = current_worker >= 0;
    if (units == 1 || threads_.empty() || nested || busy_.test_and_set(std::memory_order_acquire)) {
        run_units(body, arg, n, grain, 0, units, nested ? current_worker : 0);
        return;
    }
    job_ = {n,    grain, units, std::max<int64_t>(1, units / (workers() * kBatchesPerWorker)),
            body, arg};
    next_.store(0, std::memory_order_relaxed);
    epoch_.fetch_add(1);
    // One wake for each sleep: on a busy machine a woken worker may not run for many loops.
    if (sleepers_.load() > 0 && sleepers_.exchange(0) > 0) {
        epoch_.notify_all();
    }
    take_units(0);
    epoch_.fetch_add(1);
    for (int spins = 0; active_.load() != 0; ++spins) {
        if (spins < kSpinsBeforeYield) {
            relax();
        } else {
            std::this_thread::yield();  // a worker may wait for this very core
        }
    }
    busy_.clear(std::memory_order_release);
}

void Pool::take_units(int32_t worker) {
    current_worker = worker;
    const Job job = job_;
    for (;;) {
        const int64_t first = next_.fetch_add(job.batch, std::memory_order_relaxed);
        if (first >= job.units) {
            break;
        }
        run_units(job.body, job.arg, job.n, job.grain, first,
                  std::min(job.units, first + job.batch), worker);
    }
    current_worker = -1;
}

uint32_t Pool::next_epoch(uint32_t last) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    for (;;) {
        for (int i = 0; i < kSpinsPerLook; ++i) {
            const uint32_t now = epoch_.load(std::memory_order_acquire);
            if (now != last) {
                return now;
            }
            relax();
        }
        if (std::chrono::steady_clock::now() >= until) {
            sleepers_.fetch_add(1);
            epoch_.wait(last);
            return epoch_.load(std::memory_order_acquire);
        }
    }
}

void Pool::serve(int32_t worker) {
    if (host_ != nullptr) {
        host_->register_thread(format("cpu-{}", worker));
    }
    uint32_t seen = 0;
    while (!stop_.load(std::memory_order_relaxed)) {
        seen = next_epoch(seen);
        if (seen % 2 == 0) {
            continue;
        }
        active_.fetch_add(1);
        if (epoch_.load() == seen) {
            take_units(worker);
        }
        active_.fetch_sub(1);
    }
}

}  // namespace tenon::cpu
