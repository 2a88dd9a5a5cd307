// SPDX-License-Identifier: MIT
// Memory in service (engine.md 3.3; serving.md 10: the floor must act before the machine freezes,
// and must not end streams for what another process takes).
#include <gtest/gtest.h>

#include "host/lifecycle/memory_watch.h"

namespace tenon {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

MemoryWatch make_watch() {
    MemoryWatch watch({4 * kGiB, 2 * kGiB, kGiB});
    watch.ready(10 * kGiB);
    return watch;
}

TEST(MemoryWatch, Pitfall_04_Levels_follow_what_is_available) {
    MemoryWatch watch = make_watch();
    EXPECT_EQ(watch.read(5 * kGiB, 11 * kGiB).level, 0u);
    EXPECT_EQ(watch.read(3 * kGiB, 11 * kGiB).level, 1u);
    EXPECT_EQ(watch.read(kGiB / 2, 11 * kGiB).level, 3u);
    EXPECT_EQ(watch.read(5 * kGiB, 11 * kGiB).level, 0u);
}

TEST(MemoryWatch, Hard_needs_two_readings_in_a_row) {
    MemoryWatch watch = make_watch();
    EXPECT_EQ(watch.read(2 * kGiB - 1, 11 * kGiB).level, 1u);
    EXPECT_EQ(watch.read(3 * kGiB, 11 * kGiB).level, 1u);
    EXPECT_EQ(watch.read(2 * kGiB - 1, 11 * kGiB).level, 1u);
    EXPECT_EQ(watch.read(2 * kGiB - 1, 11 * kGiB).level, 2u);
}

TEST(MemoryWatch, Growth_of_others_ends_no_stream_before_the_last_level) {
    MemoryWatch watch = make_watch();
    for (int i = 0; i < 5; ++i) {
        watch.read(2 * kGiB - 1, 10 * kGiB + MemoryWatch::kOwnGrowth - 1);
    }
    const MemoryWatch::Reading reading =
        watch.read(2 * kGiB - 1, 10 * kGiB + MemoryWatch::kOwnGrowth - 1);
    EXPECT_EQ(reading.level, 1u);
    EXPECT_TRUE(reading.foreign);
    EXPECT_EQ(watch.read(kGiB - 1, 10 * kGiB).level, 3u);
}

TEST(MemoryWatch, An_unknown_reading_changes_nothing) {
    MemoryWatch watch = make_watch();
    EXPECT_EQ(watch.read(0, 99 * kGiB).level, 0u);
}

TEST(MemoryWatch, Others_are_named_with_their_size) {
    const std::string text = largest_others(3);
    EXPECT_NE(text.find("iB"), std::string::npos) << text;
}

}  // namespace
}  // namespace tenon
