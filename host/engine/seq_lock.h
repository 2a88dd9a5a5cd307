// SPDX-License-Identifier: MIT
// A value that one thread writes and any thread reads whole, without the writer ever waiting.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <type_traits>

namespace tenon::engine {

/// `T` is plain data. The words are atomics, so that a torn read is only discarded, never
/// undefined.
template <class T>
class SeqLock {
    static_assert(std::is_trivially_copyable_v<T>);

  public:
    void write(const T& value) noexcept {
        uint64_t words[kWords] = {};
        std::memcpy(words, &value, sizeof value);
        const uint64_t turn = turn_.load(std::memory_order_relaxed);
        turn_.store(turn + 1, std::memory_order_relaxed);
        for (size_t i = 0; i < kWords; ++i) {
            // Release keeps each word behind the odd turn: a reader that saw the word sees the turn
            // too.
            words_[i].store(words[i], std::memory_order_release);
        }
        turn_.store(turn + 2, std::memory_order_release);
    }

    T read() const noexcept {
        uint64_t words[kWords];
        for (;;) {
            const uint64_t before = turn_.load(std::memory_order_acquire);
            for (size_t i = 0; i < kWords; ++i) {
                words[i] = words_[i].load(std::memory_order_acquire);
            }
            if (before % 2 == 0 && turn_.load(std::memory_order_relaxed) == before) {
                break;
            }
        }
        T value;
        std::memcpy(static_cast<void*>(&value), words, sizeof value);
        return value;
    }

  private:
    static constexpr size_t kWords = (sizeof(T) + 7) / 8;
    std::atomic<uint64_t> turn_{0};
    std::array<std::atomic<uint64_t>, kWords> words_{};
};

}  // namespace tenon::engine
