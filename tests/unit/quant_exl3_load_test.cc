// SPDX-License-Identifier: MIT
// Loading EXL3: cuts for ranks, groups of matrices, memory plan, and every malformed tensor
// (docs/exl3.md 4 and 7.10, 7.11).
#include "plugins/quant_exl3/format.h"
#include "quant_exl3_util.h"
#include "quant_forms.h"
#include "tenon/testing/quant_harness.h"

namespace tenon::testing {
namespace {

using exl3::Codebook;

class Exl3Shards : public ::testing::TestWithParam<const char*> {
  protected:
    QuantBench bench{format_for(GetParam(), exl3::make_format()), GetParam()};
};

// Columns of one rank: the bits of the whole matrix, since no sum is cut.
TEST_P(Exl3Shards, Output_cuts_are_bit_equal_to_the_whole) {
    add_fake(*bench.source, "p", {.twice_k = 7, .k = 256, .n = 640, .bias = true});
    const std::vector<uint16_t> x = random_rows(3 * 256, 1);
    const std::vector<float> whole = run_linear(*bench.load("p"), x);
    const std::vector<float> weight = dequantized(*bench.load("p"));
    for (const int32_t world : {2, 3, 4, 5}) {
        int64_t column = 0;
        for (int32_t rank = 0; rank < world; ++rank) {
            WeightRequest r = bench.request("p", 256, 640);
            r.shard = {ShardAxis::out, rank, world};
            const auto part = bench.load(r);
            const int64_t out = part->info().out_features;
            EXPECT_EQ(out % 128, 0);
            const std::vector<float> y = run_linear(*part, x);
            for (int64_t t = 0; t < 3; ++t) {
                ASSERT_TRUE(std::equal(y.begin() + t * out, y.begin() + (t + 1) * out,
                                       whole.begin() + t * 640 + column))
                    << rank << " of " << world;
            }
            const std::vector<float> w = dequantized(*part);
            EXPECT_TRUE(std::equal(w.begin(), w.end(), weight.begin() + column * 256));
            column += out;
        }
        EXPECT_EQ(column, 640);
    }
}

// Rows of one rank give a partial product; the bias counts once. Each of the 128 rotated sums
// behind an output has an error of at most (k + W) 2^-24 sum |a_i w_i| <= (k + W) 2^-24 |a| |w| on
// either side; the rotations keep norms, the scales suh differ by a factor of 3, and the output
// rotation adds 128 such sums with weight 1 / sqrt(128) each.
TEST_P(Exl3Shards, Input_cuts_add_up_to_the_whole_in_rank_order) {
    add_fake(*bench.source, "p", {.twice_k = 4, .k = 640, .n = 256, .bias = true});
    const std::vector<uint16_t> x = random_rows(3 * 640, 2);
    const std::vector<float> whole = run_linear(*bench.load("p"), x);
    const std::vector<float> weight = dequantized(*bench.load("p"));
    for (const int32_t world : {2, 3, 4, 5}) {
        std::vector<float> sum(3 * 256, 0.0f);
        int64_t channel = 0;
        for (int32_t rank = 0; rank < world; ++rank) {
            WeightRequest r = bench.request("p", 640, 256);
            r.shard = {ShardAxis::in, rank, world};
            const auto part = bench.load(r);
            const int64_t in = part->info().in_features;
            std::vector<uint16_t> mine;
            for (int64_t t = 0; t < 3; ++t) {
                mine.insert(mine.end(), x.begin() + t * 640 + channel,
                            x.begin() + t * 640 + channel + in);
            }
            const std::vector<float> y = run_linear(*part, mine);
            for (size_t i = 0; i < sum.size(); ++i) {
                sum[i] += y[i];
            }
            channel += in;
        }
        EXPECT_EQ(channel, 640);
        const auto norm = [](const auto* v, double (*value)(const void*, size_t)) {
            double sum_of_squares = 0;
            for (size_t c = 0; c < 640; ++c) {
                sum_of_squares += value(v, c) * value(v, c);
            }
            return std::sqrt(sum_of_squares);
        };
        double largest_column = 0;
        for (size_t o = 0; o < 256; ++o) {
            largest_column =
                std::max(largest_column, norm(weight.data() + o * 640, [](const void* v, size_t c) {
                             return static_cast<double>(static_cast<const float*>(v)[c]);
                         }));
        }
        for (size_t i = 0; i < sum.size(); ++i) {
            const double row = norm(x.data() + i / 256 * 640, [](const void* v, size_t c) {
                return static_cast<double>(bf16_to_f32(static_cast<const uint16_t*>(v)[c]));
            });
            ASSERT_NEAR(
                static_cast<double>(sum[i]), static_cast<double>(whole[i]),
                2 * (640 + 8 + world) * 0x1p-24 * 3 * row * largest_column * std::sqrt(128.0));
        }
    }
}

TEST_P(Exl3Shards, Padded_widths_are_cut_at_whole_rotations) {
    add_fake(*bench.source, "p", {.k = 384, .n = 384});
    for (const ShardAxis axis : {ShardAxis::out, ShardAxis::in}) {
        WeightRequest r = bench.request("p", 300, 300);
        r.shard = {axis, 2, 3};
        const QuantInfo info = bench.load(r)->info();
        EXPECT_EQ(axis == ShardAxis::out ? info.out_features : info.in_features, 44);
        EXPECT_EQ(axis == ShardAxis::out ? info.in_features : info.out_features, 300);
    }
}

TEST_P(Exl3Shards, Slices_are_cut_by_group) {
    for (uint32_t g = 0; g < 5; ++g) {
        add_fake(*bench.source, "w.slice." + std::to_string(g), {.twice_k = 6, .seed = g + 1});
    }
    const std::vector<float> whole = dequantized(*bench.load("w", 128, 640, 5));
    int64_t row = 0;
    for (int32_t rank = 0; rank < 3; ++rank) {
        WeightRequest r = bench.request("w", 128, 640, 5);
        r.shard = {ShardAxis::group, rank, 3};
        const std::vector<float> part = dequantized(*bench.load(r));
        EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + row * 128));
        row += static_cast<int64_t>(part.size()) / 128;
    }
    EXPECT_EQ(row, 640);
}

TEST_P(Exl3Shards, A_cut_that_leaves_one_group_accepts_its_group_dimension) {
    add_fake(*bench.source, "w.slice.0", {.seed = 1});
    add_fake(*bench.source, "w.slice.1", {.seed = 2});
    WeightRequest r = bench.request("w", 128, 256, 2);
    r.shard = {ShardAxis::group, 1, 2};
    const auto weight = bench.load(r);
    const std::vector<uint16_t> x = random_rows(2 * 128, 4);
    std::vector<float> y(2 * 128);
    Bytes scratch(weight->scratch_bytes(2, Regime::decode, DType::f32));
    LinearArgs args;
    args.x = make_view(x.data(), DType::bf16, {2, 1, 128});
    args.y = make_view(y.data(), DType::f32, {2, 1, 128});
    args.scratch = scratch.view();

    TENON_ASSERT_OK(weight->linear(args, bench.stream));

    EXPECT_EQ(y, run_linear(*bench.load("w.slice.1"), x));
}

TEST_P(Exl3Shards, Planned_bytes_equal_the_loaded_ones) {
    add_fake(*bench.source, "p", {.twice_k = 5, .k = 256, .n = 384, .bias = true});
    for (const ShardAxis axis : {ShardAxis::none, ShardAxis::out, ShardAxis::in}) {
        WeightRequest r = bench.request("p");
        r.shard = {axis, axis == ShardAxis::none ? 0 : 1, axis == ShardAxis::none ? 1 : 2};
        int64_t planned = 0;
        TENON_ASSERT_OK(bench.format->plan_bytes(r, &planned));
        EXPECT_EQ(planned, bench.load(r)->device_bytes());
    }
}

TEST_P(Exl3Shards, A_group_equals_its_members_one_by_one) {
    add_fake(*bench.source, "a", {.twice_k = 10, .k = 256, .n = 128, .seed = 1});
    add_fake(*bench.source, "b",
             {.twice_k = 8, .codebook = Codebook::mcg, .k = 256, .n = 384, .seed = 2});
    add_fake(*bench.source, "c", {.twice_k = 3, .k = 256, .n = 256, .seed = 3});
    // c reads the same rotated input as a.
    bench.source->add_bytes("c.suh", DType::f16, {256}, bench.source->bytes("a.suh"), 512);
    const char* names[] = {"a", "b", "c"};
    std::vector<WeightRequest> requests;
    for (const char* name : names) {
        requests.push_back(bench.request(name, 256));
    }
    Ref<QuantGroup> group;
    TENON_ASSERT_OK(bench.format->load_group(requests, group.out()));
    int64_t bytes = 0;
    for (const int64_t rows : {1, 5, 40}) {
        const std::vector<uint16_t> x = random_rows(rows * 256, 7);
        std::vector<float> ya(static_cast<size_t>(rows * 128));
        std::vector<float> yb(static_cast<size_t>(rows * 384));
        std::vector<uint16_t> yc(static_cast<size_t>(rows * 256));
        const TensorView ys[] = {make_view(ya.data(), DType::f32, {rows, 128}),
                                 make_view(yb.data(), DType::f32, {rows, 384}),
                                 make_view(yc.data(), DType::bf16, {rows, 256})};
        Bytes scratch(group->scratch_bytes(rows, Regime::decode));

        TENON_ASSERT_OK(group->linear(make_view(x.data(), DType::bf16, {rows, 256}),
                                      Span<const TensorView>(ys), Regime::decode, scratch.view(),
                                      bench.stream));

        EXPECT_EQ(ya, run_linear(*bench.load("a"), x));
        EXPECT_EQ(yb, run_linear(*bench.load("b"), x));
        const std::vector<float> wide = run_linear(*bench.load("c"), x);
        for (size_t i = 0; i < wide.size(); ++i) {
            ASSERT_EQ(yc[i], f32_to_bf16(wide[i]));
        }
    }
    for (const char* name : names) {
        bytes += bench.load(name)->device_bytes();
    }
    EXPECT_EQ(group->device_bytes(), bytes);
}

INSTANTIATE_TEST_SUITE_P(Forms, Exl3Shards, ::testing::ValuesIn(archs_here()),
                         [](const auto& param_info) { return arch_name(param_info.param); });

class Exl3Errors : public ::testing::Test {
  protected:
    Exl3Errors() { add_fake(*bench.source, "p", {.k = 256, .n = 128}); }
    Status load() { return bench.load_status(bench.request("p")); }
    Status inspect(StrView base) {
        QuantInfo info;
        return bench.format->inspect(*bench.source, base, &info);
    }
    void trellis(DType dtype, std::vector<int64_t> shape) {
        int64_t bytes = dtype_bytes(dtype);
        for (const int64_t n : shape) {
            bytes *= n;
        }
        const std::vector<uint8_t> zeros(static_cast<size_t>(std::max<int64_t>(0, bytes)), 0);
        bench.source->add_bytes("p.trellis", dtype, shape, zeros.data(), zeros.size());
    }

    QuantBench bench{exl3::make_format()};
};

TEST_F(Exl3Errors, Names_of_other_formats_are_not_found) {
    bench.source->add("q.weight", DType::bf16, {2, 2}, std::vector<uint16_t>(4, 0));
    TENON_EXPECT_ERROR(inspect("q"), Code::not_found, "q: no EXL3 tensors");
    TENON_EXPECT_ERROR(inspect("nothing"), Code::not_found, "nothing");
}

TEST_F(Exl3Errors, Two_markers_are_refused) {
    bench.source->add<int32_t>("p.mcg", DType::i32, {}, {1});
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p: has both markers mcg and mul1");
    TENON_EXPECT_ERROR(inspect("p"), Code::invalid_argument, "both markers");
}

TEST_F(Exl3Errors, Half_rates_need_the_mul1_marker) {
    for (const int words : {24, 40, 56}) {
        trellis(DType::i16, {16, 8, words});
        TENON_EXPECT_OK(load());
    }
    bench.source->rename("p.mul1", "p.mcg");
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "K = 3.5 with codebook mcg");
    bench.source->remove("p.mcg");
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "K = 3.5 with codebook 3inst");
}

TEST_F(Exl3Errors, Words_per_tile_must_make_a_rate) {
    for (const int words : {0, 4, 12, 47, 136}) {
        trellis(DType::i16, {16, 8, words});
        TENON_EXPECT_ERROR(
            load(), Code::invalid_argument,
            "p.trellis: is i16[16, 8, " + std::to_string(words) + "], expected 16 K words");
    }
    for (const int words : {8, 72, 88}) {  // K = 0.5, 4.5, 5.5
        trellis(DType::i16, {16, 8, words});
        TENON_EXPECT_ERROR(load(), Code::invalid_argument, "half rates are 1.5, 2.5 and 3.5");
    }
}

TEST_F(Exl3Errors, The_trellis_must_be_a_grid_of_16_bit_words) {
    trellis(DType::i32, {16, 8, 48});
    TENON_EXPECT_ERROR(load(), Code::invalid_argument,
                       "p.trellis: is i32[16, 8, 48], expected i16");
    trellis(DType::i16, {16, 8 * 48});
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "expected i16[in/16, out/16, 16 K]");
}

TEST_F(Exl3Errors, Widths_must_be_whole_rotations) {
    trellis(DType::i16, {12, 8, 48});
    TENON_EXPECT_ERROR(load(), Code::invalid_argument,
                       "192 x 128 channels; expected whole rotations");
    trellis(DType::i16, {16, 4, 48});
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "256 x 64 channels");
    trellis(DType::i16, {0, 8, 48});
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "0 x 128 channels");
}

TEST_F(Exl3Errors, Scales_must_match_the_trellis) {
    bench.source->add("p.suh", DType::f16, {128}, std::vector<uint16_t>(128, 0));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument,
                       "p.suh: is f16[128], expected f16[256] to match the trellis");
    add_fake(*bench.source, "p", {.k = 256, .n = 128});
    bench.source->add("p.svh", DType::bf16, {128}, std::vector<uint16_t>(128, 0));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p.svh: is bf16[128], expected f16[128]");
    bench.source->remove("p.svh");
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p: has a trellis but neither svh nor sv");
    bench.source->add("p.sv", DType::i16, {16}, std::vector<uint16_t>(16, 0));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p.sv: is i16[16], expected i16[8]");
    add_fake(*bench.source, "p", {.k = 256, .n = 128});
    bench.source->add("p.su", DType::i16, {16}, std::vector<uint16_t>(16, 0));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p: has both suh and su");
    bench.source->remove("p.su");
    bench.source->remove("p.sv");
    bench.source->remove("p.trellis");
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p: has suh and svh but no trellis");
}

TEST_F(Exl3Errors, Scales_must_be_finite) {
    reinterpret_cast<uint16_t*>(bench.source->bytes("p.suh"))[200] = 0x7E00;
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p.suh: element 200 is nan");
    TENON_EXPECT_OK(inspect("p"));  // values are read by load only
    add_fake(*bench.source, "p", {.k = 256, .n = 128});
    reinterpret_cast<uint16_t*>(bench.source->bytes("p.svh"))[3] = 0xFC00;
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p.svh: element 3 is -inf");
}

TEST_F(Exl3Errors, Truncated_tensors_are_refused) {
    bench.source->add("p.trellis", DType::i16, {16, 8, 48},
                      std::vector<uint16_t>(16 * 8 * 48 - 1, 0));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument,
                       "p.trellis: holds 12286 bytes, expected 12288 for i16[16, 8, 48]");
    add_fake(*bench.source, "p", {.k = 256, .n = 128});
    bench.source->add("p.svh", DType::f16, {128}, std::vector<uint16_t>(100, 0));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p.svh: holds 200 bytes, expected 256");
}

TEST_F(Exl3Errors, A_bad_bias_is_refused) {
    bench.source->add("p.bias", DType::f16, {256}, std::vector<uint16_t>(256, 0));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p.bias: is f16[256], expected f16[128]");
    bench.source->add("p.bias", DType::f32, {128}, std::vector<float>(128, 1e6f));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "p.bias: element 0 is inf as f16");
}

TEST_F(Exl3Errors, The_obsolete_scale_tensor_is_refused) {
    bench.source->add("p.scale", DType::f16, {1}, std::vector<uint16_t>(1, 0));
    TENON_EXPECT_ERROR(load(), Code::invalid_argument, "obsolete");
}

TEST_F(Exl3Errors, A_shape_other_than_the_models_is_refused) {
    TENON_EXPECT_ERROR(bench.load_status(bench.request("p", 128, 128)), Code::invalid_argument,
                       "p: trellis has 256 input channels, expected 128");
    TENON_EXPECT_ERROR(bench.load_status(bench.request("p", 256, 200)), Code::invalid_argument,
                       "128 output channels, expected 256 (padded to 128)");
    TENON_EXPECT_ERROR(bench.load_status(bench.request("p", 256, 128, 2)), Code::invalid_argument,
                       "cannot be cut into 2 groups");
}

TEST_F(Exl3Errors, Slices_must_be_complete_and_alike) {
    add_fake(*bench.source, "w.slice.0", {});
    add_fake(*bench.source, "w.slice.1", {.n = 256});
    TENON_EXPECT_ERROR(inspect("w"), Code::invalid_argument,
                       "w.slice.1: is 128 x 256 channels, but slice 0 is 128 x 128");
    add_fake(*bench.source, "w.slice.1", {});
    TENON_EXPECT_OK(inspect("w"));
    TENON_EXPECT_ERROR(bench.load_status(bench.request("w", 128, 384, 3)), Code::invalid_argument,
                       "w: holds 2 slices, expected 3");
    TENON_EXPECT_ERROR(bench.load_status(bench.request("w", 128, 128)), Code::invalid_argument,
                       "holds 2 slices, expected 1");
    bench.source->remove("w.slice.1.suh");
    TENON_EXPECT_ERROR(inspect("w"), Code::invalid_argument, "w.slice.1");
}

TEST_F(Exl3Errors, Cuts_must_leave_every_rank_something) {
    WeightRequest r = bench.request("p");
    r.shard = {ShardAxis::in, 0, 3};
    TENON_EXPECT_ERROR(bench.load_status(r), Code::invalid_argument,
                       "2 rotations of 128 channels are too few to give each of 3 ranks");
    r.shard = {ShardAxis::out, 0, 0};
    TENON_EXPECT_ERROR(bench.load_status(r), Code::invalid_argument, "rank 0 of world 0");
    r.shard = {ShardAxis::expert, 0, 2};
    TENON_EXPECT_ERROR(bench.load_status(r), Code::invalid_argument, "cannot be cut along axis 4");
}

TEST_F(Exl3Errors, Other_devices_are_unsupported) {
    bench.device->cpu = false;
    TENON_EXPECT_ERROR(load(), Code::unsupported, "cannot be loaded on device 'test'");
    WeightRequest r = bench.request("p");
    int64_t bytes = 0;
    TENON_EXPECT_ERROR(bench.format->plan_bytes(r, &bytes), Code::unsupported, "'p'");
    r.device = nullptr;
    TENON_EXPECT_ERROR(bench.load_status(r), Code::invalid_argument, "without a device");
}

TEST_F(Exl3Errors, Groups_of_mixed_formats_are_refused) {
    bench.source->add("q.weight", DType::bf16, {2, 256}, std::vector<uint16_t>(512, 0));
    const WeightRequest requests[] = {bench.request("p"), bench.request("q")};
    Ref<QuantGroup> group;
    TENON_EXPECT_ERROR(bench.format->load_group(Span<const WeightRequest>(requests), group.out()),
                       Code::unsupported, "q: is not exl3");
    TENON_EXPECT_ERROR(bench.format->load_group({}, group.out()), Code::unsupported, "0 matrices");
}

TEST_F(Exl3Errors, Groups_must_share_their_input_width) {
    add_fake(*bench.source, "q", {.k = 128, .n = 128});
    const WeightRequest requests[] = {bench.request("p"), bench.request("q")};
    Ref<QuantGroup> group;
    TENON_EXPECT_ERROR(bench.format->load_group(Span<const WeightRequest>(requests), group.out()),
                       Code::invalid_argument, "q: has 128 inputs, but p of its group has 256");
}

TEST_F(Exl3Errors, A_source_that_cannot_be_read_is_reported) {
    class Broken final : public Implements<Broken, WeightSource> {
      public:
        uint64_t count() noexcept override { return 0; }
        TensorInfo at(uint64_t) noexcept override { return {}; }
        Status find(StrView name, TensorInfo*) noexcept override {
            return error(Code::io, "{}: disk on fire", name);
        }
        Status map(StrView, TensorView*) noexcept override { return {}; }
        Status read(StrView, uint64_t, uint64_t, void*) noexcept override { return {}; }
        Span<const uint8_t> digest() noexcept override { return {}; }
    };
    Ref<Broken> broken(new Broken);
    QuantInfo info;
    TENON_EXPECT_ERROR(bench.format->inspect(*broken, "p", &info), Code::io, "disk on fire");
}

}  // namespace
}  // namespace tenon::testing
