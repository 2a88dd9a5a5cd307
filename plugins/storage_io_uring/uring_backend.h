// SPDX-License-Identifier: MIT
// Reads through one io_uring, driven by the lane's thread alone.
#pragma once

#include "plugins/storage_common/read_arena.h"

#include <liburing.h>

#include <vector>

namespace tenon::storage {

/// Why io_uring cannot be used here; empty: it can. Creates a small ring and ends it.
///
/// Refusals are EPERM (seccomp of a container, kernel.io_uring_disabled), ENOSYS (kernel,
/// emulator), EINVAL (a kernel without the plainest setup) and ENOMEM (locked memory, before
/// Linux 5.12).
Result<std::string> io_uring_refusal();

class UringBackend final : public ReadBackend {
  public:
    explicit UringBackend(int32_t depth) : depth_(depth) {}
    ~UringBackend() override;

    const char* engine() const noexcept override { return "io_uring"; }
    int32_t depth() const noexcept override { return depth_; }
    uint64_t max_read_bytes() const noexcept override { return read_bytes_for_depth(depth_); }
    /// errors  unavailable: io_uring is refused (see io_uring_refusal); io: no descriptor left;
    ///         does_not_fit: no memory for the buffers
    Status start(std::span<Read> reads) noexcept override;
    void attach(RowFile& file) noexcept override;
    void detach(RowFile& file) noexcept override;
    void queue(Read& read) noexcept override;
    Status wait(std::vector<Completion>* done) noexcept override;
    void wake() noexcept override;

    bool registered_buffers() const { return registered_buffers_; }
    bool registered_files() const { return !files_.empty(); }

  private:
    io_uring_sqe* next_entry();
    void arm_wake();

    const int32_t depth_;
    ReadArena arena_;
    io_uring ring_{};
    bool has_ring_ = false;
    bool registered_buffers_ = false;
    std::vector<int> files_;  // registered descriptors by index, -1: free; empty: not allowed
    int wake_fd_ = -1;
    bool wake_armed_ = false;
    uint64_t wake_count_ = 0;  // the kernel writes it
};

}  // namespace tenon::storage
