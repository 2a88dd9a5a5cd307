// SPDX-License-Identifier: MIT
// Sizes and times of profiles.
#include <gtest/gtest.h>

#include "host/profile/units.h"

namespace tenon {
namespace {

TEST(Units, Sizes_know_binary_and_decimal_units) {
    EXPECT_EQ(*parse_size("512 MiB"), 536870912);
    EXPECT_EQ(*parse_size("512MiB"), 536870912);
    EXPECT_EQ(*parse_size("1 GB"), 1000000000);
    EXPECT_EQ(*parse_size("1.5 KiB"), 1536);
    EXPECT_EQ(*parse_size("7 B"), 7);
}

TEST(Units, Times_are_microseconds) {
    EXPECT_EQ(*parse_time("30 s"), 30000000);
    EXPECT_EQ(*parse_time("200 ms"), 200000);
    EXPECT_EQ(*parse_time("2 h"), 7200000000);
}

TEST(Units, Refuses_what_is_no_quantity) {
    for (const char* text : {"", "MiB", "5", "5 miB", "-5 s", "5  s", "1e3 s", "0x10 B", ".5 s",
                             "5. s", "99999999999999999999 B"}) {
        EXPECT_FALSE(parse_size(text).ok() && parse_time(text).ok()) << text;
    }
    EXPECT_FALSE(parse_time("30").ok());
    EXPECT_FALSE(parse_size("9000000000 TiB").ok());
}

TEST(Units, Sizes_are_printed_with_three_digits) {
    EXPECT_EQ(size_text(0), "0 B");
    EXPECT_EQ(size_text(1536), "1.50 KiB");
    EXPECT_EQ(size_text(int64_t{357} << 20), "357 MiB");
}

}  // namespace
}  // namespace tenon
