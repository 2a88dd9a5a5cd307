// SPDX-License-Identifier: MIT
// Which pages of the pool are free and who refers to the others: LIFO free list and reference
// counts.
#pragma once

#include <vector>

#include "tenon/base.h"

namespace tenon::engine {

/// Rank 0's engine thread. Never allocates after construction.
///
/// LIFO, so that pages just freed are used next: their memory is warm, and the order is
/// deterministic.
class PageAllocator {
  public:
    explicit PageAllocator(int64_t pages);

    int64_t total() const { return static_cast<int64_t>(references_.size()); }
    int64_t free() const { return static_cast<int64_t>(free_.size()); }
    /// Takes `out.size` pages with one reference each; false: not enough, nothing taken.
    bool take(Span<int32_t> out);
    /// One more owner of a page that has one.
    void share(int32_t page);
    /// One owner less; at none the page is free.
    void release(int32_t page);
    int32_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }

    /// The same for a kept cut as owner: pages that only cuts refer to can be had by giving up
    /// cuts.
    void hold(int32_t page);
    void unhold(int32_t page);
    int32_t holds(int32_t page) const { return holds_[static_cast<size_t>(page)]; }
    /// Pages that cuts and nobody else refer to.
    int64_t held_only() const { return held_only_; }

  private:
    std::vector<int32_t> free_;  // the back is next
    bool is_held_only(int32_t page) const {
        const auto p = static_cast<size_t>(page);
        return holds_[p] > 0 && holds_[p] == references_[p];
    }

    std::vector<int32_t> references_;  // of slots and cuts
    std::vector<int32_t> holds_;       // of cuts
    int64_t held_only_ = 0;
};

}  // namespace tenon::engine
