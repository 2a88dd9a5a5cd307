// SPDX-License-Identifier: MIT
// The seam between "which bytes are wanted" and "how the kernel is asked": io_uring, pread threads,
// a mapping, or a test's own.
#pragma once

#include "plugins/storage_common/row_file.h"
#include "plugins/storage_common/row_plan.h"

#include <span>
#include <vector>

namespace tenon::storage {

/// One read under way. The lane owns it and fills everything but `buffer` and `next`.
struct Read {
    RowFile* file = nullptr;
    ReadRange range;
    int32_t index = 0;            ///< 0 … depth() - 1
    std::byte* buffer = nullptr;  ///< the backend's memory for this index, if it uses any

    void* owner = nullptr;  ///< the lane's: what the bytes are for
    uint64_t generation = 0;
    int32_t attempt = 0;
};

struct Completion {
    Read* read = nullptr;
    int64_t result = 0;               ///< bytes that are valid from range.begin on, or -errno
    const std::byte* data = nullptr;  ///< them; valid until the read is queued again
};

/// Reads ranges of files. Thread: the lane's, except `wake`.
///
/// A backend is started, used and destroyed on one thread, so a ring may insist on a single issuer.
class ReadBackend {
  public:
    virtual ~ReadBackend() = default;

    virtual const char* engine() const noexcept = 0;           ///< "io_uring", "threads", "mmap"
    virtual int32_t depth() const noexcept = 0;                ///< most reads under way, >= 1
    virtual uint64_t max_read_bytes() const noexcept = 0;      ///< multiple of kBlockBytes
    virtual Status start(std::span<Read> reads) noexcept = 0;  ///< depth() of them: sets buffers
    virtual void attach(RowFile& file) noexcept = 0;
    virtual void detach(RowFile& file) noexcept = 0;  ///< no read of it is under way

    /// Takes a read; it may start now or in `wait`. Never more than depth() are under way.
    virtual void queue(Read& read) noexcept = 0;
    /// Starts what is queued and blocks until something completed or `wake` was called; a wake
    /// before the call counts. Appends to `done`, whose capacity is depth(); may append nothing.
    /// errors  any: the backend is broken, reads under way never complete
    virtual Status wait(std::vector<Completion>* done) noexcept = 0;
    /// Ends one `wait`. Thread: any.
    virtual void wake() noexcept = 0;
};

/// Room for one read each of `depth`: large where few reads share 4 MiB, never below two blocks.
constexpr uint64_t read_bytes_for_depth(int32_t depth) {
    constexpr uint64_t kArenaBytes = uint64_t{4} << 20;
    constexpr uint64_t kMost = uint64_t{64} << 10;  // beyond it a read occupies the drive for long
    constexpr uint64_t kLeast = 2 * kBlockBytes;    // a small row may straddle a block border
    const uint64_t share = block_floor(kArenaBytes / static_cast<uint64_t>(depth));
    return share > kMost ? kMost : share < kLeast ? kLeast : share;
}

}  // namespace tenon::storage
