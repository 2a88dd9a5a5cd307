// SPDX-License-Identifier: MIT
// Block-aligned memory that reads land in before rows are copied out.
#pragma once

#include "plugins/storage_common/read_backend.h"

#include <span>

#include <sys/mman.h>

namespace tenon::storage {

/// Owns one anonymous mapping, split evenly over the reads.
class ReadArena {
  public:
    ReadArena() = default;
    ReadArena(const ReadArena&) = delete;
    ReadArena& operator=(const ReadArena&) = delete;
    ~ReadArena() {
        if (base_ != nullptr) {
            ::munmap(base_, bytes_);
        }
    }

    /// Gives each read a buffer of `bytes_each`. errors  does_not_fit
    Status share_out(std::span<Read> reads, uint64_t bytes_each) {
        bytes_ = reads.size() * bytes_each;
        void* at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (at == MAP_FAILED) {
            return error(Code::does_not_fit, "no memory for {} read buffers of {} bytes",
                         reads.size(), bytes_each);
        }
        base_ = static_cast<std::byte*>(at);
        for (size_t i = 0; i < reads.size(); ++i) {
            reads[i].buffer = base_ + i * bytes_each;
        }
        return {};
    }

    std::byte* base() const { return base_; }
    uint64_t bytes() const { return bytes_; }

  private:
    std::byte* base_ = nullptr;
    uint64_t bytes_ = 0;
};

}  // namespace tenon::storage
