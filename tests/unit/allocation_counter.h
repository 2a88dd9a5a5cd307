// SPDX-License-Identifier: MIT
// Counts what a test program allocates with operator new, on every thread. Link
// allocation_counter.cc to use it.
#pragma once

#include <cstdint>

namespace tenon::testing {

/// Counts from its construction on; one at a time.
class AllocationCounter {
  public:
    AllocationCounter();
    ~AllocationCounter();
    AllocationCounter(const AllocationCounter&) = delete;
    AllocationCounter& operator=(const AllocationCounter&) = delete;

    int64_t count() const;
};

}  // namespace tenon::testing
