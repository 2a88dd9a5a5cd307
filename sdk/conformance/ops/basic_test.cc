// SPDX-License-Identifier: MIT
// Rows, embedding, norm, mHC and linear: hand-worked values, edge cases and negative controls.
#include <cmath>

#include "tenon/ops/embed.h"
#include "tenon/ops/linear.h"
#include "tenon/ops/mhc.h"
#include "tenon/ops/norm.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

class OpsBasic : public OpTest {};

TEST_P(OpsBasic, Gather_picks_rows_and_writes_zeros_for_minus_one) {
    RowsGather p{f32({3, 4}, {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23}), i32({4}, {2, -1, 0, 2}),
                 filled(DType::f32, {4, 4}, 0xFF)};
    run(p);
    EXPECT_EQ(floats(p.out),
              (std::vector<float>{20, 21, 22, 23, 0, 0, 0, 0, 0, 1, 2, 3, 20, 21, 22, 23}));
}

TEST_P(OpsBasic, Scatter_writes_named_rows_only) {
    RowsScatter p{f32({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}), i32({2}, {2, -1}),
                  f32({3, 4}, std::vector<float>(12, 9.0f))};
    run(p);
    EXPECT_EQ(floats(p.out), (std::vector<float>{9, 9, 9, 9, 9, 9, 9, 9, 1, 2, 3, 4}));
}

TEST_P(OpsBasic, Gather_moves_rows_of_higher_rank) {
    std::vector<float> x;
    for (int i = 0; i < 3 * 4 * 8; ++i) {
        x.push_back(static_cast<float>(i % 251));
    }
    RowsGather p{bf16({3, 4, 8}, x), i32({1}, {1}), zeros(DType::bf16, {1, 4, 8})};
    run(p);
    EXPECT_EQ(floats(p.out), std::vector<float>(x.begin() + 32, x.begin() + 64));
}

TEST_P(OpsBasic, Digest_ignores_order_and_padding_but_not_content_position_or_slot) {
    Random random(1);
    const std::vector<float> a = random.bells(8);
    const std::vector<float> b = random.bells(8);
    const auto digest = [&](std::vector<float> x, const std::vector<RowInfo>& row) {
        RowsDigest p;
        p.x = f32({static_cast<int64_t>(row.size()), 8}, x);
        p.rows = rows(row, {});
        p.out = filled(DType::u64, {1}, 0xFF);
        run(p);
        return get<uint64_t>(p.out)[0];
    };
    const auto join = [](std::vector<float> x, const std::vector<float>& y) {
        x.insert(x.end(), y.begin(), y.end());
        return x;
    };
    const RowInfo first{5, 1, 0, 0};
    const RowInfo second{6, 1, 0, 0};
    const uint64_t sum = digest(join(a, b), {first, second});
    EXPECT_EQ(digest(join(b, a), {second, first}), sum);
    EXPECT_EQ(digest(join(join(a, std::vector<float>(8, NAN)), b), {first, RowInfo{}, second}),
              sum);
    EXPECT_NE(digest(join(b, a), {first, second}), sum);
    EXPECT_NE(digest(join(a, b), {first, RowInfo{7, 1, 0, 0}}), sum);
    EXPECT_NE(digest(join(a, b), {first, RowInfo{6, 2, 0, 0}}), sum);
    std::vector<float> swapped = a;  // two 8-byte words of the row change places
    std::swap_ranges(swapped.begin(), swapped.begin() + 2, swapped.begin() + 2);
    EXPECT_NE(digest(swapped, {first}), digest(a, {first}));
    EXPECT_EQ(digest({}, {}), 0u);
}

TEST_P(OpsBasic, Embedding_fills_four_streams_and_injects) {
    std::vector<float> table;
    std::vector<float> image;
    for (int i = 0; i < 3 * 8; ++i) {
        table.push_back(static_cast<float>(i));
    }
    for (int i = 0; i < 8; ++i) {
        image.push_back(static_cast<float>(100 + i));
    }
    EmbedGather p;
    p.ids = i32({4}, {2, 1, 3, -1});  // 3 and -1 are outside
    p.table = bf16({3, 8}, table);
    p.inject = bf16({1, 8}, image);
    p.inject_index = i32({4}, {-1, 0, -1, -1});
    p.out = filled(DType::bf16, {4, 4, 8}, 0xFF);
    p.pre = filled(DType::f32, {4, 4}, 0xFF);
    run(p);
    const std::vector<float> out = floats(p.out);
    const std::vector<float> pre = floats(p.pre);
    for (size_t t = 0; t < 4; ++t) {
        for (size_t i = 0; i < 32; ++i) {
            const float expected = t == 0   ? static_cast<float>(16 + i % 8)
                                   : t == 1 ? static_cast<float>(100 + i % 8)
                                            : 0.0f;
            EXPECT_EQ(out[t * 32 + i], expected) << t << ", " << i;
        }
        EXPECT_EQ(pre[t * 4], 1.0f);
        EXPECT_EQ(pre[t * 4 + 1] + pre[t * 4 + 2] + pre[t * 4 + 3], 0.0f);
    }
}

TEST_P(OpsBasic, Norm_of_zero_is_zero_and_scale_does_not_matter) {
    Random random(2);
    const int64_t n = 160;
    const std::vector<float> x = random.bells(n);
    std::vector<float> in(static_cast<size_t>(n), 0.0f);
    for (float scale : {1.0f, 1e18f, 1e-6f}) {
        for (float v : x) {
            in.push_back(v * scale);
        }
    }
    NormRms p{f32({4, n}, in), f32({n}, std::vector<float>(static_cast<size_t>(n), 1.0f)),
              zeros(DType::f32, {4, n}), 1e-20f};
    run(p);
    const std::vector<float> y = floats(p.out);
    double square = 0;
    for (float v : x) {
        square += static_cast<double>(v) * v;
    }
    const double rms = std::sqrt(square / static_cast<double>(n));
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        EXPECT_EQ(y[i], 0.0f);
        for (size_t r = 1; r < 4; ++r) {
            // Three f32 roundings (mean, root, product) beside the input's own.
            EXPECT_NEAR(y[r * static_cast<size_t>(n) + i], x[i] / rms,
                        4e-7 * std::fabs(x[i] / rms) + 1e-12)
                << "row " << r;
        }
    }
    // Row 3 has squares near 1e-12, far above eps; at 1e-12 the squares fall below eps and eps
    // decides.
    std::vector<float> tiny;
    for (float v : x) {
        tiny.push_back(v * 1e-12f);
    }
    NormRms q{f32({1, n}, tiny), p.weight, zeros(DType::f32, {1, n}), 1e-20f};
    run(q);
    const std::vector<float> z = floats(q.out);
    const double root = std::sqrt(square * 1e-24 / static_cast<double>(n) + 1e-20);
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        const double expected = static_cast<double>(tiny[i]) / root;
        EXPECT_NEAR(z[i], expected, 1e-6 * std::fabs(expected) + 1e-15);
    }
}

TEST_P(OpsBasic, Norm_rounds_once_not_twice) {
    // Rounding r to bf16 before the weight (two roundings) gives other bits somewhere in 64 x 256
    // values.
    Random random(3);
    const std::vector<float> x = random.bells(64 * 256);
    const std::vector<float> w = random.bells(256);
    NormRms p{bf16({64, 256}, x), bf16({256}, w), zeros(DType::bf16, {64, 256}), 1e-20f};
    run(p);
    NormRms plain{p.x, f32({256}, std::vector<float>(256, 1.0f)), zeros(DType::bf16, {64, 256}),
                  1e-20f};
    run(plain);
    const std::vector<float> once = floats(p.out);
    const std::vector<float> r = floats(plain.out);
    const std::vector<float> weight = floats(p.weight);
    int64_t differs = 0;
    for (size_t i = 0; i < once.size(); ++i) {
        differs += once[i] != round_bf16(r[i] * weight[i % 256]);
        EXPECT_LE(bf16_ulps(once[i], round_bf16(r[i] * weight[i % 256])), 2);
    }
    EXPECT_GT(differs, 100);
}

TEST_P(OpsBasic, Norm_works_in_place_and_on_strided_rows) {
    Random random(4);
    const std::vector<float> x = random.bells(4 * 64);
    const TensorView whole = bf16({2, 128}, x);
    TensorView left = whole;
    left.shape[1] = 64;
    const TensorView w = bf16({64}, random.bells(64));
    NormRms apart{left, w, zeros(DType::bf16, {2, 64}), 1e-20f};
    run(apart);
    NormRms same{left, w, left, 1e-20f};
    run(same);
    const std::vector<float> after = floats(whole);
    const std::vector<float> expected = floats(apart.out);
    for (size_t i = 0; i < 64; ++i) {
        EXPECT_EQ(after[i], expected[i]);
        EXPECT_EQ(after[128 + i], expected[64 + i]);
        EXPECT_EQ(after[64 + i], round_bf16(x[64 + i])) << "the right half is not ours";
    }
}

// --- mHC: the test vector of dsv41.md 3.2 (doubles): m = sin(1.3 i), base = 0.05 i, scale = (1,
// 0.5, 2).

constexpr int64_t kD = 64;
const std::vector<float> kPre = {.500001f, .7337169f, .6491957f, .3687084f};
const std::vector<float> kPost = {.8797214f, 1.1768993f, 1.3796373f, 1.2494016f};
const std::vector<float> kComb = {.0083700f, .0287329f, .5729508f, .3899452f, .1644448f, .0622128f,
                                  .2231012f, .5502402f, .6314684f, .2386274f, .0772377f, .0526655f,
                                  .1957158f, .6704260f, .1267092f, .0071480f};

class OpsMhc : public OpTest {
  protected:
    /// h has mean square 1 and fn makes fn . v = sin(1.3 i) exactly as far as f32 goes.
    MhcMix vector_case(int32_t iters = 20) {
        std::vector<float> fn(24 * 4 * kD, 0.0f);
        std::vector<float> base;
        for (size_t i = 0; i < 24; ++i) {
            for (size_t k = 0; k < 4 * kD; ++k) {
                fn[i * 4 * kD + k] = std::sin(1.3f * static_cast<float>(i)) / (4 * kD);
            }
            base.push_back(0.05f * static_cast<float>(i));
        }
        MhcMix p;
        p.h = bf16({1, 4, kD}, std::vector<float>(4 * kD, 1.0f));
        p.fn = f32({24, 4 * kD}, fn);
        p.scale = f32({3}, {1, 0.5f, 2});
        p.base = f32({24}, base);
        p.iters = iters;
        p.pre = zeros(DType::f32, {1, 4});
        p.post = zeros(DType::f32, {1, 4});
        p.comb = zeros(DType::f32, {1, 4, 4});
        return p;
    }
    static float farthest(const std::vector<float>& a, const std::vector<float>& b) {
        float most = 0;
        for (size_t i = 0; i < a.size(); ++i) {
            most = std::max(most, std::fabs(a[i] - b[i]));
        }
        return most;
    }
};

TEST_P(OpsMhc, Coefficients_of_the_spec_vector) {
    const MhcMix p = vector_case();
    run(p);
    EXPECT_LT(farthest(floats(p.pre), kPre), 1e-6f);
    EXPECT_LT(farthest(floats(p.post), kPost), 2e-6f);
    EXPECT_LT(farthest(floats(p.comb), kComb), 1e-6f);
}

TEST_P(OpsMhc, Wrong_variants_of_the_mix_are_told_apart) {
    for (int32_t iters : {19, 21}) {
        const MhcMix p = vector_case(iters);
        run(p);
        EXPECT_GT(farthest(floats(p.comb), kComb), 1e-7f) << iters << " iterations must differ";
    }
    const MhcMix p = vector_case();
    run(p);
    const std::vector<float> comb = floats(p.comb);
    std::vector<float> transposed;
    for (size_t i = 0; i < 16; ++i) {
        transposed.push_back(comb[i % 4 * 4 + i / 4]);
    }
    EXPECT_GT(farthest(transposed, kComb), 0.1f);
    MhcMix outside = vector_case();
    outside.eps = 1e-6f;  // of the mean: scale of m changes by 5e-7 relative, visible in post
    outside.hc_eps = 0;
    run(outside);
    EXPECT_GT(farthest(floats(outside.pre), kPre), 5e-7f) << "hc_eps belongs to pre";
}

TEST_P(OpsMhc, Other_stream_counts_are_unsupported) {
    MhcMix p = vector_case();
    p.h = zeros(DType::bf16, {1, 2, kD});
    refused(p, "h", Code::unsupported);
}

TEST_P(OpsMhc, Collapse_and_expand_have_their_fma_form) {
    Random random(5);
    const int64_t T = 3;
    const std::vector<float> pre = random.bells(T * 4);
    const std::vector<float> post = random.bells(T * 4);
    const std::vector<float> comb = random.bells(T * 16);
    const TensorView h = bf16({T, 4, kD}, random.bells(T * 4 * kD));
    const TensorView y = f32({T, kD}, random.bells(T * kD));
    MhcCollapse c{h, f32({T, 4}, pre), zeros(DType::bf16, {T, kD})};
    run(c);
    MhcExpand e{y, h, f32({T, 4}, post), f32({T, 4, 4}, comb), zeros(DType::bf16, {T, 4, kD})};
    run(e);
    const std::vector<float> hv = floats(h);
    const std::vector<float> yv = floats(y);
    const std::vector<float> x = floats(c.out);
    const std::vector<float> out = floats(e.out);
    for (size_t t = 0; t < T; ++t) {
        for (size_t i = 0; i < kD; ++i) {
            float acc = 0;
            for (size_t j = 0; j < 4; ++j) {
                acc = std::fma(pre[t * 4 + j], hv[(t * 4 + j) * kD + i], acc);
            }
            ASSERT_EQ(x[t * kD + i], round_bf16(acc)) << t << ", " << i;
            for (size_t k = 0; k < 4; ++k) {
                acc = 0;
                for (size_t j = 0; j < 4; ++j) {
                    acc = std::fma(comb[t * 16 + j * 4 + k], hv[(t * 4 + j) * kD + i], acc);
                }
                acc = std::fma(post[t * 4 + k], round_bf16(yv[t * kD + i]), acc);
                ASSERT_EQ(out[(t * 4 + k) * kD + i], round_bf16(acc))
                    << t << ", " << k << ", " << i;
            }
        }
    }
    const std::vector<uint8_t> apart = bytes(e.out);
    e.out = e.h;
    run(e);
    EXPECT_EQ(bytes(e.h), apart) << "in place";
    MhcExpand rounded{bf16({T, kD}, yv), upload(h), e.post, e.comb, zeros(DType::bf16, {T, 4, kD})};
    rounded.h = bf16({T, 4, kD}, hv);
    run(rounded);
    EXPECT_EQ(bytes(rounded.out), apart) << "a f32 y is rounded to bf16 first";
}

TEST_P(OpsMhc, Mean_writes_a_third_of_a_wider_row) {
    Random random(6);
    const TensorView h = bf16({2, 4, kD}, random.bells(2 * 4 * kD));
    const TensorView taps = filled(DType::bf16, {2, 3 * kD}, 0x55);
    TensorView middle = taps;
    middle.data = static_cast<char*>(taps.data) + kD * 2;
    middle.shape[1] = kD;
    run(MhcMean{h, middle});
    const std::vector<float> hv = floats(h);
    const std::vector<float> got = floats(taps);
    for (size_t t = 0; t < 2; ++t) {
        for (size_t i = 0; i < kD; ++i) {
            const float* s = hv.data() + t * 4 * kD + i;
            EXPECT_EQ(got[t * 3 * kD + kD + i],
                      round_bf16((s[0] + s[kD] + s[2 * kD] + s[3 * kD]) * 0.25f));
            EXPECT_EQ(got[t * 3 * kD + i], bf16_to_f32(0x5555));
            EXPECT_EQ(got[t * 3 * kD + 2 * kD + i], bf16_to_f32(0x5555));
        }
    }
}

class OpsLinear : public OpTest {};

TEST_P(OpsLinear, Every_type_and_odd_shapes_stay_within_the_bound) {
    Random random(7);
    for (int64_t T : {1, 2, 3, 5, 7}) {
        for (int64_t K : {8, 24, 40, 256, 592}) {
            for (int64_t N : {1, 2, 3, 4, 5, 72}) {
                const std::vector<float> xs = random.bells(T * K);
                const std::vector<float> ws = random.bells(N * K);
                const bool x16 = random.below(2) == 0;
                const bool w16 = random.below(2) == 0;
                const bool biased = random.below(2) == 0;
                LinearPlain p;
                p.x = x16 ? bf16({T, K}, xs) : f32({T, K}, xs);
                p.w = w16 ? bf16({N, K}, ws) : f32({N, K}, ws);
                const std::vector<float> bs = random.bells(N);
                if (biased) {
                    p.bias = f32({N}, bs);
                }
                p.y = zeros(DType::f32, {T, N});
                run(p);
                LinearPlain q = p;
                q.y = zeros(DType::bf16, {T, N});
                run(q);
                const std::vector<float> x = floats(p.x);
                const std::vector<float> w = floats(p.w);
                const std::vector<float> y = floats(p.y);
                const std::vector<float> y16 = floats(q.y);
                for (int64_t t = 0; t < T; ++t) {
                    for (int64_t n = 0; n < N; ++n) {
                        double sum = biased ? static_cast<double>(bs[static_cast<size_t>(n)]) : 0;
                        double size = std::fabs(sum);
                        for (int64_t k = 0; k < K; ++k) {
                            const double v =
                                static_cast<double>(x[static_cast<size_t>(t * K + k)]) *
                                w[static_cast<size_t>(n * K + k)];
                            sum += v;
                            size += std::fabs(v);
                        }
                        const auto at = static_cast<size_t>(t * N + n);
                        EXPECT_NEAR(y[at], sum, static_cast<double>(K + 2) * 0x1p-24 * size);
                        EXPECT_EQ(y16[at], round_bf16(y[at])) << "bf16 is the rounding of f32";
                    }
                }
            }
        }
    }
}

TEST_P(OpsLinear, Strided_rows_of_x_and_y) {
    Random random(8);
    const TensorView x = bf16({3, 64}, random.bells(3 * 64));
    const TensorView w = bf16({8, 32}, random.bells(8 * 32));
    TensorView half = x;
    half.data = static_cast<char*>(x.data) + 64;
    half.shape[1] = 32;
    const TensorView wide = filled(DType::f32, {3, 16}, 0);
    TensorView left = wide;
    left.shape[1] = 8;
    LinearPlain p;
    p.x = half;
    p.w = w;
    p.y = left;
    run(p);
    std::vector<float> dense;
    const std::vector<float> xs = floats(x);
    for (size_t t = 0; t < 3; ++t) {
        dense.insert(dense.end(), xs.begin() + static_cast<long>(t * 64 + 32),
                     xs.begin() + static_cast<long>(t * 64 + 64));
    }
    LinearPlain q;
    q.x = bf16({3, 32}, dense);
    q.w = w;
    q.y = zeros(DType::f32, {3, 8});
    run(q);
    const std::vector<float> got = floats(wide);
    const std::vector<float> expected = floats(q.y);
    for (size_t t = 0; t < 3; ++t) {
        for (size_t n = 0; n < 8; ++n) {
            EXPECT_EQ(got[t * 16 + n], expected[t * 8 + n]);
            EXPECT_EQ(got[t * 16 + 8 + n], 0.0f);
        }
    }
}

// serving.md 10: a mode from the environment must not change numbers. As TF32, 1 + 2^-12 is 1.
TEST_P(OpsLinear, Pitfall_16_Factors_of_f32_products_keep_24_bits) {
    constexpr int64_t K = 512, N = 64;
    const float factor = 1.0f + 0x1p-12f;
    const double expected = K * static_cast<double>(factor) * factor;
    for (const int64_t T : {1, 96}) {
        LinearPlain p;
        p.x = f32({T, K}, std::vector<float>(static_cast<size_t>(T * K), factor));
        p.w = f32({N, K}, std::vector<float>(static_cast<size_t>(N * K), factor));
        for (const Regime regime : {Regime::decode, Regime::prefill}) {
            p.y = zeros(DType::f32, {T, N});
            run(p, regime);
            for (const float y : floats(p.y)) {
                ASSERT_NEAR(y, expected, (K + 2) * 0x1p-24 * expected);
            }
        }
    }
}

TENON_INSTANTIATE_OPS(OpsBasic);
TENON_INSTANTIATE_OPS(OpsMhc);
TENON_INSTANTIATE_OPS(OpsLinear);

}  // namespace
}  // namespace tenon::testing
