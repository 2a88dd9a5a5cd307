// SPDX-License-Identifier: MIT
// Single-producer single-consumer rings between the engine thread and the delivery thread.
#pragma once

#include <atomic>
#include <memory>

#include "tenon/base.h"

namespace tenon::engine {

/// Fixed number of trivially copyable entries. `push` by one thread, `pop` by one other.
template <class T>
class EntryRing {
  public:
    explicit EntryRing(uint64_t capacity)
        : capacity_(capacity), entries_(std::make_unique<T[]>(capacity)) {}

    uint64_t room() const noexcept {
        return capacity_ -
               (head_.load(std::memory_order_relaxed) - tail_.load(std::memory_order_acquire));
    }
    /// The caller has checked `room`.
    void push(const T& entry) noexcept {
        const uint64_t head = head_.load(std::memory_order_relaxed);
        entries_[head % capacity_] = entry;
        head_.store(head + 1, std::memory_order_release);
    }
    bool pop(T* out) noexcept {
        const uint64_t tail = tail_.load(std::memory_order_relaxed);
        if (tail == head_.load(std::memory_order_acquire)) {
            return false;
        }
        *out = entries_[tail % capacity_];
        tail_.store(tail + 1, std::memory_order_release);
        return true;
    }
    bool empty() const noexcept {
        return tail_.load(std::memory_order_acquire) == head_.load(std::memory_order_acquire);
    }

  private:
    const uint64_t capacity_;
    std::unique_ptr<T[]> entries_;
    alignas(64) std::atomic<uint64_t> head_{0};
    alignas(64) std::atomic<uint64_t> tail_{0};
};

/// Runs of elements that stay contiguous: a run that would wrap starts again at the front.
/// Producer: room, write. Consumer: at, release.
template <class T>
class RunRing {
  public:
    explicit RunRing(uint64_t capacity)
        : capacity_(capacity), data_(std::make_unique<T[]>(capacity)) {}

    /// True if runs of `count` elements in all, each of at most `longest`, fit wherever the ring
    /// stands.
    bool has_room(uint64_t count, uint64_t longest) const noexcept {
        const uint64_t used = head_ - tail_.load(std::memory_order_acquire);
        return used + count + longest <= capacity_;
    }
    /// Copies a run in and returns its position; the caller has checked `has_room`.
    uint64_t write(const T* run, uint64_t count) noexcept {
        if (head_ % capacity_ + count > capacity_) {
            head_ += capacity_ - head_ % capacity_;
        }
        const uint64_t at = head_;
        for (uint64_t i = 0; i < count; ++i) {
            data_[at % capacity_ + i] = run[i];
        }
        head_ += count;
        return at;
    }
    const T* at(uint64_t position) const noexcept { return data_.get() + position % capacity_; }
    /// Everything before `position` may be overwritten.
    void release(uint64_t position) noexcept { tail_.store(position, std::memory_order_release); }

  private:
    const uint64_t capacity_;
    std::unique_ptr<T[]> data_;
    uint64_t head_ = 0;  // producer only; the entry that names a run publishes its elements
    std::atomic<uint64_t> tail_{0};
};

}  // namespace tenon::engine
