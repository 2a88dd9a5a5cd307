// SPDX-License-Identifier: MIT
// Replaces the global operators; a separate file, because inlined they look like a mismatch of new
// and free to GCC 12.
#include "tests/unit/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> counting_{false};
std::atomic<int64_t> allocations_{0};

void* counted(std::size_t bytes) {
    if (counting_.load(std::memory_order_relaxed)) {
        ++allocations_;
    }
    void* p = std::malloc(bytes == 0 ? 1 : bytes);
    if (p == nullptr) {
        throw std::bad_alloc();
    }
    return p;
}

}  // namespace

void* operator new(std::size_t bytes) {
    return counted(bytes);
}
void* operator new[](std::size_t bytes) {
    return counted(bytes);
}
void operator delete(void* p) noexcept {
    std::free(p);
}
void operator delete[](void* p) noexcept {
    std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
    std::free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
    std::free(p);
}

namespace tenon::testing {

AllocationCounter::AllocationCounter() {
    allocations_ = 0;
    counting_ = true;
}
AllocationCounter::~AllocationCounter() {
    counting_ = false;
}
int64_t AllocationCounter::count() const {
    return allocations_;
}

}  // namespace tenon::testing
