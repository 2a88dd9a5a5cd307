// SPDX-License-Identifier: MIT
// Large requests leave their memory in the arenas of malloc, where no other process can use it.
#pragma once

#include <cstdint>

namespace tenon {

/// Gives free heap memory back to the system. Thread: main; the engine thread allocates nothing in
/// service, so it never waits for the arena that is being trimmed. Does nothing without glibc.
class HeapTrim {
  public:
    /// Free bytes below which a trim is not worth its time.
    static constexpr int64_t kSlack = int64_t{64} << 20;
    /// Blocks from this size on are mapped alone, so freeing one gives it back; left to itself,
    /// malloc raises this to 32 MiB with the first large request, and keeps 64 MiB an arena.
    static constexpr int kMapBytes = 1 << 20;

    /// Sets malloc's thresholds.
    HeapTrim();

    /// Looks every `kTicks` calls, and trims once after each time that the heap was used. Bytes
    /// that were free when it trimmed, else 0.
    int64_t tick();

  private:
    static constexpr int kTicks = 8;  // counting what is free takes a walk over it
    int ticks_ = 0;
    // Free bytes after the last trim. Trimmed pages still count as free, so the number does not say
    // what there is to give, only whether anything has happened.
    int64_t after_ = 0;
};

}  // namespace tenon
