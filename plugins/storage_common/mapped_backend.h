// SPDX-License-Identifier: MIT
// "Reads" from a mapping: asks the kernel to read ahead, then lets rows be copied straight from the
// page cache.
#pragma once

#include "plugins/storage_common/read_backend.h"

#include <condition_variable>
#include <mutex>

namespace tenon::storage {

/// Depth without threads: `queue` starts an asynchronous read-ahead, `wait` takes the oldest read
/// and faults its pages in where a failure is a return value. Touching them first would end the
/// process with SIGBUS when the file was cut or the drive failed.
class MappedBackend final : public ReadBackend {
  public:
    explicit MappedBackend(int32_t depth) : depth_(depth) {}
    ~MappedBackend() override = default;

    const char* engine() const noexcept override { return "mmap"; }
    int32_t depth() const noexcept override { return depth_; }
    uint64_t max_read_bytes() const noexcept override { return uint64_t{64} << 10; }
    Status start(std::span<Read> reads) noexcept override;
    void attach(RowFile&) noexcept override {}
    void detach(RowFile&) noexcept override {}
    void queue(Read& read) noexcept override;
    Status wait(std::vector<Completion>* done) noexcept override;
    void wake() noexcept override;

  private:
    const int32_t depth_;

    // Lane thread only: a ring of depth_ entries.
    std::vector<Read*> queued_;
    size_t head_ = 0;
    size_t size_ = 0;

    std::mutex mutex_;  // guards woken_
    std::condition_variable called_;
    bool woken_ = false;
};

}  // namespace tenon::storage
