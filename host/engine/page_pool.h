// SPDX-License-Identifier: MIT
// Free pages of the model's pool. One owner a page in this version.
#pragma once

#include <cstdint>
#include <vector>

namespace tenon {

/// LIFO free list; allocates nothing after construction. Thread: engine.
class PagePool {
  public:
    explicit PagePool(int64_t pages) : total_(pages) {
        free_.reserve(static_cast<size_t>(pages));
        for (int64_t i = pages; i-- > 0;) {
            free_.push_back(static_cast<int32_t>(i));
        }
    }
    int64_t free() const { return static_cast<int64_t>(free_.size()); }
    int64_t total() const { return total_; }
    /// False, and nothing taken, if fewer than `count` are free.
    bool take(int64_t count, std::vector<int32_t>* out) {
        if (count > free()) {
            return false;
        }
        for (; count > 0; --count) {
            out->push_back(free_.back());
            free_.pop_back();
        }
        return true;
    }
    void give_back(std::vector<int32_t>* pages) {
        free_.insert(free_.end(), pages->begin(), pages->end());
        pages->clear();
    }

  private:
    int64_t total_;
    std::vector<int32_t> free_;
};

}  // namespace tenon
