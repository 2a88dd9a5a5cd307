// SPDX-License-Identifier: MIT
// Keeping the largest of a stream of scores: what index.blocks, index.topk and their tests share.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tenon::cpu {

/// The `capacity` largest (score, index) pairs offered in ascending index order; ties go to the
/// lower index. NaN and -inf are never kept. The heap's root is the pair that goes next.
template <int64_t kCapacity>
class Largest {
  public:
    explicit Largest(int64_t capacity) : capacity_(capacity) {}

    void offer(float score, int32_t index) {
        if (size_ == capacity_) {
            // Later indices lose ties, so only a larger score gets in; NaN compares false.
            if (size_ > 0 && score > heap_[0].score) {
                std::pop_heap(heap_, heap_ + size_, Better());
                heap_[size_ - 1] = {score, index};
                std::push_heap(heap_, heap_ + size_, Better());
            }
            return;
        }
        if (score > kNothing) {
            heap_[size_++] = {score, index};
            std::push_heap(heap_, heap_ + size_, Better());
        }
    }
    /// The score that a new pair must exceed; -inf while there is room.
    float bar() const { return size_ == capacity_ && size_ > 0 ? heap_[0].score : kNothing; }
    /// Writes the kept indices, ascending, then -1 up to `n`; returns how many were kept.
    int32_t take(int32_t* out, int64_t n) {
        for (int64_t i = 0; i < size_; ++i) {
            out[i] = heap_[i].index;
        }
        std::sort(out, out + size_);
        std::fill(out + size_, out + n, -1);
        return static_cast<int32_t>(size_);
    }

  private:
    static constexpr float kNothing = -__builtin_inff();
    struct Pair {
        float score;
        int32_t index;
    };
    struct Better {
        bool operator()(const Pair& a, const Pair& b) const {
            return a.score > b.score || (a.score == b.score && a.index < b.index);
        }
    };

    int64_t capacity_;
    int64_t size_ = 0;
    Pair heap_[kCapacity];
};

}  // namespace tenon::cpu
