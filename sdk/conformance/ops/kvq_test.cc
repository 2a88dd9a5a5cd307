// SPDX-License-Identifier: MIT
// Cache quantisers: every bf16 input, group edges, idempotence, and the stores that use them.
#include <bit>
#include <cmath>

#include "tenon/ops/cache.h"
#include "tenon/ops/kvq.h"
#include "tenon/ops/window.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

// The quantisers once more, written from dsv41.md 3.4 with other means: search for the nearest
// code.
float nearest(const std::vector<float>& values, float q) {
    const float a = std::fabs(q);
    size_t best = 0;
    for (size_t i = 1; i < values.size(); ++i) {
        const float d = std::fabs(a - values[i]);
        const float least = std::fabs(a - values[best]);
        // On a tie the even code wins.
        if (d < least || (d == least && i % 2 == 0)) {
            best = i;
        }
    }
    return std::copysign(values[best], q);
}

std::vector<float> e4m3_values() {
    std::vector<float> v;
    for (int code = 0; code < 0x7F; ++code) {
        v.push_back(e4m3_to_f32(static_cast<uint8_t>(code)));
    }
    return v;
}
const std::vector<float> kE2m1 = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

float expected_scale(RowFormat f, float amax) {
    if (f == RowFormat::q4e) {
        return nearest(e4m3_values(), std::min(std::max(amax, 6 * 0x1p-9f) / 6.0f, 448.0f));
    }
    const float least = f == RowFormat::q8 ? 1e-4f : 6 * 0x1p-126f;
    const float reciprocal = f == RowFormat::q8 ? 1.0f / 448.0f : 1.0f / 6.0f;
    const float v = std::max(amax, least) * reciprocal;
    float s = 0x1p-126f;
    while (s < v) {
        s *= 2;
    }
    return s;
}

float expected_value(RowFormat f, float x, float s) {
    static const std::vector<float> e4m3 = e4m3_values();
    const float limit = f == RowFormat::q8 ? 448.0f : 6.0f;
    const float q = std::min(std::max(x / s, -limit), limit);
    return nearest(f == RowFormat::q8 ? e4m3 : kE2m1, q) * s;
}

class OpsKvq : public OpTest {
  protected:
    std::vector<float> quantised(RowFormat f, const std::vector<float>& x, int64_t n) {
        const auto T = static_cast<int64_t>(x.size()) / n;
        KvqQuantize p{.x = bf16({T, n}, x), .format = f, .values = zeros(DType::bf16, {T, n})};
        run(p);
        return floats(p.values);
    }
};

TEST_P(OpsKvq, Spec_vector_of_q4e) {
    std::vector<float> x;
    for (int i = 0; i < 16; ++i) {
        x.push_back(0.1f * static_cast<float>(i - 7));
    }
    const std::vector<float> expected = {
        -.5625f,   -.5625f,   -.5625f, -.421875f, -.28125f, -.2109375f, -.0703125f, 0,
        .0703125f, .2109375f, .28125f, .421875f,  .5625f,   .5625f,     .5625f,     .84375f};
    EXPECT_EQ(quantised(RowFormat::q4e, x, 16), expected);
}

TEST_P(OpsKvq, All_bf16_inputs_in_every_position) {
    // Each row: one value walks through all finite bf16 numbers, the group's amax is fixed by a
    // neighbour.
    for (RowFormat f : {RowFormat::q8, RowFormat::q4u, RowFormat::q4e}) {
        const int64_t n = 32;
        std::vector<float> x;
        std::vector<uint32_t> inputs;
        for (uint32_t bits = 0; bits < 65536; bits += 1) {
            const float v = bf16_to_f32(static_cast<uint16_t>(bits));
            if (std::isfinite(v)) {
                inputs.push_back(bits);
            }
        }
        for (size_t i = 0; i < inputs.size(); ++i) {
            for (int64_t j = 0; j < n; ++j) {
                const bool here = j == static_cast<int64_t>(i) % n;
                const bool anchor = j == (static_cast<int64_t>(i) + 1) % n;
                x.push_back(here     ? bf16_to_f32(static_cast<uint16_t>(inputs[i]))
                            : anchor ? 3.0f
                                     : 0.0f);
            }
        }
        const std::vector<float> y = quantised(f, x, n);
        for (size_t i = 0; i < inputs.size(); ++i) {
            const int64_t at = static_cast<int64_t>(i) % n;
            const float v = bf16_to_f32(static_cast<uint16_t>(inputs[i]));
            const int64_t group = f == RowFormat::q4e ? 16 : 32;
            const bool anchored = at / group == (at + 1) % n / group;
            const float s = expected_scale(f, std::max(std::fabs(v), anchored ? 3.0f : 0.0f));
            const float want = round_bf16(expected_value(f, v, s));
            const float got = y[i * static_cast<size_t>(n) + static_cast<size_t>(at)];
            ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want))
                << row_format_name(f) << " of " << v << ": " << got << ", expected " << want;
        }
    }
}

TEST_P(OpsKvq, Group_maxima_at_powers_of_two_and_their_neighbours) {
    for (RowFormat f : {RowFormat::q8, RowFormat::q4u, RowFormat::q4e}) {
        const float limit = f == RowFormat::q8 ? 448.0f : 6.0f;
        for (int k = -140; k < 110; ++k) {
            const uint16_t at = f32_to_bf16(std::ldexp(limit, k));
            for (int d = -1; d <= 1; ++d) {
                const auto bits = static_cast<uint16_t>(at + d);
                const float amax = bf16_to_f32(bits);
                if (!std::isfinite(amax) || amax <= 0) {
                    continue;
                }
                std::vector<float> x(32, 0.0f);
                x[3] = amax;
                x[4] = -amax / 3;
                x[5] = amax / 64;
                for (float& v : x) {
                    v = round_bf16(v);
                }
                const std::vector<float> y = quantised(f, x, 32);
                const float s = expected_scale(f, amax);
                for (size_t i = 0; i < 16; ++i) {
                    ASSERT_EQ(y[i], round_bf16(expected_value(f, x[i], s)))
                        << row_format_name(f) << " amax " << amax << " at " << i;
                }
            }
        }
    }
}

TEST_P(OpsKvq, Q8_and_q4u_are_idempotent_q4e_is_not_on_tiny_groups) {
    Random random(11);
    std::vector<float> x;
    for (int i = 0; i < 400; ++i) {
        const float scale = std::ldexp(1.0f, static_cast<int>(random.below(30)) - 20);
        for (float v : random.bells(32, scale)) {
            x.push_back(round_bf16(v));
        }
    }
    for (RowFormat f : {RowFormat::q8, RowFormat::q4u}) {
        const std::vector<float> once = quantised(f, x, 32);
        EXPECT_EQ(quantised(f, once, 32), once) << row_format_name(f);
    }
    const std::vector<float> once = quantised(RowFormat::q4e, x, 32);
    EXPECT_NE(quantised(RowFormat::q4e, once, 32), once);
}

TEST_P(OpsKvq, Signs_of_zero_survive) {
    std::vector<float> x(32, 4.0f);
    x[1] = -0.0f;
    x[2] = -1e-6f;  // rounds to zero in every format
    for (RowFormat f : {RowFormat::q8, RowFormat::q4u, RowFormat::q4e}) {
        KvqQuantize p{.x = bf16({1, 32}, x), .format = f};
        p.values = zeros(DType::bf16, {1, 32});
        p.codes = zeros(DType::u8, {1, code_bytes(f, 32)});
        p.scales = zeros(DType::u8, {1, scale_bytes(f, 32)});
        run(p);
        const std::vector<uint8_t> codes = bytes(p.codes);
        const std::vector<float> y = floats(p.values);
        EXPECT_TRUE(std::signbit(y[1]) && std::signbit(y[2])) << row_format_name(f);
        if (f == RowFormat::q8) {
            EXPECT_EQ(codes[1], 0x80);
            EXPECT_EQ(codes[2], 0x80);
        } else {
            EXPECT_EQ(codes[0] >> 4, 8);
            EXPECT_EQ(codes[1] & 15, 8);
        }
    }
}

TEST_P(OpsKvq, In_place_and_strided) {
    Random random(12);
    const TensorView whole = bf16({2, 128}, random.bells(256));
    TensorView left = whole;
    left.shape[1] = 64;
    KvqQuantize apart{.x = left, .format = RowFormat::q8, .values = zeros(DType::bf16, {2, 64})};
    run(apart);
    const std::vector<float> right_before = floats(whole);
    KvqQuantize same{.x = left, .format = RowFormat::q8, .values = left};
    run(same);
    const std::vector<float> after = floats(whole);
    const std::vector<float> expected = floats(apart.values);
    for (size_t i = 0; i < 64; ++i) {
        EXPECT_EQ(after[i], expected[i]);
        EXPECT_EQ(after[128 + i], expected[64 + i]);
        EXPECT_EQ(after[64 + i], right_before[64 + i]);
    }
}

class OpsStores : public OpTest {};

// A number that all quantisers keep: 4 significant bits.
float marker(int32_t i) {
    return std::ldexp(static_cast<float>(8 + i % 8), i / 8);
}

TEST_P(OpsStores, Window_keeps_the_newest_rows_at_their_positions) {
    // n = 1..17 rows from every residue of R, and more rows than the ring holds.
    const int32_t R = 16;
    for (int32_t n : {1, 2, 7, 15, 16, 17, 40}) {
        for (int32_t pos0 = 0; pos0 < R; ++pos0) {
            std::vector<float> kv;
            for (int32_t i = 0; i < n; ++i) {
                kv.insert(kv.end(), 32, marker(i));
            }
            WindowStore p{bf16({n, 32}, kv), one_segment(1, pos0, n), {}};
            p.ring = {filled(DType::bf16, {3, R, 32}, 0), {}, R, 32, RowFormat::bf16};
            run(p);
            const std::vector<float> got = floats(p.ring.codes);
            for (int32_t slot = 0; slot < 3; ++slot) {
                for (int32_t at = 0; at < R; ++at) {
                    float expected = 0;
                    for (int32_t i = std::max(0, n - R); i < n && slot == 1; ++i) {
                        if ((pos0 + i) % R == at) {
                            expected = marker(i);
                        }
                    }
                    ASSERT_EQ(got[static_cast<size_t>((slot * R + at) * 32)], expected)
                        << n << " rows from " << pos0 << ", slot " << slot << ", place " << at;
                }
            }
        }
    }
}

TEST_P(OpsStores, Packed_and_bf16_rings_hold_equal_values) {
    Random random(13);
    const TensorView kv = bf16({5, 64}, random.bells(5 * 64, 3));
    WindowStore a{kv, one_segment(0, 3, 5), {}};
    a.ring = {zeros(DType::bf16, {1, 16, 64}), {}, 16, 64, RowFormat::bf16};
    run(a);
    WindowStore b = a;
    b.ring = {zeros(DType::u8, {1, 16, 64}), zeros(DType::u8, {1, 16, 2}), 16, 64, RowFormat::q8};
    run(b);
    TensorView codes = b.ring.codes;
    codes.rank = 2;
    codes.shape[0] = 16;
    codes.shape[1] = 64;
    codes.stride[0] = 64;
    codes.stride[1] = 1;
    TensorView scales = b.ring.scales;
    scales.rank = 2;
    scales.shape[0] = 16;
    scales.shape[1] = 2;
    scales.stride[0] = 2;
    scales.stride[1] = 1;
    KvqDequantize d{codes, scales, RowFormat::q8, zeros(DType::bf16, {16, 64})};
    run(d);
    const std::vector<uint8_t> values = bytes(d.out);
    const std::vector<uint8_t> ring = bytes(a.ring.codes);
    for (size_t i = 3 * 128; i < 8 * 128; ++i) {
        ASSERT_EQ(values[i], ring[i]);
    }
    // Storing what is already quantised changes nothing.
    KvqQuantize q{.x = kv, .format = RowFormat::q8, .values = zeros(DType::bf16, {5, 64})};
    run(q);
    WindowStore c = a;
    c.kv = q.values;
    c.ring.codes = zeros(DType::bf16, {1, 16, 64});
    run(c);
    EXPECT_EQ(bytes(c.ring.codes), ring);
}

TEST_P(OpsStores, Cache_writes_completed_groups_only_and_counts_missing_pages) {
    Random random(14);
    // Ratio 2, 4 rows a page; slot 1 has pages 2 and 0, its third page is missing.
    CacheStore p;
    p.x = bf16({7, 32}, random.bells(7 * 32));
    std::vector<RowInfo> row;
    for (int32_t i = 0; i < 6; ++i) {
        row.push_back({5 + i, 1, 0, 0});  // positions 5..10: groups 2 (at 5), 3 (at 7), 4 (at 9)
    }
    row.insert(row.begin() + 3, RowInfo{});  // a dead row between
    p.rows = rows(row, {});
    const int64_t page_bytes = 4 * 64;
    p.pages = {filled(DType::u8, {3, page_bytes}, 0xAA),
               i32({2, 3}, {-1, -1, -1, 2, 0, -1}),
               0,
               0,
               4,
               2,
               32,
               RowFormat::bf16};
    p.quantiser = RowFormat::q4e;
    run(p);
    EXPECT_EQ(device().fault_count(), 0u);
    KvqQuantize q{.x = p.x, .format = RowFormat::q4e, .values = zeros(DType::bf16, {7, 32})};
    run(q);
    const std::vector<uint8_t> pool = bytes(p.pages.pool);
    const std::vector<uint8_t> values = bytes(q.values);
    for (int64_t page = 0; page < 3; ++page) {
        for (int64_t r = 0; r < 4; ++r) {
            // Group 2 = row 0 of x, group 3 = row 2, group 4 = row 5 (after the dead row).
            const int64_t source = page == 2 && r == 2   ? 0
                                   : page == 2 && r == 3 ? 2
                                   : page == 0 && r == 0 ? 5
                                                         : -1;
            for (int64_t i = 0; i < 64; ++i) {
                const uint8_t expected =
                    source < 0 ? uint8_t{0xAA} : values[static_cast<size_t>(source * 64 + i)];
                ASSERT_EQ(pool[static_cast<size_t>(page * page_bytes + r * 64 + i)], expected)
                    << "page " << page << ", row " << r;
            }
        }
    }
    row[0] = {17, 1, 0, 0};  // group 8: page index 2 is -1
    p.rows = rows(row, {});
    run(p);
    EXPECT_EQ(device().fault_count(), 1u);
}

TENON_INSTANTIATE_OPS(OpsKvq);
TENON_INSTANTIATE_OPS(OpsStores);

}  // namespace
}  // namespace tenon::testing
