// SPDX-License-Identifier: MIT
// Number formats: every narrow code round trips, rounding is to nearest even, NaN and limits
// behave.
#include "tenon/numeric.h"

#include <gtest/gtest.h>

#include <limits>

namespace tenon {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

// The nearest of the values of all codes (finite ones, ascending in value), ties to the even code.
template <class Decode>
uint32_t nearest(float x, uint32_t codes, Decode decode) {
    uint32_t best = 0;
    for (uint32_t c = 1; c < codes; ++c) {
        const double d = std::fabs(static_cast<double>(decode(c)) - x);
        const double least = std::fabs(static_cast<double>(decode(best)) - x);
        if (d < least || (d == least && c % 2 == 0)) {
            best = c;
        }
    }
    return best;
}

TEST(Numeric, Bf16_round_trips_and_rounds_to_even) {
    for (uint32_t c = 0; c < 65536; ++c) {
        const float v = bf16_to_f32(static_cast<uint16_t>(c));
        if (std::isnan(v)) {
            EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(v)))) << c;
        } else {
            EXPECT_EQ(f32_to_bf16(v), c);
        }
    }
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);  // tie, even below
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);  // tie, even above
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F808001u)), 0x3F81);
    EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
    EXPECT_EQ(f32_to_bf16(-kInf), 0xFF80);
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7F800001u)))));
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0xFFFFFFFFu)))));
}

TEST(Numeric, F16_round_trips_and_rounds_every_midpoint) {
    for (uint32_t c = 0; c < 65536; ++c) {
        const float v = f16_to_f32(static_cast<uint16_t>(c));
        if (std::isnan(v)) {
            EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(v)))) << c;
            continue;
        }
        ASSERT_EQ(f32_to_f16(v), c);
        if ((c & 0x7FFF) < 0x7BFF) {
            // Midpoint to the next code goes to the even one; its neighbours go their own way.
            const float next = f16_to_f32(static_cast<uint16_t>(c + 1));
            const float middle = v + (next - v) / 2;
            const float outward = c & 0x8000 ? -kInf : kInf;
            ASSERT_EQ(f32_to_f16(middle), c % 2 == 0 ? c : c + 1) << v;
            ASSERT_EQ(f32_to_f16(std::nextafter(middle, outward)), c + 1);
            ASSERT_EQ(f32_to_f16(std::nextafter(middle, -outward)), c);
        }
    }
    EXPECT_EQ(f32_to_f16(65519.0f), 0x7BFF);
    EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
    EXPECT_EQ(f32_to_f16(1e9f), 0x7C00);
    EXPECT_EQ(f32_to_f16(-kInf), 0xFC00);
    EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(kNan))));
}

TEST(Numeric, E4m3_rounds_to_nearest_even_and_saturates) {
    const auto decode = [](uint32_t c) { return e4m3_to_f32(static_cast<uint8_t>(c)); };
    for (uint32_t c = 0; c < 0x7F; ++c) {
        ASSERT_EQ(f32_to_e4m3(decode(c)), c);
        ASSERT_EQ(f32_to_e4m3(-decode(c)), c | 0x80);
    }
    uint32_t state = 1;
    for (int i = 0; i < 20000; ++i) {
        state = state * 1664525u + 1013904223u;
        const float x = std::ldexp(1.0f + static_cast<float>(state >> 9) * 0x1p-23f,
                                   static_cast<int>(state % 24) - 13);
        ASSERT_EQ(f32_to_e4m3(x), nearest(x, 0x7F, decode)) << x;
        // bf16 inputs hit the exact midpoints.
        const float y = round_bf16(x);
        ASSERT_EQ(f32_to_e4m3(y), nearest(y, 0x7F, decode)) << y;
    }
    EXPECT_EQ(f32_to_e4m3(464.0f), 0x7E);
    EXPECT_EQ(f32_to_e4m3(1e30f), 0x7E);
    EXPECT_EQ(f32_to_e4m3(-kInf), 0xFE);
    EXPECT_EQ(f32_to_e4m3(-0.0f), 0x80);
    EXPECT_TRUE(std::isnan(e4m3_to_f32(f32_to_e4m3(kNan))));
}

TEST(Numeric, E2m1_rounds_to_nearest_even_and_saturates) {
    const auto decode = [](uint32_t c) { return e2m1_to_f32(static_cast<uint8_t>(c)); };
    for (int i = 0; i <= 8000; ++i) {
        const float x = static_cast<float>(i) / 1000.0f;
        ASSERT_EQ(f32_to_e2m1(x), nearest(x, 8, decode)) << x;
        ASSERT_EQ(f32_to_e2m1(-x), nearest(x, 8, decode) | 8) << x;
    }
    for (float tie : {0.25f, 1.25f, 2.5f, 5.0f}) {
        EXPECT_LT(e2m1_to_f32(f32_to_e2m1(tie)), tie) << "goes down";
    }
    for (float tie : {0.75f, 1.75f, 3.5f}) {
        EXPECT_GT(e2m1_to_f32(f32_to_e2m1(tie)), tie) << "goes up";
    }
    EXPECT_EQ(f32_to_e2m1(kInf), 7);
    EXPECT_EQ(f32_to_e2m1(kNan) & 7, 0);
}

TEST(Numeric, E8m0_ceil_is_the_next_power_of_two) {
    EXPECT_EQ(e8m0_ceil(1.0f), 127);
    EXPECT_EQ(e8m0_ceil(1.0000001f), 128);
    EXPECT_EQ(e8m0_ceil(0x1p-126f), 1);
    EXPECT_EQ(e8m0_ceil(0x1.8p100f), 228);
    EXPECT_EQ(e8m0_ceil(std::numeric_limits<float>::max()), 254);
    EXPECT_EQ(e8m0_to_f32(127), 1.0f);
    EXPECT_EQ(e8m0_to_f32(0), 0x1p-127f);
    EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
}

TEST(Numeric, Gumbel_noise_is_finite_at_both_ends) {
    EXPECT_NEAR(gumbel_of_word(0), -std::log(33 * std::log(2.0)), 1e-12);
    EXPECT_NEAR(gumbel_of_word(0xFFFFFFFFu), 33 * std::log(2.0), 1e-6);
    EXPECT_EQ(noise_word(7, 9, 12), philox4x32_10(7, 0, 3, 9, 0, 0).word[0]);
    EXPECT_EQ(noise_word(7ull << 32, 9, 15), philox4x32_10(0, 7, 3, 9, 0, 0).word[3]);
}

}  // namespace
}  // namespace tenon
