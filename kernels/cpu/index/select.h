// SPDX-License-Identifier: MIT
// Keeping the largest of a stream of scores: what index.blocks, index.topk and their tests share.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>

namespace tenon::cpu {

/// The `capacity` largest (score, index) pairs offered in ascending index order; ties go to the
/// lower index. NaN and -inf are never kept. The heap's root is the pair that goes next.
///
/// A pair is one key: the score as an integer of the same order, above the inverted index. So a
/// pair is better exactly if its key is larger.
template <int64_t kCapacity>
class Largest {
  public:
    explicit Largest(int64_t capacity) : capacity_(capacity) {}

    void offer(float score, int32_t index) {
        if (size_ == capacity_) {
            // Later indices lose ties, so only a larger score gets in; NaN compares false.
            if (size_ > 0 && score > bar_) {
                sink(key_of(score, index));
                bar_ = score_of(heap_[0]);
            }
            return;
        }
        if (score > kNothing) {
            heap_[size_++] = key_of(score, index);
            std::push_heap(heap_, heap_ + size_, std::greater<uint64_t>());
            bar_ = score_of(heap_[0]);
        }
    }
    /// The score that a new pair must exceed; -inf while there is room.
    float bar() const { return size_ == capacity_ && size_ > 0 ? bar_ : kNothing; }
    /// Writes the kept indices, ascending, then -1 up to `n`; returns how many were kept.
    int32_t take(int32_t* out, int64_t n) {
        for (int64_t i = 0; i < size_; ++i) {
            out[i] = static_cast<int32_t>(~static_cast<uint32_t>(heap_[i]));
        }
        std::sort(out, out + size_);
        std::fill(out + size_, out + n, -1);
        return static_cast<int32_t>(size_);
    }

  private:
    static constexpr float kNothing = -__builtin_inff();
    static constexpr uint32_t kSign = 0x80000000U;

    static uint64_t key_of(float score, int32_t index) {
        const auto bits = std::bit_cast<uint32_t>(score + 0.0F);  // -0 and 0 are equal
        const uint32_t ordered = (bits & kSign) != 0 ? ~bits : bits | kSign;
        return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(index);
    }
    static float score_of(uint64_t key) {
        const auto ordered = static_cast<uint32_t>(key >> 32);
        return std::bit_cast<float>((ordered & kSign) != 0 ? ordered & ~kSign : ~ordered);
    }
    /// `key` in place of the root.
    void sink(uint64_t key) {
        int64_t hole = 0;
        for (int64_t child = 1; child < size_; child = 2 * hole + 1) {
            child += child + 1 < size_ && heap_[child + 1] < heap_[child] ? 1 : 0;
            if (heap_[child] >= key) {
                break;
            }
            heap_[hole] = heap_[child];
            hole = child;
        }
        heap_[hole] = key;
    }

    int64_t capacity_;
    int64_t size_ = 0;
    float bar_ = kNothing;  // the root's score
    uint64_t heap_[kCapacity];
};

}  // namespace tenon::cpu
