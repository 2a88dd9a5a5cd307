// SPDX-License-Identifier: MIT
// Faulting in of mapped rows.
#include "plugins/storage_common/mapped_backend.h"

#include <algorithm>
#include <cerrno>

#include <sys/mman.h>
#include <sys/stat.h>

// Linux 5.14; older C library headers lack the name.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace tenon::storage {
namespace {

/// Bytes from range.begin on that can be touched, or -errno.
///
/// The size is asked each time: behind a shortened end the last page still reads, as zeros.
int64_t fault_in(const RowFile& file, const ReadRange& range) {
    struct stat info {};
    if (::fstat(file.fd(), &info) != 0) {
        return -errno;
    }
    const uint64_t file_end = std::min(file.bytes(), static_cast<uint64_t>(info.st_size));
    if (file_end <= range.begin) {
        return 0;
    }
    const uint64_t bytes = std::min(range.end, file_end) - range.begin;
    auto* at = const_cast<std::byte*>(file.mapping() + range.begin);
    while (::madvise(at, bytes, MADV_POPULATE_READ) != 0) {
        if (errno != EINTR && errno != EAGAIN) {
            return errno == EFAULT || errno == EHWPOISON ? -EIO : -errno;
        }
    }
    return static_cast<int64_t>(bytes);
}

}  // namespace

Status MappedBackend::start(std::span<Read> reads) noexcept {
    return guard([&] { queued_.resize(reads.size()); });
}

void MappedBackend::queue(Read& read) noexcept {
    queued_[(head_ + size_++) % queued_.size()] = &read;
    if (read.range.begin < read.file->bytes()) {
        const uint64_t bytes = std::min(read.range.end, read.file->bytes()) - read.range.begin;
        // Advice only: a refusal costs time, not correctness.
        static_cast<void>(::madvise(const_cast<std::byte*>(read.file->mapping()) + read.range.begin,
                                    bytes, MADV_WILLNEED));
    }
}

Status MappedBackend::wait(std::vector<Completion>* done) noexcept {
    if (size_ == 0) {
        std::unique_lock lock(mutex_);
        called_.wait(lock, [&] { return woken_; });
        woken_ = false;
        return {};
    }
    Read* read = queued_[head_];
    head_ = (head_ + 1) % queued_.size();
    --size_;
    const int64_t result = fault_in(*read->file, read->range);
    done->push_back({read, result, read->file->mapping() + read->range.begin});
    return {};
}

void MappedBackend::wake() noexcept {
    {
        const std::lock_guard lock(mutex_);
        woken_ = true;
    }
    called_.notify_one();
}

}  // namespace tenon::storage
