// SPDX-License-Identifier: MIT
// LIFO page pool with reference counts.
#include "host/engine/page_allocator.h"

namespace tenon::engine {

PageAllocator::PageAllocator(int64_t pages)
    : references_(static_cast<size_t>(pages), 0), holds_(static_cast<size_t>(pages), 0) {
    free_.reserve(static_cast<size_t>(pages));
    for (int64_t page = pages - 1; page >= 0; --page) {
        free_.push_back(static_cast<int32_t>(page));
    }
}

bool PageAllocator::take(Span<int32_t> out) {
    if (out.size > free_.size()) {
        return false;
    }
    for (int32_t& page : out) {
        page = free_.back();
        free_.pop_back();
        references_[static_cast<size_t>(page)] = 1;
    }
    return true;
}

void PageAllocator::share(int32_t page) {
    int32_t& count = references_[static_cast<size_t>(page)];
    TENON_CHECK(count > 0, "page {} is free and cannot be shared", page);
    held_only_ -= is_held_only(page) ? 1 : 0;
    ++count;
}

void PageAllocator::release(int32_t page) {
    int32_t& count = references_[static_cast<size_t>(page)];
    TENON_CHECK(count > 0, "page {} is released once too often", page);
    if (--count == 0) {
        free_.push_back(page);
    }
    TENON_CHECK(count >= holds(page), "page {} is released by an owner that is none", page);
    held_only_ += is_held_only(page) ? 1 : 0;
}

void PageAllocator::hold(int32_t page) {
    share(page);
    ++holds_[static_cast<size_t>(page)];
    held_only_ += is_held_only(page) ? 1 : 0;
}

void PageAllocator::unhold(int32_t page) {
    int32_t& holds = holds_[static_cast<size_t>(page)];
    TENON_CHECK(holds > 0, "page {} is held by no cut", page);
    held_only_ -= is_held_only(page) ? 1 : 0;
    --holds;
    release(page);
}

}  // namespace tenon::engine
