// SPDX-License-Identifier: MIT
// The image cache within its budget: what was used last stays.
#include <gtest/gtest.h>

#include "image_cache.h"

namespace tenon::image_cache {
namespace {

struct Key {
    uint8_t bytes[32] = {};
    explicit Key(uint8_t last) { bytes[31] = last; }
};

std::vector<uint8_t> rows_of(uint8_t value, size_t n = 1000) {
    return std::vector<uint8_t>(n, value);
}

class Cache : public testing::Test {
  protected:
    static constexpr int64_t kOne = 1000 + ImageCache::kEntryBytes;

    bool has(uint8_t key) {
        std::vector<uint8_t> out(1000);
        const bool hit = cache.get(Key(key).bytes, out);
        EXPECT_TRUE(!hit || out == rows_of(key));
        return hit;
    }
    void put(uint8_t key) { cache.put(Key(key).bytes, rows_of(key)); }

    ImageCache cache{3 * kOne, true};
};

TEST_F(Cache, Keeps_what_fits_and_drops_what_was_not_used_for_longest) {
    put(1);
    put(2);
    put(3);
    EXPECT_EQ(cache.bytes(), 3 * kOne);
    EXPECT_TRUE(has(1));
    put(4);
    EXPECT_FALSE(has(2));
    EXPECT_TRUE(has(1));
    EXPECT_TRUE(has(3));
    EXPECT_TRUE(has(4));
    EXPECT_EQ(cache.count(), 3);
    EXPECT_EQ(cache.bytes(), 3 * kOne);
}

TEST_F(Cache, Keys_differ_in_any_byte) {
    put(1);
    for (size_t i = 0; i < 31; ++i) {
        Key other(1);
        other.bytes[i] = 1;
        std::vector<uint8_t> out(1000, 9);
        EXPECT_FALSE(cache.get(other.bytes, out));
        EXPECT_EQ(out, rows_of(9)) << "written on a miss";
    }
}

TEST_F(Cache, Rows_of_another_size_are_a_miss) {
    put(1);
    std::vector<uint8_t> out(999);
    EXPECT_FALSE(cache.get(Key(1).bytes, out));
    EXPECT_TRUE(has(1));
}

TEST_F(Cache, Putting_a_key_again_replaces_its_rows) {
    put(1);
    cache.put(Key(1).bytes, rows_of(7, 500));
    EXPECT_EQ(cache.count(), 1);
    EXPECT_EQ(cache.bytes(), 500 + ImageCache::kEntryBytes);
    std::vector<uint8_t> out(500);
    ASSERT_TRUE(cache.get(Key(1).bytes, out));
    EXPECT_EQ(out, rows_of(7, 500));
}

TEST_F(Cache, An_image_beyond_the_budget_is_not_kept_and_pushes_nothing_out) {
    put(1);
    cache.put(Key(2).bytes, rows_of(2, 4000));
    EXPECT_TRUE(has(1));
    EXPECT_EQ(cache.count(), 1);
    ImageCache none(0, false);
    none.put(Key(1).bytes, rows_of(1));
    EXPECT_EQ(none.count(), 0);
    EXPECT_FALSE(none.keeps_states());
}

TEST_F(Cache, Bytes_stay_within_the_budget_whatever_comes) {
    uint64_t random = 1;
    for (int i = 0; i < 5000; ++i) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        const auto key = static_cast<uint8_t>(random >> 40);
        cache.put(Key(key).bytes, rows_of(key, (random >> 20) % 3000));
        ASSERT_LE(cache.bytes(), 3 * kOne);
        ASSERT_GE(cache.bytes(), 0);
    }
}

}  // namespace
}  // namespace tenon::image_cache
