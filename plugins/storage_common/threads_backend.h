// SPDX-License-Identifier: MIT
// Reads with pread on a pool of threads: what remains where the kernel or a container refuses
// io_uring.
#pragma once

#include "tenon/host.h"

#include "plugins/storage_common/read_arena.h"

#include <condition_variable>
#include <mutex>
#include <thread>

namespace tenon::storage {

class ThreadsBackend final : public ReadBackend {
  public:
    ThreadsBackend(Host& host, int32_t threads);
    ~ThreadsBackend() override;

    const char* engine() const noexcept override { return "threads"; }
    int32_t depth() const noexcept override { return 2 * thread_count_; }
    uint64_t max_read_bytes() const noexcept override { return read_bytes_for_depth(depth()); }
    Status start(std::span<Read> reads) noexcept override;
    void attach(RowFile&) noexcept override {}
    void detach(RowFile&) noexcept override {}
    void queue(Read& read) noexcept override;
    Status wait(std::vector<Completion>* done) noexcept override;
    void wake() noexcept override;

  private:
    void work(int32_t number);

    Host& host_;
    const int32_t thread_count_;
    ReadArena arena_;

    std::mutex mutex_;  // guards everything below except threads_
    std::condition_variable work_arrived_;
    std::condition_variable lane_called_;
    // Rings of depth() entries, so that a steady state allocates nothing.
    std::vector<Read*> queued_;
    size_t queue_head_ = 0;
    size_t queue_size_ = 0;
    std::vector<Completion> finished_;
    bool woken_ = false;
    bool stopping_ = false;

    std::vector<std::thread> threads_;
};

}  // namespace tenon::storage
