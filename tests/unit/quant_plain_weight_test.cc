// SPDX-License-Identifier: MIT
// Ordinary weights through the format: values, products, groups, shards, input rounding and
// refusals.

#include "plugins/quant_plain/format.h"
#include "quant_forms.h"
#include "tenon/testing/quant_harness.h"
#include "tenon/testing/quant_samples.h"

namespace tenon::testing {
namespace {

class PlainWeight : public ::testing::TestWithParam<const char*> {
  protected:
    QuantBench bench{format_for(GetParam(), plain::make_format(false)), GetParam()};
};

TEST_P(PlainWeight, Every_encoding_dequantizes_exactly) {
    for (const Fake kind : kFakes) {
        for (const auto& [out, in] : {std::pair{96, 64}, std::pair{300, 160}}) {
            const std::vector<float> w = add_plain(*bench.source, "p", kind, out, in);
            const auto weight = bench.load("p", in, out);

            EXPECT_EQ(dequantized(*weight), w) << fake_name(kind);
        }
    }
}

TEST_P(PlainWeight, Every_code_of_the_narrow_formats_keeps_its_value) {
    std::vector<uint8_t> codes(256 * 32);
    for (size_t i = 0; i < codes.size(); ++i) {
        const auto code = static_cast<uint8_t>(i / 32);
        codes[i] = (code & 0x7F) == 0x7F ? 0 : code;
    }
    for (const int scale : {0, 1, 7, 126, 127, 128, 240}) {
        bench.source->add("p.weight", DType::e4m3, {256, 32}, codes);
        bench.source->add("p.scale", DType::e8m0, {8, 1},
                          std::vector<uint8_t>(8, static_cast<uint8_t>(scale)));
        bench.source->add("q.weight", DType::i8, {256, 16},
                          std::vector<uint8_t>(codes.begin(), codes.begin() + 256 * 16));
        bench.source->add("q.scale", DType::e8m0, {256, 1},
                          std::vector<uint8_t>(256, static_cast<uint8_t>(scale)));
        const double size = std::ldexp(1.0, scale - 127);
        const std::vector<float> p = dequantized(*bench.load("p"));
        const std::vector<float> q = dequantized(*bench.load("q"));
        // A row of x with a single one picks a column, so the product path is checked code by code.
        std::vector<uint16_t> unit(32, 0);
        unit[5] = 0x3F80;
        const std::vector<float> yp = run_linear(*bench.load("p"), unit);
        const std::vector<float> yq = run_linear(*bench.load("q"), unit);
        for (size_t o = 0; o < 256; ++o) {
            const double expected = static_cast<double>(e4m3_to_f32(codes[o * 32])) * size;
            ASSERT_EQ(static_cast<double>(p[o * 32]), expected) << o << " scale " << scale;
            ASSERT_EQ(static_cast<double>(yp[o]), expected) << o << " scale " << scale;
            const uint8_t byte = codes[o * 16];
            ASSERT_EQ(static_cast<double>(q[o * 32]),
                      static_cast<double>(e2m1_to_f32(byte & 15)) * size);
            ASSERT_EQ(static_cast<double>(q[o * 32 + 1]),
                      static_cast<double>(e2m1_to_f32(byte >> 4)) * size);
            ASSERT_EQ(static_cast<double>(yq[o]),
                      static_cast<double>(e2m1_to_f32(codes[o * 16 + 2] >> 4)) * size);
        }
    }
}

TEST_P(PlainWeight, Products_are_within_f32_summation_error) {
    for (const Fake kind : kFakes) {
        for (const auto& [out, in] :
             {std::pair{24, 64}, std::pair{130, 96}, std::pair{512, 1024}}) {
            const std::vector<float> w = add_plain(*bench.source, "p", kind, out, in);
            const auto weight = bench.load("p");
            const std::vector<uint16_t> x = random_rows(9 * in, 3);

            const std::vector<double> y = widen(run_linear(*weight, x));

            const std::vector<double> expected = oracle(w, x, in);
            // A chain of n roundings of relative size 2^-24 each, random signs: sqrt(n) 2^-24.
            EXPECT_LE(relative_rms(y.data(), expected.data(), 9 * out), 4 * std::sqrt(in) * 0x1p-24)
                << fake_name(kind) << " " << out << "x" << in;
        }
    }
}

TEST_P(PlainWeight, Info_names_encoding_and_granules) {
    struct {
        Fake kind;
        const char* codec;
        double bits;
        int64_t granule_in, granule_out, bytes;
    } const expected[] = {{Fake::f32, "f32", 32, 1, 1, 64 * 96 * 4},
                          {Fake::bf16, "bf16", 16, 1, 1, 64 * 96 * 2},
                          {Fake::f16, "f16", 16, 1, 1, 64 * 96 * 2},
                          {Fake::fp8, "fp8 32x32", 8, 32, 32, 64 * 96 + 2 * 3},
                          {Fake::fp4, "fp4 1x32", 4, 32, 1, 64 * 48 + 64 * 3}};
    for (const auto& e : expected) {
        bench.source->remove("p.scale");
        add_plain(*bench.source, "p", e.kind, 64, 96);
        QuantInfo info;
        TENON_ASSERT_OK(bench.format->inspect(*bench.source, "p", &info));
        EXPECT_STREQ(info.codec, e.codec);
        EXPECT_EQ(info.bits, e.bits);
        EXPECT_EQ(info.out_features, 64);
        EXPECT_EQ(info.in_features, 96);
        EXPECT_EQ(info.granule_in, e.granule_in);
        EXPECT_EQ(info.granule_out, e.granule_out);
        EXPECT_EQ(info.bytes, e.bytes);
    }
}

TEST_P(PlainWeight, Groups_multiply_their_own_input_and_equal_the_slices) {
    for (const Fake kind : kFakes) {
        add_plain(*bench.source, "p", kind, 3 * 64, 96);
        const auto grouped = bench.load("p", 96, 3 * 64, 3);
        const auto whole = bench.load("p", 96, 3 * 64);
        const std::vector<uint16_t> x = random_rows(4 * 3 * 96, 5);

        const std::vector<float> y = run_linear(*grouped, x);

        const std::vector<float> all = run_linear(*whole, x);  // 12 rows: (t, g)
        EXPECT_EQ(dequantized(*grouped), dequantized(*whole));
        for (size_t t = 0; t < 4; ++t) {
            for (size_t g = 0; g < 3; ++g) {
                for (size_t c = 0; c < 64; ++c) {
                    ASSERT_EQ(y[t * 192 + g * 64 + c], all[(t * 3 + g) * 192 + g * 64 + c])
                        << fake_name(kind);
                }
            }
        }
    }
}

TEST_P(PlainWeight, Shards_are_the_matching_part) {
    for (const Fake kind : kFakes) {
        const std::vector<float> w = add_plain(*bench.source, "p", kind, 192, 224);
        for (const int32_t world : {2, 3, 4}) {
            int64_t row = 0;
            int64_t column = 0;
            for (int32_t rank = 0; rank < world; ++rank) {
                WeightRequest r = bench.request("p", 224, 192);
                r.shard = {ShardAxis::out, rank, world};
                const auto rows = bench.load(r);
                const int64_t out = rows->info().out_features;
                const std::vector<float> part = dequantized(*rows);
                EXPECT_TRUE(std::equal(part.begin(), part.end(), w.begin() + row * 224));
                row += out;
                r.shard.axis = ShardAxis::in;
                const auto columns = bench.load(r);
                const int64_t in = columns->info().in_features;
                const std::vector<float> cut = dequantized(*columns);
                for (int64_t o = 0; o < 192; ++o) {
                    ASSERT_TRUE(std::equal(cut.begin() + o * in, cut.begin() + (o + 1) * in,
                                           w.begin() + o * 224 + column));
                }
                column += in;
            }
            EXPECT_EQ(row, 192);
            EXPECT_EQ(column, 224);
        }
    }
}

TEST_P(PlainWeight, Group_shards_keep_whole_groups) {
    const std::vector<float> w = add_plain(*bench.source, "p", Fake::fp8, 4 * 32, 64);
    WeightRequest r = bench.request("p", 64, 128, 4);
    r.shard = {ShardAxis::group, 1, 2};

    const auto weight = bench.load(r);

    EXPECT_EQ(weight->info().groups, 2);
    EXPECT_EQ(weight->info().out_features, 64);
    const std::vector<float> part = dequantized(*weight);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), w.begin() + 64 * 64));
}

TEST_P(PlainWeight, Planned_bytes_equal_the_loaded_ones) {
    for (const Fake kind : kFakes) {
        add_plain(*bench.source, "p", kind, 160, 96);
        for (const int32_t world : {1, 2}) {
            WeightRequest r = bench.request("p");
            r.shard = {ShardAxis::in, world - 1, world};
            int64_t planned = 0;
            TENON_ASSERT_OK(bench.format->plan_bytes(r, &planned));
            EXPECT_EQ(planned, bench.load(r)->device_bytes()) << fake_name(kind);
        }
    }
}

// docs/dsv41.md 3.3: groups of 32 along the input, power-of-two scale, E4M3.
std::vector<float> rounded_input(const std::vector<uint16_t>& x) {
    std::vector<float> q;
    for (size_t g = 0; g < x.size(); g += 32) {
        float largest = 1e-4f;
        for (size_t i = g; i < g + 32; ++i) {
            largest = std::max(largest, std::abs(bf16_to_f32(x[i])));
        }
        const float scale = std::exp2(std::ceil(std::log2(largest / 448.0f)));
        for (size_t i = g; i < g + 32; ++i) {
            q.push_back(e4m3_to_f32(f32_to_e4m3(bf16_to_f32(x[i]) / scale)) * scale);
        }
    }
    return q;
}

TEST_P(PlainWeight, Activation_rounding_touches_only_narrow_weights_that_allow_it) {
    QuantBench rounding{format_for(GetParam(), plain::make_format(true)), GetParam()};
    const std::vector<uint16_t> x = random_rows(3 * 96, 6);
    const std::vector<float> q = rounded_input(x);
    std::vector<uint16_t> qx;
    for (const float v : q) {
        qx.push_back(f32_to_bf16(v));  // E4M3 has 4 significant bits: exact
        ASSERT_EQ(bf16_to_f32(qx.back()), v);
    }
    for (const Fake kind : kFakes) {
        add_plain(*bench.source, "p", kind, 64, 96);
        rounding.source->remove("p.scale");
        add_plain(*rounding.source, "p", kind, 64, 96);
        const bool narrow = kind == Fake::fp8 || kind == Fake::fp4;

        const std::vector<float> on = run_linear(*rounding.load("p"), x);
        WeightRequest r = rounding.request("p");
        r.activation_quant = false;
        const std::vector<float> refused = run_linear(*rounding.load(r), x);
        const std::vector<float> plain = run_linear(*bench.load("p"), x);
        const std::vector<float> by_hand = run_linear(*bench.load("p"), qx);

        EXPECT_EQ(on, narrow ? by_hand : plain) << fake_name(kind);
        EXPECT_EQ(refused, plain) << fake_name(kind);
        if (narrow) {
            EXPECT_NE(on, plain) << fake_name(kind);
        }
        bench.source->remove("p.scale");
    }
}

INSTANTIATE_TEST_SUITE_P(Forms, PlainWeight, ::testing::ValuesIn(archs_here()),
                         [](const auto& param_info) { return arch_name(param_info.param); });

class PlainErrors : public ::testing::Test {
  protected:
    Status load() { return bench.load_status(bench.request("p")); }
    QuantBench bench{plain::make_format(false)};
};

TEST_F(PlainErrors, An_unknown_name_is_not_found) {
    QuantInfo info;
    TENON_EXPECT_ERROR(bench.format->inspect(*bench.source, "p", &info), Code::not_found,
                       "p.weight");
}

TEST_F(PlainErrors, A_scale_of_ff_is_refused) {
    for (const Fake kind : {Fake::fp8, Fake::fp4}) {
        add_plain(*bench.source, "p", kind, 64, 96);
        bench.source->bytes("p.scale")[kind == Fake::fp8 ? 4 : 40 * 3 + 1] = 0xFF;
        TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p.scale");
        TENON_EXPECT_ERROR(load(), Code::invalid_argument, "NaN (0xff)");
    }
}

TEST_F(PlainErrors, A_scale_of_ff_outside_of_the_shard_does_not_matter) {
    add_plain(*bench.source, "p", Fake::fp8, 64, 96);
    bench.source->bytes("p.scale")[0] = 0xFF;
    WeightRequest r = bench.request("p");
    r.shard = {ShardAxis::out, 1, 2};
    TENON_EXPECT_OK(bench.load_status(r));
}

TEST_F(PlainErrors, An_unusably_large_scale_is_refused) {
    add_plain(*bench.source, "p", Fake::fp4, 64, 96);
    bench.source->bytes("p.scale")[0] = 241;
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "2^114");
}

TEST_F(PlainErrors, Nan_and_infinite_weights_are_refused) {
    add_plain(*bench.source, "p", Fake::fp8, 64, 96);
    bench.source->bytes("p.weight")[96 * 3 + 7] = 0x7F;
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "row 3, column 7 is nan");
    bench.source->remove("p.scale");
    add_plain(*bench.source, "p", Fake::bf16, 64, 96);
    reinterpret_cast<uint16_t*>(bench.source->bytes("p.weight"))[5] = 0xFF80;
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "row 0, column 5 is -inf");
}

TEST_F(PlainErrors, Wrong_scales_are_refused) {
    add_plain(*bench.source, "p", Fake::fp8, 64, 96);
    bench.source->remove("p.scale");
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p.scale: is missing, expected e8m0[2, 3]");
    bench.source->add("p.scale", DType::e8m0, {2, 4}, std::vector<uint8_t>(8, 127));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "e8m0[2, 4], expected e8m0[2, 3]");
    bench.source->add("p.scale", DType::f32, {2, 3}, std::vector<float>(6, 1));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "f32[2, 3], expected e8m0[2, 3]");
    bench.source->remove("p.scale");
    add_plain(*bench.source, "p", Fake::bf16, 64, 96);
    bench.source->add("p.scale", DType::e8m0, {2, 3}, std::vector<uint8_t>(6, 127));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "belongs to a weight in bf16");
}

TEST_F(PlainErrors, Packed_fp4_needs_whole_groups) {
    bench.source->add("p.weight", DType::i8, {4, 24}, std::vector<uint8_t>(96, 0));
    bench.source->add("p.scale", DType::e8m0, {4, 2}, std::vector<uint8_t>(8, 127));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "48 columns, expected a multiple of 32");
}

TEST_F(PlainErrors, Truncated_tensors_are_refused) {
    bench.source->add("p.weight", DType::bf16, {4, 8}, std::vector<uint16_t>(31, 0));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p.weight: holds 62 bytes, expected 64");
    bench.source->add("p.weight", DType::e4m3, {4, 32}, std::vector<uint8_t>(128, 0));
    bench.source->add("p.scale", DType::e8m0, {1, 1}, std::vector<uint8_t>());
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p.scale: holds 0 bytes, expected 1");
}

TEST_F(PlainErrors, Other_types_and_ranks_are_refused) {
    bench.source->add("p.weight", DType::i32, {4, 8}, std::vector<int32_t>(32, 0));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "i32[4, 8], expected f32, bf16");
    bench.source->add("p.weight", DType::bf16, {32}, std::vector<uint16_t>(32, 0));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "bf16[32], expected a matrix [out, in]");
    bench.source->add("p.weight", DType::bf16, {0, 8}, std::vector<uint16_t>());
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "expected a matrix [out, in]");
}

TEST_F(PlainErrors, A_shape_other_than_the_models_is_refused) {
    add_plain(*bench.source, "p", Fake::bf16, 64, 96);
    TENON_EXPECT_ERROR(bench.load_status(bench.request("p", 96, 32)), Code::invalid_argument,
                       "[64, 96] (bf16), expected [32, 96]");
    TENON_EXPECT_ERROR(bench.load_status(bench.request("p", 64, 64)), Code::invalid_argument,
                       "expected [64, 64]");
    TENON_EXPECT_ERROR(bench.load_status(bench.request("p", 96, 0, 5)), Code::invalid_argument,
                       "in 5 groups");
}

TEST_F(PlainErrors, Requests_that_make_no_sense_are_refused) {
    add_plain(*bench.source, "p", Fake::fp8, 64, 96);
    WeightRequest r = bench.request("p");
    r.shard = {ShardAxis::out, 2, 2};
    TENON_EXPECT_ERROR(bench.load_status(r), Code::invalid_argument, "rank 2 of world 2");
    r.shard = {ShardAxis::out, 2, 3};
    TENON_EXPECT_ERROR(bench.load_status(r), Code::ok, "");
    r.shard = {ShardAxis::out, 0, 3};
    TENON_EXPECT_ERROR(bench.load_status(r), Code::invalid_argument, "too few");
    r.shard = {ShardAxis::group, 0, 2};
    TENON_EXPECT_ERROR(bench.load_status(r), Code::invalid_argument, "cannot be cut");
    r.shard = {};
    r.source = nullptr;
    TENON_EXPECT_ERROR(bench.load_status(r), Code::invalid_argument, "without a weight source");
    r = bench.request("p");
    r.device = nullptr;
    TENON_EXPECT_ERROR(bench.load_status(r), Code::invalid_argument, "without a device");
    bench.device->cpu = false;
    TENON_EXPECT_ERROR(bench.load_status(bench.request("p")), Code::unsupported,
                       "cannot be loaded on device 'test'");
}

}  // namespace
}  // namespace tenon::testing
