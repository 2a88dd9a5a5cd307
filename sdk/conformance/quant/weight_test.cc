// SPDX-License-Identifier: MIT
// Rules of a single weight, whatever its packing: inspection, memory plan, product, row invariance,
// threads, cuts, refusals.
#include <cstring>
#include <numeric>

#include "quant/samples.h"

namespace tenon::testing {
namespace {

class QuantWeightRules : public QuantSuite {};

bool is_shifted_copy(const std::vector<float>& part, const std::vector<float>& whole, int64_t at) {
    return std::memcmp(part.data(), whole.data() + at, part.size() * sizeof(float)) == 0;
}

TEST_P(QuantWeightRules, Inspect_describes_what_load_gives) {
    for (const std::string& base : bases()) {
        const QuantInfo info = inspect(base);
        EXPECT_GT(info.in_features, 0) << base;
        EXPECT_GT(info.out_features, 0) << base;
        EXPECT_GE(info.groups, 1) << base;
        EXPECT_GT(info.bits, 0) << base;
        EXPECT_GT(info.bytes, 0) << base;
        EXPECT_GE(info.granule_in, 1) << base;
        EXPECT_GE(info.granule_out, 1) << base;
        EXPECT_NE(info.codec[0], '\0') << base;
        WeightRequest r = request(base);
        r.groups = info.groups;
        const QuantInfo loaded = load(r)->info();
        EXPECT_EQ(loaded.in_features, info.in_features) << base;
        EXPECT_EQ(loaded.out_features, info.out_features) << base;
        EXPECT_STREQ(loaded.codec, info.codec) << base;
    }
}

TEST_P(QuantWeightRules, An_unknown_name_is_not_found_and_named) {
    QuantInfo info;
    TENON_EXPECT_ERROR(format().inspect(source(), "no.such.matrix", &info), Code::not_found,
                       "no.such.matrix");
    const std::string base = "no.such.matrix";
    QuantWeight* untouched = nullptr;
    EXPECT_EQ(format().load(request(base), &untouched).code(), Code::not_found);
    EXPECT_EQ(untouched, nullptr);
}

TEST_P(QuantWeightRules, Planned_bytes_are_the_loaded_bytes) {
    for (const std::string& base : bases()) {
        int64_t planned = 0;
        TENON_ASSERT_OK(format().plan_bytes(request(base), &planned));
        EXPECT_EQ(load(base)->device_bytes(), planned) << base;
    }
}

TEST_P(QuantWeightRules, Widths_other_than_the_checkpoints_are_refused_by_name) {
    for (const std::string& base : bases()) {
        WeightRequest r = request(base);
        r.in_features = 4 * inspect(base).in_features;
        QuantWeight* untouched = nullptr;
        TENON_EXPECT_ERROR(format().load(r, &untouched), Code::invalid_argument, base);
        r = request(base);
        r.out_features = 4 * inspect(base).out_features;
        TENON_EXPECT_ERROR(format().load(r, &untouched), Code::invalid_argument, base);
        EXPECT_EQ(untouched, nullptr);
    }
}

TEST_P(QuantWeightRules, A_request_without_device_or_source_is_refused) {
    const std::string& base = bases()[0];
    QuantWeight* untouched = nullptr;
    WeightRequest r = request(base);
    r.device = nullptr;
    EXPECT_EQ(format().load(r, &untouched).code(), Code::invalid_argument);
    r = request(base);
    r.source = nullptr;
    EXPECT_EQ(format().load(r, &untouched).code(), Code::invalid_argument);
    r = request(base);
    r.shard = {ShardAxis::out, 2, 2};
    EXPECT_EQ(format().load(r, &untouched).code(), Code::invalid_argument);
    EXPECT_EQ(untouched, nullptr);
}

// ops.md 3.3: within 1e-3 of f64 sums over the decoded weight; the bf16 output is the rounded f32
// one.
TEST_P(QuantWeightRules, The_product_is_that_of_the_decoded_weight) {
    for (const std::string& base : bases()) {
        const auto weight = load(base);
        if (facet_of<QuantDequant>(weight.get()) == nullptr) {
            continue;
        }
        const QuantInfo info = weight->info();
        const int64_t out = info.out_features;
        const std::vector<uint16_t> x = random_rows(5 * info.in_features, 1);
        const std::vector<float> y = run_linear(*weight, x);
        std::vector<double> expected = oracle(dequantized(*weight), x, info.in_features);
        // A format may add a bias; it shows at x = 0.
        const std::vector<float> bias =
            run_linear(*weight, std::vector<uint16_t>(static_cast<size_t>(info.in_features), 0));
        for (size_t i = 0; i < expected.size(); ++i) {
            expected[i] += static_cast<double>(bias[i % static_cast<size_t>(out)]);
        }
        EXPECT_LE(relative_rms(widen(y).data(), expected.data(), 5 * out), 1e-3) << base;

        std::vector<uint16_t> narrow(static_cast<size_t>(5 * out));
        Bytes scratch(weight->scratch_bytes(5, Regime::decode, DType::bf16));
        LinearArgs args;
        args.x = make_view(x.data(), DType::bf16, {5, info.in_features});
        args.y = make_view(narrow.data(), DType::bf16, {5, out});
        args.scratch = scratch.view();
        TENON_ASSERT_OK(weight->linear(args, stream()));
        for (size_t i = 0; i < narrow.size(); ++i) {
            ASSERT_EQ(narrow[i], f32_to_bf16(y[i])) << base << " " << i;
        }
    }
}

TEST_P(QuantWeightRules, A_rows_bits_depend_on_nothing_but_the_row) {
    for (const std::string& base : bases()) {
        const auto weight = load(base);
        const int64_t in = weight->info().in_features;
        const int64_t out = weight->info().out_features;
        const std::vector<uint16_t> x = random_rows(130 * in, 2);
        for (const Regime regime : {Regime::decode, Regime::prefill}) {
            std::vector<std::vector<float>> alone;
            for (int64_t t = 0; t < 130; ++t) {
                alone.push_back(run_linear(
                    *weight, std::vector<uint16_t>(x.begin() + t * in, x.begin() + (t + 1) * in),
                    regime));
            }
            for (const int64_t rows : {2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 31, 33, 64, 65, 129, 130}) {
                if (regime == Regime::decode && rows > 64) {
                    continue;
                }
                const int64_t first = 130 - rows;
                const std::vector<float> y = run_linear(
                    *weight, std::vector<uint16_t>(x.begin() + first * in, x.end()), regime);
                for (int64_t t = 0; t < rows; ++t) {
                    ASSERT_TRUE(is_shifted_copy(alone[static_cast<size_t>(first + t)], y, t * out))
                        << base << ": row " << t << " of " << rows;
                }
            }
        }
    }
}

TEST_P(QuantWeightRules, Other_rows_may_hold_anything) {
    for (const std::string& base : bases()) {
        const auto weight = load(base);
        const int64_t in = weight->info().in_features;
        const int64_t out = weight->info().out_features;
        std::vector<uint16_t> x = random_rows(3 * in, 3);
        const std::vector<float> before = run_linear(*weight, x);
        for (int64_t i = 0; i < in; ++i) {
            x[static_cast<size_t>(i)] = 0x7FC0;
            x[static_cast<size_t>(2 * in + i)] = i % 2 == 0 ? 0x7F7F : 0xFF80;
        }
        const std::vector<float> after = run_linear(*weight, x);
        EXPECT_EQ(std::memcmp(before.data() + out, after.data() + out,
                              static_cast<size_t>(out) * sizeof(float)),
                  0)
            << base;
    }
}

TEST_P(QuantWeightRules, Any_number_of_threads_gives_the_same_bits) {
    for (const std::string& base : bases()) {
        const int64_t in = inspect(base).in_features;
        for (const int64_t rows : {1, 40}) {
            const std::vector<uint16_t> x = random_rows(rows * in, 4);
            const std::vector<float> expected = run_linear(*load(base), x);
            for (const int32_t workers : {1, 2, 3, 8}) {
                Ref<HostDevice> threaded(new HostDevice(workers));
                EXPECT_EQ(run_linear(*load(request(base, *threaded)), x), expected)
                    << base << ", " << workers << " workers";
            }
        }
    }
}

TEST_P(QuantWeightRules, No_rows_are_legal_and_short_scratch_is_refused) {
    for (const std::string& base : bases()) {
        const auto weight = load(base);
        const QuantInfo info = weight->info();
        LinearArgs args;
        args.x = make_view(static_cast<void*>(nullptr), DType::bf16, {0, info.in_features});
        args.y = make_view(static_cast<void*>(nullptr), DType::bf16, {0, info.out_features});
        TENON_EXPECT_OK(weight->linear(args, stream()));

        const int64_t needed = weight->scratch_bytes(1, Regime::decode, DType::f32);
        if (needed > 0) {
            const std::vector<uint16_t> x = random_rows(info.in_features, 5);
            std::vector<float> y(static_cast<size_t>(info.out_features));
            Bytes scratch(needed);
            args.x = make_view(x.data(), DType::bf16, {1, info.in_features});
            args.y = make_view(y.data(), DType::f32, {1, info.out_features});
            args.scratch = make_view(scratch.data(), DType::u8, {needed - 1});
            TENON_EXPECT_ERROR(weight->linear(args, stream()), Code::invalid_argument, "scratch");
        }
    }
}

TEST_P(QuantWeightRules, Wrong_views_are_refused_with_the_field_named) {
    for (const std::string& base : bases()) {
        const auto weight = load(base);
        const QuantInfo info = weight->info();
        std::vector<float> memory(static_cast<size_t>(2 * (info.in_features + info.out_features)));
        Bytes scratch(weight->scratch_bytes(1, Regime::decode, DType::f32));
        LinearArgs args;
        args.x = make_view(memory.data(), DType::bf16, {1, info.in_features + 1});
        args.y = make_view(memory.data() + info.in_features, DType::f32, {1, info.out_features});
        args.scratch = scratch.view();
        TENON_EXPECT_ERROR(weight->linear(args, stream()), Code::invalid_argument, "x");
        args.x.shape[1] = info.in_features;
        args.y.shape[1] = info.out_features - 1;
        TENON_EXPECT_ERROR(weight->linear(args, stream()), Code::invalid_argument, "y");
        args.y.shape[1] = info.out_features;
        args.y.dtype = DType::i32;
        TENON_EXPECT_ERROR(weight->linear(args, stream()), Code::invalid_argument, "y");
    }
}

// Every rank's part, put together, is the whole weight; a cut that cannot serve every rank is
// refused.
TEST_P(QuantWeightRules, Cuts_are_parts_of_the_whole) {
    for (const std::string& base : bases()) {
        const auto weight = load(base);
        if (facet_of<QuantDequant>(weight.get()) == nullptr) {
            continue;
        }
        const std::vector<float> whole = dequantized(*weight);
        const int64_t in = weight->info().in_features;
        const int64_t out = weight->info().out_features;
        for (const int32_t world : {2, 3}) {
            int64_t row = 0;
            int64_t column = 0;
            bool row_cut = true;
            bool column_cut = true;
            for (int32_t rank = 0; rank < world; ++rank) {
                WeightRequest r = request(base);
                r.shard = {ShardAxis::out, rank, world};
                Ref<QuantWeight> part;
                Status status = format().load(r, part.out());
                if (status.ok()) {
                    EXPECT_EQ(row % weight->info().granule_out, 0) << base;
                    EXPECT_TRUE(is_shifted_copy(dequantized(*part), whole, row * in)) << base;
                    row += part->info().out_features;
                } else {
                    EXPECT_EQ(status.code(), Code::invalid_argument) << base;
                    row_cut = false;
                }
                r.shard.axis = ShardAxis::in;
                status = format().load(r, part.out());
                if (status.ok()) {
                    EXPECT_EQ(column % weight->info().granule_in, 0) << base;
                    const int64_t width = part->info().in_features;
                    const std::vector<float> w = dequantized(*part);
                    for (int64_t o = 0; o < out; ++o) {
                        ASSERT_EQ(std::memcmp(w.data() + o * width, whole.data() + o * in + column,
                                              static_cast<size_t>(width) * sizeof(float)),
                                  0)
                            << base;
                    }
                    column += width;
                } else {
                    EXPECT_EQ(status.code(), Code::invalid_argument) << base;
                    column_cut = false;
                }
            }
            EXPECT_TRUE(!row_cut || row == out) << base;
            EXPECT_TRUE(!column_cut || column == in) << base;
        }
    }
}

TENON_INSTANTIATE_FOR_KIND(QuantWeightRules, PluginKind::quant);

}  // namespace
}  // namespace tenon::testing
