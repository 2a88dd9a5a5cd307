// SPDX-License-Identifier: MIT
// Levels of MemAvailable in service (engine.md 3.3): when to stop admitting, to end streams, to
// end.
#pragma once

#include <cstdint>
#include <string>

namespace tenon {

struct MemoryLevels {
    int64_t soft = 0, hard = 0, last = 0;  ///< bytes, soft > hard > last
};

/// Thread: main. No clock and no file: readings come from outside.
class MemoryWatch {
  public:
    /// Growth of this process since `ready` below which it is not the one that takes the memory.
    static constexpr int64_t kOwnGrowth = int64_t{256} << 20;

    explicit MemoryWatch(const MemoryLevels& levels) : levels_(levels) {}
    /// Resident bytes of this process when everything is allocated.
    void ready(int64_t resident) { ready_resident_ = resident; }

    struct Reading {
        uint32_t level = 0;    ///< 0 ok, 1 soft, 2 hard twice in a row, 3 last
        bool foreign = false;  ///< hard by level, but others took it: streams do not end for that
    };
    /// available  MemAvailable, 0 = unknown; resident  of this process
    Reading read(int64_t available, int64_t resident);

  private:
    MemoryLevels levels_;
    int64_t ready_resident_ = 0;
    int hard_readings_ = 0;
};

/// The processes with most resident memory beside this one: "name 1.5 GiB, …"; "" if unknown.
std::string largest_others(int count);

}  // namespace tenon
