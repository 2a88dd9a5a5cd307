// SPDX-License-Identifier: MIT
// The pread pool.
#include "plugins/storage_common/threads_backend.h"

#include "plugins/storage_common/signals.h"

#include <cerrno>

#include <unistd.h>

namespace tenon::storage {
namespace {

/// Bytes read, or -errno when there were none.
int64_t read_range(const RowFile& file, const ReadRange& range, std::byte* buffer) {
    const uint64_t wanted = range.end - range.begin;
    uint64_t got = 0;
    while (got < wanted) {
        const ssize_t n =
            ::pread(file.fd(), buffer + got, wanted - got, static_cast<off_t>(range.begin + got));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return got > 0 ? static_cast<int64_t>(got) : -errno;
        }
        got += static_cast<uint64_t>(n);
        // At the end of the file O_DIRECT would refuse the unaligned rest.
        if (n == 0 || (file.direct() && got % kBlockBytes != 0)) {
            break;
        }
    }
    return static_cast<int64_t>(got);
}

}  // namespace

ThreadsBackend::ThreadsBackend(Host& host, int32_t threads) : host_(host), thread_count_(threads) {}

Status ThreadsBackend::start(std::span<Read> reads) noexcept {
    return guard([&]() -> Status {
        TENON_TRY(arena_.share_out(reads, max_read_bytes()));
        queued_.resize(reads.size());
        finished_.reserve(reads.size());
        const SignalsBlocked blocked;
        for (int32_t i = 0; i < thread_count_; ++i) {
            threads_.emplace_back([this, i] { work(i); });
        }
        return {};
    });
}

ThreadsBackend::~ThreadsBackend() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    work_arrived_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

void ThreadsBackend::queue(Read& read) noexcept {
    {
        const std::lock_guard lock(mutex_);
        queued_[(queue_head_ + queue_size_++) % queued_.size()] = &read;
    }
    work_arrived_.notify_one();
}

Status ThreadsBackend::wait(std::vector<Completion>* done) noexcept {
    std::unique_lock lock(mutex_);
    lane_called_.wait(lock, [&] { return woken_ || !finished_.empty(); });
    woken_ = false;
    done->insert(done->end(), finished_.begin(), finished_.end());
    finished_.clear();
    return {};
}

void ThreadsBackend::wake() noexcept {
    {
        const std::lock_guard lock(mutex_);
        woken_ = true;
    }
    lane_called_.notify_one();
}

void ThreadsBackend::work(int32_t number) {
    host_.register_thread(format("engram_read_{}", number));
    std::unique_lock lock(mutex_);
    while (true) {
        work_arrived_.wait(lock, [&] { return stopping_ || queue_size_ > 0; });
        if (stopping_) {
            return;
        }
        Read* read = queued_[queue_head_];
        queue_head_ = (queue_head_ + 1) % queued_.size();
        --queue_size_;
        lock.unlock();
        const int64_t result = read_range(*read->file, read->range, read->buffer);
        lock.lock();
        finished_.push_back({read, result, read->buffer});
        lane_called_.notify_one();
    }
}

}  // namespace tenon::storage
