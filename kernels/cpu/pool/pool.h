// SPDX-License-Identifier: MIT
// The CPU worker pool: shares one loop at a time between the calling thread and its workers.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tenon/compute.h"
#include "tenon/host.h"

namespace tenon::cpu {

/// Cores that this process may use, at least 1: those of its affinity, and no more than the quota
/// of its cgroup (version 2: cpu.max of the group that `membership` names and of those above it,
/// rounded up). A file that is missing or says something else limits nothing.
int64_t usable_cores(const std::string& cgroups = "/sys/fs/cgroup",
                     const std::string& membership = "/proc/self/cgroup");

/// Thread: any thread may call `run`; while one call is shared, others (and calls from inside a
/// body) run on their own thread. Workers spin briefly after a loop, since the next one is often
/// microseconds away, then sleep.
class Pool final : public ParallelFor {
  public:
    /// `threads` counts the caller; 0 = usable_cores(). `host` may be null.
    Pool(int64_t threads, Host* host);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    void* query(StrView facet) noexcept override;
    void release() noexcept override {}  // owned by the device
    void run(int64_t n, int64_t grain, Body body, void* arg) noexcept override;
    int32_t workers() noexcept override { return static_cast<int32_t>(threads_.size()) + 1; }

  private:
    struct Job {
        int64_t n = 0;
        int64_t grain = 1;
        int64_t units = 0;
        int64_t batch = 1;
        Body body = nullptr;
        void* arg = nullptr;
    };

    void serve(int32_t worker);
    void take_units(int32_t worker);
    uint32_t next_epoch(uint32_t last);

    Job job_;                                     // written only while no worker is active
    alignas(64) std::atomic<int64_t> next_{0};    // next unit of the open job
    alignas(64) std::atomic<uint32_t> epoch_{0};  // odd: a job is open
    alignas(64) std::atomic<int32_t> active_{0};  // workers that may be reading job_
    std::atomic<int32_t> sleepers_{0};            // since the last wake
    alignas(64) std::atomic_flag busy_ = ATOMIC_FLAG_INIT;  // a caller owns job_
    std::atomic<bool> stop_{false};
    std::vector<std::thread> threads_;
    Host* host_;
};

}  // namespace tenon::cpu
