// SPDX-License-Identifier: MIT
// Rotary angles and turns: exactness, position rules, negative controls.
#include <cmath>

#include "tenon/ops/rope.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

std::vector<float> main_frequencies() {
    std::vector<float> f;
    for (int i = 0; i < 32; ++i) {
        f.push_back(1.0f / std::pow(10000.0f, static_cast<float>(2 * i) / 64.0f));
    }
    return f;
}

int64_t f32_ulps(float a, float b) {
    const auto order = [](float x) {
        const auto bits = static_cast<int64_t>(std::bit_cast<int32_t>(x));
        return bits < 0 ? -(bits & 0x7FFFFFFF) : bits;
    };
    return std::abs(order(a) - order(b));
}

class OpsRope : public OpTest {
  protected:
    TensorView angles(const std::vector<int32_t>& positions, int32_t step = 1) {
        std::vector<RowInfo> row;
        std::vector<SegInfo> seg;
        for (size_t t = 0; t < positions.size(); ++t) {
            const auto i = static_cast<int32_t>(t);
            row.push_back({positions[t], positions[t] < 0 ? -1 : i, i, 0});
            seg.push_back({i, i, 1, positions[t], {0, 0}, 0, 0});
        }
        freq_ = main_frequencies();
        RopeAngles p;
        p.rows = rows(row, seg);
        p.freq = make_view(freq_.data(), DType::f32, {32});
        p.step = step;
        p.cs = filled(DType::f32, {static_cast<int64_t>(positions.size()), 64}, 0xFF);
        run(p);
        return p.cs;
    }

    alignas(64) std::vector<float> freq_;
};

TEST_P(OpsRope, Angles_are_accurate_over_the_whole_range) {
    const std::vector<int32_t> positions = {0, 1, 65535, 65536, 1048575};
    const std::vector<float> cs = floats(angles(positions));
    for (size_t t = 0; t < positions.size(); ++t) {
        for (size_t i = 0; i < 32; ++i) {
            const float angle = static_cast<float>(positions[t]) * freq_[i];
            const auto c = static_cast<float>(std::cos(static_cast<long double>(angle)));
            const auto s = static_cast<float>(std::sin(static_cast<long double>(angle)));
            EXPECT_LE(f32_ulps(cs[t * 64 + i], c), 2) << positions[t] << ", " << i;
            EXPECT_LE(f32_ulps(cs[t * 64 + 32 + i], s), 2) << positions[t] << ", " << i;
        }
    }
}

TEST_P(OpsRope, A_group_takes_the_position_of_its_first_token) {
    const std::vector<uint8_t> pairs = bytes(angles({6, 7, 8, 9}, 2));
    const std::vector<uint8_t> first = bytes(angles({6, 6, 8, 8}, 1));
    EXPECT_EQ(pairs, first);
}

TEST_P(OpsRope, Dead_rows_get_zeros) {
    const std::vector<float> cs = floats(angles({5, -1}));
    for (size_t i = 64; i < 128; ++i) {
        EXPECT_EQ(cs[i], 0.0f);
    }
}

TEST_P(OpsRope, Turns_adjacent_pairs_of_the_last_channels) {
    Random random(21);
    const TensorView cs = angles({1000, 77});
    const std::vector<float> c = floats(cs);
    const TensorView x = bf16({2, 3, 96}, random.bells(2 * 3 * 96));
    RopeTurn p{x, cs, false, zeros(DType::bf16, {2, 3, 96})};
    run(p);
    const std::vector<float> in = floats(x);
    const std::vector<float> out = floats(p.out);
    int64_t half_split_agrees = 0;
    for (size_t t = 0; t < 2; ++t) {
        for (size_t n = 0; n < 3; ++n) {
            const size_t at = (t * 3 + n) * 96;
            for (size_t i = 0; i < 32; ++i) {
                EXPECT_EQ(out[at + i], in[at + i]) << "channels before the last 64 pass through";
                const float a = in[at + 32 + 2 * i];
                const float b = in[at + 33 + 2 * i];
                const float cosine = c[t * 64 + i];
                const float sine = c[t * 64 + 32 + i];
                ASSERT_EQ(out[at + 32 + 2 * i], round_bf16(std::fma(a, cosine, -(b * sine))));
                ASSERT_EQ(out[at + 33 + 2 * i], round_bf16(std::fma(a, sine, b * cosine)));
                const float far = in[at + 64 + i];  // half-split partner of channel 32 + i
                half_split_agrees += out[at + 32 + i] ==
                                     round_bf16(std::fma(in[at + 32 + i], cosine, -(far * sine)));
            }
        }
    }
    EXPECT_LT(half_split_agrees, 20) << "the half-split form must not pass";
}

TEST_P(OpsRope, Inverse_undoes_a_turn) {
    Random random(22);
    const TensorView cs = angles({123456});
    const std::vector<float> x = random.bells(64);
    const TensorView v = bf16({1, 64}, x);
    run(RopeTurn{v, cs, false, v});
    run(RopeTurn{v, cs, true, v});
    const std::vector<float> back = floats(v);
    for (size_t i = 0; i < 64; ++i) {
        // Two roundings to bf16 of vectors of equal length: within an ulp of the pair's larger
        // value.
        const float size = std::max(std::fabs(x[i]), std::fabs(x[i ^ 1]));
        EXPECT_NEAR(back[i], round_bf16(x[i]), size * 0x1p-7f);
    }
}

TEST_P(OpsRope, In_place_equals_out_of_place) {
    Random random(23);
    const TensorView cs = angles({9, 10});
    const TensorView x = bf16({2, 2, 128}, random.bells(512));
    RopeTurn p{x, cs, true, zeros(DType::bf16, {2, 2, 128})};
    run(p);
    run(RopeTurn{x, cs, true, x});
    EXPECT_EQ(bytes(x), bytes(p.out));
}

TENON_INSTANTIATE_OPS(OpsRope);

}  // namespace
}  // namespace tenon::testing
