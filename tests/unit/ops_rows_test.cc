// SPDX-License-Identifier: MIT
// What several CPU ops share: the quantisers of cached rows, SIMD against the reference bit for bit
// over every bf16 number, and the largest of a stream against sorting.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "index/select.h"
#include "kvq/quantise.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

constexpr RowFormat kFormats[] = {RowFormat::q8, RowFormat::q4u, RowFormat::q4e};

struct Packed {
    std::vector<uint8_t> codes, scales;
    std::vector<uint16_t> values;
    bool operator==(const Packed&) const = default;
};

Packed quantise(const cpu::RowQuantiser& q, RowFormat format, const std::vector<uint16_t>& x) {
    const auto n = static_cast<int64_t>(x.size());
    Packed out;
    out.codes.resize(static_cast<size_t>(code_bytes(format, n)));
    out.scales.resize(static_cast<size_t>(scale_bytes(format, n)));
    out.values.resize(x.size());
    q.pack(format, x.data(), n, out.codes.data(), out.scales.data());
    q.values(format, x.data(), n, out.values.data());
    return out;
}

void expect_equal(const std::vector<uint16_t>& x) {
    for (const RowFormat format : kFormats) {
        const Packed want = quantise(cpu::reference_quantiser(), format, x);
        const Packed got = quantise(*cpu::simd_quantiser(), format, x);
        for (size_t i = 0; i < x.size(); ++i) {
            ASSERT_EQ(got.values[i], want.values[i])
                << "format " << static_cast<int>(format) << ", bits " << x[i] << " at " << i;
        }
        ASSERT_TRUE(got == want) << "format " << static_cast<int>(format);
    }
}

// A scale is a power of two or an e4m3 number, so beside a group's largest value every fraction
// and all smaller exponents matter: each of the 128 fractions and signs meets each exponent below.
TEST(OpsRows, Quantisers_with_simd_give_the_bits_of_the_reference) {
    if (cpu::simd_quantiser() == nullptr) {
        GTEST_SKIP() << "no fused multiply-add target on this machine";
    }
    std::vector<uint16_t> all(65536);
    std::iota(all.begin(), all.end(), uint16_t{0});  // neighbours share a group: one scale each
    expect_equal(all);
    Random random(7);
    std::vector<uint16_t> mixed;
    for (int64_t top = 0; top < 65536; top += 37) {
        // One number decides the scale, the others lie up to 20 exponents below it.
        for (int i = 0; i < 32; ++i) {
            const int64_t down = i == 0 ? 0 : random.below(20) << 7;
            const int64_t size = std::max<int64_t>((top & 0x7FFF) - down, 0);
            const int64_t fraction = i == 0 ? 0 : random.below(128);
            mixed.push_back(static_cast<uint16_t>((size ^ fraction) | random.below(2) << 15));
        }
    }
    expect_equal(mixed);
    std::vector<uint16_t> same = mixed;  // in place, as ops use it
    cpu::simd_quantiser()->values(RowFormat::q8, same.data(), static_cast<int64_t>(same.size()),
                                  same.data());
    EXPECT_EQ(same, quantise(cpu::reference_quantiser(), RowFormat::q8, mixed).values);
}

TEST(OpsRows, The_largest_are_those_of_sorting) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const float odd[] = {0.0F, -0.0F, kInf, -kInf, std::nanf(""), 1e-44F, -1e-44F, 3e38F};
    Random random(11);
    for (const int64_t keep : {1, 2, 3, 64, 300}) {
        for (const int64_t kinds : {3, 50, 100000}) {  // many ties, some, hardly any
            std::vector<float> scores(1500);
            for (float& s : scores) {
                s = random.below(16) == 0
                        ? odd[random.below(std::size(odd))]
                        : static_cast<float>(random.below(kinds)) - static_cast<float>(kinds) / 2;
            }
            cpu::Largest<512> largest(keep);
            std::vector<int32_t> want;
            for (size_t i = 0; i < scores.size(); ++i) {
                largest.offer(scores[i], static_cast<int32_t>(i));
                if (scores[i] > -kInf) {
                    want.push_back(static_cast<int32_t>(i));
                }
            }
            std::stable_sort(want.begin(), want.end(), [&](int32_t a, int32_t b) {
                return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
            });
            want.resize(std::min<size_t>(want.size(), static_cast<size_t>(keep)));
            EXPECT_EQ(largest.bar(), scores[static_cast<size_t>(want.back())]);
            std::sort(want.begin(), want.end());
            std::vector<int32_t> got(static_cast<size_t>(keep) + 2, 0);
            ASSERT_EQ(largest.take(got.data(), keep + 2), keep);
            want.resize(got.size(), -1);
            EXPECT_EQ(got, want) << keep << " of " << kinds << " kinds";
        }
    }
}

}  // namespace
}  // namespace tenon::testing
