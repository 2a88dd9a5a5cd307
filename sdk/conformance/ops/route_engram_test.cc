// SPDX-License-Identifier: MIT
// Router, Engram decode and Engram gate.
#include <cmath>

#include "tenon/ops/engram.h"
#include "tenon/ops/route.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

class OpsRoute : public OpTest {
  protected:
    RouteTopk make(const std::vector<float>& logits, int64_t E, int32_t k, const Rows& r) {
        const auto T = static_cast<int64_t>(logits.size()) / E;
        RouteTopk p;
        p.logits = f32({T, E}, logits);
        p.bias = zeros(DType::f32, {E});
        p.k = k;
        p.scale = 1.5f;
        p.rows = r;
        p.ids = filled(DType::i32, {T, k}, 0x11);
        p.weights = filled(DType::f32, {T, k}, 0x11);
        return p;
    }
};

TEST_P(OpsRoute, Scores_of_small_and_large_logits) {
    // All chosen: weights are s / sum * 1.5 with s of dsv41.md 3.8 and of extremes.
    const std::vector<float> z = {-4, -1, 0, 1, 3, -100, -20, 20, 88, 1000};
    const auto E = static_cast<int64_t>(z.size());
    RouteTopk p = make(z, E, static_cast<int32_t>(E), one_segment(0, 0, 1));
    run(p);
    const std::vector<float> check = {.1347217f, .5596979f, .8325546f, 1.1459763f, 1.7460204f};
    std::vector<double> s;
    double sum = 0;
    for (float v : z) {
        s.push_back(std::sqrt(v > 20 ? static_cast<double>(v)
                                     : std::log1p(std::exp(static_cast<double>(v)))));
        sum += s.back();
    }
    const std::vector<float> w = floats(p.weights);
    double total = 0;
    for (size_t i = 0; i < z.size(); ++i) {
        EXPECT_NEAR(w[i], s[i] / sum * 1.5, 4e-7 * s[i] / sum);
        total += w[i];
        if (i < check.size()) {
            EXPECT_NEAR(s[i], check[i], 1e-7);
        }
    }
    EXPECT_NEAR(total, 1.5, 1e-6);
}

TEST_P(OpsRoute, Bias_changes_the_choice_not_the_weight) {
    RouteTopk p = make({2, 1, 0, -1}, 4, 2, one_segment(0, 0, 1));
    p.bias = f32({4}, {0, 0, 0, 5});
    run(p);
    EXPECT_EQ(get<int32_t>(p.ids), (std::vector<int32_t>{0, 3}));
    const double s0 = std::sqrt(std::log1p(std::exp(2.0)));
    const double s3 = std::sqrt(std::log1p(std::exp(-1.0)));
    EXPECT_NEAR(floats(p.weights)[1], s3 / (s0 + s3) * 1.5, 1e-6);
}

TEST_P(OpsRoute, Image_bias_applies_to_image_rows_only) {
    const std::vector<float> z = {2, 1, 0, -1, 2, 1, 0, -1};
    RouteTopk p = make(
        z, 4, 1, rows({{0, 0, 0, 0}, {1, 0, 0, kRowImage}}, {SegInfo{0, 0, 2, 0, {0, 0}, 0, 0}}));
    p.bias_image = f32({4}, {0, 0, 9, 0});
    run(p);
    EXPECT_EQ(get<int32_t>(p.ids), (std::vector<int32_t>{0, 2}));
    p.bias_image = {};
    run(p);
    EXPECT_EQ(get<int32_t>(p.ids), (std::vector<int32_t>{0, 0}));
}

TEST_P(OpsRoute, Ties_go_to_the_lower_expert_and_ids_ascend) {
    RouteTopk p = make(std::vector<float>(8, 0.5f), 8, 3, one_segment(0, 0, 1));
    p.bias = f32({8}, {0, 0, 1, 0, 0, 0, 1, 0});
    run(p);
    EXPECT_EQ(get<int32_t>(p.ids), (std::vector<int32_t>{0, 2, 6}));
}

TEST_P(OpsRoute, Dead_rows_choose_nobody_and_nan_is_never_chosen) {
    RouteTopk p = make({1, NAN, 2, NAN, 5, 6, 7, 8}, 4, 3,
                       rows({{0, 0, 0, 0}, {}}, {SegInfo{0, 0, 1, 0, {0, 0}, 0, 0}}));
    run(p);
    EXPECT_EQ(get<int32_t>(p.ids), (std::vector<int32_t>{0, 2, -1, -1, -1, -1}));
    const std::vector<float> w = floats(p.weights);
    EXPECT_EQ(w[2], 0.0f);
    EXPECT_EQ(w[3] + w[4] + w[5], 0.0f);
}

class OpsEngram : public OpTest {};

TEST_P(OpsEngram, Records_with_values_and_scales_side_by_side) {
    // Two columns of 32 values, records of 32 + 1 bytes padded to 40; scale bytes follow the
    // values.
    const int64_t T = 3, c = 2, w = 32, record = 40;
    Random random(51);
    std::vector<uint8_t> data(static_cast<size_t>(T * c * record));
    for (uint8_t& b : data) {
        b = static_cast<uint8_t>(random.below(127));
    }
    for (int64_t i = 0; i < T * c; ++i) {
        data[static_cast<size_t>(i * record + w)] = static_cast<uint8_t>(120 + random.below(16));
    }
    // The dead row's and the image row's sources hold NaN codes.
    const auto poison = [&](int64_t t) {
        std::fill(data.begin() + t * c * record, data.begin() + (t + 1) * c * record,
                  uint8_t{0xFF});
    };
    poison(1);
    EngramDecode p;
    const TensorView all = u8({T * c * record}, data);
    p.values = all;
    p.values.rank = 3;
    p.values.shape[0] = T;
    p.values.shape[1] = c;
    p.values.shape[2] = w;
    p.values.stride[0] = c * record;
    p.values.stride[1] = record;
    p.values.stride[2] = 1;
    p.scales = p.values;
    p.scales.data = static_cast<char*>(all.data) + w;
    p.scales.shape[2] = 1;
    p.rows = rows({{0, 0, 0, 0}, {}, {1, 0, 0, 0}}, {});
    p.out = filled(DType::bf16, {T, c * w}, 0x11);
    run(p);
    const std::vector<float> out = floats(p.out);
    for (int64_t t = 0; t < T; ++t) {
        for (int64_t i = 0; i < c * w; ++i) {
            const auto at = static_cast<size_t>((t * c + i / w) * record);
            const float want = t == 1
                                   ? 0.0f
                                   : e4m3_to_f32(data[at + static_cast<size_t>(i % w)]) *
                                         std::ldexp(1.0f, data[at + static_cast<size_t>(w)] - 127);
            ASSERT_EQ(out[static_cast<size_t>(t * c * w + i)], want) << t << ", " << i;
        }
    }
    p.rows = rows({{0, 0, 0, kRowImage}, {}, {1, 0, 0, 0}}, {});
    run(p);
    EXPECT_EQ(floats(p.out)[0], 0.0f) << "image rows are dead for Engram";
}

TEST_P(OpsEngram, Gate_opens_by_sign_and_floors_the_dot) {
    const int64_t d = 64;
    // Stream 0: key along h (g near 1), 1: against h, 2: dot exactly 0, 3: zero key.
    std::vector<float> h(4 * d, 0.0f);
    std::vector<float> kv(5 * d, 0.0f);
    for (int64_t i = 0; i < d; ++i) {
        for (int64_t j = 0; j < 4; ++j) {
            h[static_cast<size_t>(j * d + i)] = 1;
        }
        kv[static_cast<size_t>(i)] = 2;
        kv[static_cast<size_t>(d + i)] = -2;
        kv[static_cast<size_t>(2 * d + i)] = i % 2 == 0 ? 1.0f : -1.0f;
        kv[static_cast<size_t>(4 * d + i)] = 0.5f;
    }
    EngramGate p;
    p.h = bf16({1, 4, d}, h);
    p.kv = bf16({1, 5 * d}, kv);
    p.q_weight = bf16({4, d}, std::vector<float>(4 * d, 1.0f));
    p.k_weight = bf16({4, d}, std::vector<float>(4 * d, 1.0f));
    p.rows = one_segment(0, 0, 1);
    run(p);
    const std::vector<float> out = floats(p.h);
    // dot = 64 / (1 * 2) * 2 * 64^-0.5 = 8 -> sqrt 8; 1e-6 floor -> 1e-3, sign of +0.
    const double open = 1 / (1 + std::exp(-std::sqrt(8.0)));
    const double shut = 1 / (1 + std::exp(std::sqrt(8.0)));
    const double floored = 1 / (1 + std::exp(-1e-3));
    EXPECT_NEAR(out[0], 1 + 0.5 * open, 0x1p-8);
    EXPECT_NEAR(out[static_cast<size_t>(d)], 1 + 0.5 * shut, 0x1p-8);
    EXPECT_NEAR(out[static_cast<size_t>(2 * d)], 1 + 0.5 * floored, 0x1p-8);
    EXPECT_NEAR(out[static_cast<size_t>(3 * d)], 1 + 0.5 * floored, 0x1p-8);
}

TEST_P(OpsEngram, Dead_and_image_rows_leave_h_untouched_even_with_nan) {
    Random random(52);
    const int64_t d = 48;
    const std::vector<float> h = random.bells(3 * 4 * d);
    EngramGate p;
    p.h = bf16({3, 4, d}, h);
    p.kv = f32({3, 5 * d}, std::vector<float>(static_cast<size_t>(3 * 5 * d), NAN));
    p.q_weight = f32({4, d}, random.bells(4 * d));
    p.k_weight = f32({4, d}, random.bells(4 * d));
    p.rows = rows({{}, {5, 0, 0, kRowImage}, {}}, {});
    const std::vector<uint8_t> before = bytes(p.h);
    run(p);
    EXPECT_EQ(bytes(p.h), before);
}

TEST_P(OpsEngram, A_f32_kv_is_rounded_to_bf16_first) {
    Random random(53);
    const int64_t d = 64;
    const std::vector<float> kv = random.bells(2 * 5 * d);
    const std::vector<float> h = random.bells(2 * 4 * d);
    EngramGate a;
    a.h = bf16({2, 4, d}, h);
    a.kv = f32({2, 5 * d}, kv);
    a.q_weight = bf16({4, d}, random.bells(4 * d));
    a.k_weight = bf16({4, d}, random.bells(4 * d));
    a.rows = one_segment(0, 0, 2);
    run(a);
    EngramGate b = a;
    b.h = bf16({2, 4, d}, h);
    b.kv = bf16({2, 5 * d}, kv);
    run(b);
    EXPECT_EQ(bytes(a.h), bytes(b.h));
}

TENON_INSTANTIATE_OPS(OpsRoute);
TENON_INSTANTIATE_OPS(OpsEngram);

}  // namespace
}  // namespace tenon::testing
