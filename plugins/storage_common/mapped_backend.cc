// SPDX-License-Identifier: MIT
// Faulting in of mapped rows.
#include "plugins/storage_common/mapped_backend.h"

#include <algorithm>
#include <cerrno>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Linux 5.14; older C library headers lack the name.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace tenon::storage {
namespace {

/// Faults pages in by reading a byte of each through the descriptor (kernels before 5.14).
int populate_by_reading(const RowFile& file, uint64_t begin, uint64_t bytes) {
    for (uint64_t at = begin; at < begin + bytes; at += kBlockBytes) {
        char byte = 0;
        const ssize_t n = ::pread(file.fd(), &byte, 1, static_cast<off_t>(at));
        if (n <= 0) {
            return n < 0 ? errno : EIO;
        }
    }
    return 0;
}

/// 0 once the pages can be touched, else an errno.
int populate(const RowFile& file, uint64_t begin, uint64_t bytes) {
    auto* at = const_cast<std::byte*>(file.mapping() + begin);
    while (::madvise(at, bytes, MADV_POPULATE_READ) != 0) {
        if (errno == EINVAL) {
            return populate_by_reading(file, begin, bytes);
        }
        if (errno != EINTR && errno != EAGAIN) {
            return errno == EFAULT || errno == EHWPOISON ? EIO : errno;
        }
    }
    return 0;
}

/// Bytes from range.begin on that can be touched, or -errno.
///
/// The size is asked each time: behind a shortened end the last page still reads, as zeros. A file
/// that shrinks between this and the copy still ends the process; tables in use are not to change.
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
    if (const int number = populate(file, range.begin, bytes); number != 0) {
        return -number;
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
