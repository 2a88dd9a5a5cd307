// SPDX-License-Identifier: MIT
// What every `linear` promises, in both formats and both forms: row invariance, threads, regimes,
// strides, scratch, refusals (ops.md 1.6, 6.1 and 6.20).
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <numeric>

#include "plugins/quant_exl3/format.h"
#include "plugins/quant_plain/format.h"
#include "quant_exl3_util.h"
#include "quant_forms.h"
#include "tenon/testing/quant_harness.h"

namespace tenon::testing {
namespace {

using exl3::Codebook;

struct Form {
    const char* name;
    const char* arch;
    bool exl3;
    Fake kind;    // plain
    int twice_k;  // exl3
    Codebook codebook;
    Regime regime = Regime::decode;  // CPU: both have the same bits
};

const std::vector<Form> kForms = {
    {"Exl3_reference", "cpu-reference", true, Fake::f32, 6, Codebook::mul1},
    {"Exl3_mul1_3", "cpu-test", true, Fake::f32, 6, Codebook::mul1},
    {"Exl3_mul1_2_5", "cpu-test", true, Fake::f32, 5, Codebook::mul1},
    {"Exl3_mcg_8", "cpu-test", true, Fake::f32, 16, Codebook::mcg},
    {"Exl3_3inst_1", "cpu-test", true, Fake::f32, 2, Codebook::inst3},
    {"Plain_reference", "cpu-reference", false, Fake::fp8, 0, Codebook::mul1},
    {"Plain_f32", "cpu-test", false, Fake::f32, 0, Codebook::mul1},
    {"Plain_bf16", "cpu-test", false, Fake::bf16, 0, Codebook::mul1},
    {"Plain_f16", "cpu-test", false, Fake::f16, 0, Codebook::mul1},
    {"Plain_fp8", "cpu-test", false, Fake::fp8, 0, Codebook::mul1},
    {"Plain_fp4", "cpu-test", false, Fake::fp4, 0, Codebook::mul1},
    {"Exl3_mul1_3_gpu", "gpu", true, Fake::f32, 6, Codebook::mul1},
    {"Exl3_mul1_2_5_gpu", "gpu", true, Fake::f32, 5, Codebook::mul1},
    {"Exl3_mul1_8_gpu", "gpu", true, Fake::f32, 16, Codebook::mul1},
    {"Exl3_mul1_3_gpu_prefill", "gpu", true, Fake::f32, 6, Codebook::mul1, Regime::prefill},
    {"Exl3_mul1_1_5_gpu_prefill", "gpu", true, Fake::f32, 3, Codebook::mul1, Regime::prefill},
    {"Exl3_mcg_5_gpu_prefill", "gpu", true, Fake::f32, 10, Codebook::mcg, Regime::prefill},
    {"Exl3_3inst_8_gpu_prefill", "gpu", true, Fake::f32, 16, Codebook::inst3, Regime::prefill},
    {"Exl3_mcg_8_gpu", "gpu", true, Fake::f32, 16, Codebook::mcg},
    {"Exl3_mcg_3_gpu", "gpu", true, Fake::f32, 6, Codebook::mcg},
    {"Exl3_3inst_1_gpu", "gpu", true, Fake::f32, 2, Codebook::inst3},
    {"Plain_f32_gpu", "gpu", false, Fake::f32, 0, Codebook::mul1},
    {"Plain_bf16_gpu", "gpu", false, Fake::bf16, 0, Codebook::mul1},
    {"Plain_f16_gpu", "gpu", false, Fake::f16, 0, Codebook::mul1},
    {"Plain_fp8_gpu", "gpu", false, Fake::fp8, 0, Codebook::mul1},
    {"Plain_fp4_gpu", "gpu", false, Fake::fp4, 0, Codebook::mul1},
    {"Plain_f16_gpu_prefill", "gpu", false, Fake::f16, 0, Codebook::mul1, Regime::prefill},
    {"Plain_bf16_gpu_prefill", "gpu", false, Fake::bf16, 0, Codebook::mul1, Regime::prefill},
    {"Plain_fp8_gpu_prefill", "gpu", false, Fake::fp8, 0, Codebook::mul1, Regime::prefill},
    {"Plain_fp4_gpu_prefill", "gpu", false, Fake::fp4, 0, Codebook::mul1, Regime::prefill},
};

QuantFormat* make(const Form& form) {
    return format_for(form.arch, form.exl3 ? exl3::make_format() : plain::make_format(false));
}

void add(const Form& form, MemorySource& source, StrView base, int64_t out, int64_t in) {
    if (form.exl3) {
        add_fake(source, base.str(),
                 {.twice_k = form.twice_k, .codebook = form.codebook, .k = in, .n = out});
    } else {
        add_plain(source, base.str(), form.kind, out, in);
    }
}

constexpr int64_t kIn = 256;
constexpr int64_t kOut = 384;

class Linear : public ::testing::TestWithParam<Form> {
  protected:
    Linear() { add(GetParam(), *bench.source, "p", kOut, kIn); }

    static std::vector<float> run(QuantWeight& weight, const std::vector<uint16_t>& x) {
        return run_linear(weight, x, GetParam().regime);
    }

    QuantBench bench{make(GetParam()), GetParam().arch};
};

std::vector<uint16_t> rows_of(const std::vector<uint16_t>& x, const std::vector<int64_t>& order) {
    std::vector<uint16_t> out;
    for (const int64_t t : order) {
        out.insert(out.end(), x.begin() + t * kIn, x.begin() + (t + 1) * kIn);
    }
    return out;
}

bool same_row(const std::vector<float>& a, int64_t row_a, const std::vector<float>& b,
              int64_t row_b) {
    return std::memcmp(a.data() + row_a * kOut, b.data() + row_b * kOut, kOut * sizeof(float)) == 0;
}

TEST_P(Linear, A_rows_bits_depend_on_nothing_but_the_row) {
    const auto weight = bench.load("p");
    constexpr int64_t kMost = 600;
    const std::vector<uint16_t> x = random_rows(kMost * kIn, 1);
    std::vector<float> alone;
    for (int64_t t = 0; t < kMost; ++t) {
        const std::vector<float> y = run(*weight, rows_of(x, {t}));
        alone.insert(alone.end(), y.begin(), y.end());
    }
    std::vector<int64_t> sizes(17);
    std::iota(sizes.begin(), sizes.end(), 1);
    for (const int64_t t : {31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512, 600}) {
        sizes.push_back(t);
    }
    std::mt19937 rng(2);
    for (const int64_t rows : sizes) {
        if (rows > 65 && std::string_view(GetParam().arch) == "cpu-reference") {
            continue;  // plain loops over rows: nothing new there
        }
        std::vector<int64_t> order(kMost);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), rng);
        order.resize(static_cast<size_t>(rows));
        for (const Regime regime : {Regime::decode, Regime::prefill}) {
            if (on_gpu(GetParam().arch) && regime != GetParam().regime) {
                continue;  // other bits there
            }
            const std::vector<float> y = run_linear(*weight, rows_of(x, order), regime);
            for (int64_t t = 0; t < rows; ++t) {
                ASSERT_TRUE(same_row(y, t, alone, order[static_cast<size_t>(t)]))
                    << "T = " << rows << ", row " << t;
            }
        }
    }
}

// On a GPU, mul1 matrices beyond 16 M weights have kernels of their own, by number of rows.
TEST_P(Linear, A_rows_bits_in_a_large_matrix_depend_on_nothing_but_the_row) {
    const Form& form = GetParam();
    if (!on_gpu(form.arch) || !form.exl3 || form.regime != Regime::decode) {
        GTEST_SKIP() << "the size of a matrix changes no kernel here";
    }
    constexpr int64_t kMost = 37;
    struct Shape {
        const char* name;
        int64_t in, out;
    };
    // The second has more blocks of 128 columns than thread blocks ever share.
    for (const Shape& shape : {Shape{"large", 2176, 7936}, Shape{"many_columns", 640, 32896}}) {
        add(form, *bench.source, shape.name, shape.out, shape.in);
        const auto weight = bench.load(shape.name);
        const std::vector<uint16_t> x = random_rows(kMost * shape.in, 11);
        const auto rows_from = [&](int64_t from, int64_t rows) {
            return run(*weight,
                       {x.begin() + from * shape.in, x.begin() + (from + rows) * shape.in});
        };
        std::vector<float> alone;
        for (int64_t t = 0; t < kMost; ++t) {
            const std::vector<float> y = rows_from(t, 1);
            alone.insert(alone.end(), y.begin(), y.end());
        }
        for (const int64_t rows : {2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 37}) {
            const std::vector<float> y = rows_from(0, rows);
            EXPECT_EQ(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)), 0)
                << shape.name << ", " << rows << " rows";
        }
    }
}

TEST_P(Linear, Other_rows_may_hold_anything) {
    const auto weight = bench.load("p");
    const std::vector<uint16_t> x = random_rows(9 * kIn, 3);
    const std::vector<float> before = run(*weight, x);
    std::vector<uint16_t> wild = x;
    for (int64_t t = 0; t < 9; t += 2) {
        for (int64_t i = 0; i < kIn; ++i) {
            const uint16_t values[] = {0x7FC0, 0x7F80, 0x7F00, 0xFF00,
                                       0x0000};  // NaN, inf, huge, zero
            wild[static_cast<size_t>(t * kIn + i)] = values[t / 2];
        }
    }

    const std::vector<float> after = run(*weight, wild);

    for (int64_t t = 1; t < 9; t += 2) {
        EXPECT_TRUE(same_row(before, t, after, t)) << t;
    }
}

TEST_P(Linear, Any_number_of_threads_gives_the_same_bits) {
    if (on_gpu(GetParam().arch)) {
        GTEST_SKIP() << "a GPU has no host threads";
    }
    for (const int64_t rows : {1, 5, 64, 300}) {
        const std::vector<uint16_t> x = random_rows(rows * kIn, 4);
        const std::vector<float> inline_bits = run_linear(*bench.load("p"), x);
        for (const int32_t workers : {1, 2, 3, 8}) {
            QuantBench threaded{make(GetParam()), GetParam().arch, workers};
            add(GetParam(), *threaded.source, "p", kOut, kIn);

            EXPECT_EQ(run_linear(*threaded.load("p"), x), inline_bits)
                << rows << " rows, " << workers << " workers";

            if (rows == 300) {
                EXPECT_GT(threaded.device->threads().runs, 0);
            }
        }
    }
}

TEST_P(Linear, Bf16_output_is_the_rounded_f32_output) {
    const auto weight = bench.load("p");
    const std::vector<uint16_t> x = random_rows(7 * kIn, 5);
    const std::vector<float> wide = run(*weight, x);
    std::vector<uint16_t> y(7 * kOut);
    Bytes scratch(weight->scratch_bytes(7, GetParam().regime, DType::bf16));
    LinearArgs args;
    args.regime = GetParam().regime;
    args.x = make_view(x.data(), DType::bf16, {7, kIn});
    args.y = make_view(y.data(), DType::bf16, {7, kOut});
    args.scratch = scratch.view();

    TENON_ASSERT_OK(weight->linear(args, bench.stream));

    for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_EQ(y[i], f32_to_bf16(wide[i])) << i;
    }
}

TEST_P(Linear, Rows_of_x_and_y_may_be_strided) {
    const auto weight = bench.load("p");
    constexpr int64_t kWide = kIn + 48;
    const std::vector<uint16_t> x = random_rows(5 * kIn, 6);
    std::vector<uint16_t> spread(5 * kWide, 0x7FC0);
    for (int64_t t = 0; t < 5; ++t) {
        std::copy_n(x.begin() + t * kIn, kIn, spread.begin() + t * kWide);
    }
    std::vector<float> y(5 * (kOut + 16), 7.0f);
    Bytes scratch(weight->scratch_bytes(5, GetParam().regime, DType::f32));
    LinearArgs args;
    args.regime = GetParam().regime;
    args.x = make_view(spread.data(), DType::bf16, {5, kIn});
    args.x.stride[0] = kWide;
    args.y = make_view(y.data(), DType::f32, {5, kOut});
    args.y.stride[0] = kOut + 16;
    args.scratch = scratch.view();

    TENON_ASSERT_OK(weight->linear(args, bench.stream));

    const std::vector<float> dense = run(*weight, x);
    for (int64_t t = 0; t < 5; ++t) {
        EXPECT_TRUE(std::equal(dense.begin() + t * kOut, dense.begin() + (t + 1) * kOut,
                               y.begin() + t * (kOut + 16)));
        for (int64_t c = 0; c < 16; ++c) {
            EXPECT_EQ(y[static_cast<size_t>(t * (kOut + 16) + kOut + c)], 7.0f);
        }
    }
}

TEST_P(Linear, F32_rows_equal_bf16_rows_of_the_same_values) {
    const auto weight = bench.load("p");
    const std::vector<uint16_t> x = random_rows(3 * kIn, 7);
    std::vector<float> wide;
    for (const uint16_t v : x) {
        wide.push_back(bf16_to_f32(v));
    }
    std::vector<float> y(3 * kOut);
    Bytes scratch(weight->scratch_bytes(3, GetParam().regime, DType::f32));
    LinearArgs args;
    args.regime = GetParam().regime;
    args.x = make_view(wide.data(), DType::f32, {3, kIn});
    args.y = make_view(y.data(), DType::f32, {3, kOut});
    args.scratch = scratch.view();

    TENON_ASSERT_OK(weight->linear(args, bench.stream));

    EXPECT_EQ(y, run(*weight, x));
}

TEST_P(Linear, No_rows_need_nothing) {
    const auto weight = bench.load("p");
    EXPECT_EQ(weight->scratch_bytes(0, GetParam().regime, DType::bf16), 0);
    LinearArgs args;
    args.regime = GetParam().regime;
    args.x = make_view(static_cast<void*>(nullptr), DType::bf16, {0, kIn});
    args.y = make_view(static_cast<void*>(nullptr), DType::bf16, {0, kOut});
    TENON_EXPECT_OK(weight->linear(args, bench.stream));
}

TEST_P(Linear, Scratch_must_be_large_enough_and_aligned) {
    if (on_gpu(GetParam().arch)) {
        GTEST_SKIP() << "few rows need no scratch there";
    }
    const auto weight = bench.load("p");
    const std::vector<uint16_t> x = random_rows(2 * kIn, 8);
    std::vector<float> y(2 * kOut);
    const int64_t needed = weight->scratch_bytes(2, GetParam().regime, DType::f32);
    Bytes scratch(needed + 256);
    LinearArgs args;
    args.regime = GetParam().regime;
    args.x = make_view(x.data(), DType::bf16, {2, kIn});
    args.y = make_view(y.data(), DType::f32, {2, kOut});
    TENON_EXPECT_ERROR(weight->linear(args, bench.stream), Code::invalid_argument,
                       "scratch has 0 bytes");
    args.scratch = make_view(scratch.data(), DType::u8, {needed - 1});
    TENON_EXPECT_ERROR(weight->linear(args, bench.stream), Code::invalid_argument,
                       "expected at least");
    args.scratch = make_view(static_cast<char*>(scratch.data()) + 8, DType::u8, {needed});
    TENON_EXPECT_ERROR(weight->linear(args, bench.stream), Code::invalid_argument, "aligned");
    args.scratch = make_view(scratch.data(), DType::u8, {needed});
    TENON_EXPECT_OK(weight->linear(args, bench.stream));
}

TEST_P(Linear, Wrong_views_are_refused_with_the_field_named) {
    const auto weight = bench.load("p");
    std::vector<float> memory(2 * kIn + 2 * kOut);
    Bytes scratch(weight->scratch_bytes(2, GetParam().regime, DType::f32));
    LinearArgs good;
    good.regime = GetParam().regime;
    good.x = make_view(memory.data(), DType::f32, {2, kIn});
    good.y = make_view(memory.data() + 2 * kIn, DType::f32, {2, kOut});
    good.scratch = scratch.view();
    const auto refused = [&](const char* text, void (*change)(LinearArgs&)) {
        LinearArgs args = good;
        change(args);
        TENON_EXPECT_ERROR(weight->linear(args, bench.stream), Code::invalid_argument, text);
    };
    refused("x is f32[2, 255], expected", [](LinearArgs& a) { a.x.shape[1] = 255; });
    refused("x is f16[2, 256]", [](LinearArgs& a) { a.x.dtype = DType::f16; });
    refused("y is f32[3, 384], expected bf16 or f32[2, 384]",
            [](LinearArgs& a) { a.y.shape[0] = 3; });
    refused("y is i32", [](LinearArgs& a) { a.y.dtype = DType::i32; });
    refused("x is null", [](LinearArgs& a) { a.x.data = nullptr; });
    refused("y has innermost stride 2", [](LinearArgs& a) { a.y.stride[1] = 2; });
    refused("x is f32[512]", [](LinearArgs& a) {
        a.x.rank = 1;
        a.x.shape[0] = 512;
    });
}

TEST_P(Linear, Error_against_f64_stays_far_below_the_tolerance) {
    if (std::string_view(GetParam().arch) == "cpu-reference") {
        const auto weight = bench.load("p");
        const std::vector<uint16_t> x = random_rows(3 * kIn, 9);
        const std::vector<double> expected = oracle(dequantized(*weight), x, kIn);
        const std::vector<double> y = widen(run(*weight, x));
        // f64 sums, one rounding to f32; the weights that the oracle uses are rounded once as well.
        EXPECT_LE(relative_rms(y.data(), expected.data(), 3 * kOut), 2 * 0x1p-24);
        return;
    }
    for (const auto& [out, in] : {std::pair{128, 128}, std::pair{384, 640}, std::pair{128, 2304},
                                  std::pair{2304, 128}, std::pair{256, 4096}}) {
        add(GetParam(), *bench.source, "q", out, in);
        const auto weight = bench.load("q");
        const std::vector<float> w = dequantized(*weight);
        for (const int64_t rows : {1, 2, 3, 4, 7, 8, 9, 16, 17, 33, 64, 145}) {
            if (rows > 9 && in * out > 300000) {
                continue;
            }
            const std::vector<uint16_t> x = random_rows(rows * in, 10);
            const std::vector<double> y = widen(run(*weight, x));
            const std::vector<double> expected = oracle(w, x, in);
            // docs/exl3.md 7.5 asks for 1e-3; a chain of n f32 roundings gives about sqrt(n) 2^-24.
            // On a GPU activations have 11 or 16 bits, and weights are not rounded to f16 first:
            // each is 2^-11 / sqrt(12) relative at most.
            EXPECT_LE(relative_rms(y.data(), expected.data(), rows * out),
                      on_gpu(GetParam().arch) && GetParam().exl3 ? 4e-4 : 2e-5)
                << rows << " x " << in << " x " << out;
        }
    }
}

// AVX2, AVX-512 and NEON share one order of operations.
TEST_P(Linear, Every_simd_target_gives_the_same_bits) {
    if (on_gpu(GetParam().arch)) {
        GTEST_SKIP() << "a GPU has no SIMD targets";
    }
    if (std::string_view(GetParam().arch) == "cpu-reference") {
        GTEST_SKIP() << "the reference has no SIMD targets";
    }
    const std::vector<uint16_t> x = random_rows(11 * kIn, 11);
    const std::vector<float> best = run_linear(*bench.load("p"), x);
    int tried = 0;
    for (const int64_t target : {int64_t{HWY_AVX2}, int64_t{HWY_AVX3}, int64_t{HWY_NEON}}) {
        if ((hwy::SupportedTargets() & target) == 0) {
            continue;
        }
        hwy::SetSupportedTargetsForTest(target);
        hwy::GetChosenTarget().Update(hwy::SupportedTargets());
        EXPECT_EQ(run_linear(*bench.load("p"), x), best) << hwy::TargetName(target);
        hwy::SetSupportedTargetsForTest(0);
        hwy::GetChosenTarget().Update(hwy::SupportedTargets());
        ++tried;
    }
    EXPECT_GT(tried, 0);
}

INSTANTIATE_TEST_SUITE_P(Forms, Linear, ::testing::ValuesIn(forms_here(kForms)),
                         [](const auto& param_info) { return param_info.param.name; });

// Large weights take other kernels on a GPU than those above (kernels/cuda/exl3/smem.h).
TEST(LinearLarge, A_rows_bits_do_not_depend_on_the_row_count_and_errors_are_small) {
    constexpr int64_t kLargeIn = 4096;
    constexpr int64_t kLargeOut = 4224;
    for (const std::string_view arch : archs_here()) {
        if (arch == "cpu-reference") {
            continue;
        }
        QuantBench bench{format_for(arch, exl3::make_format()), arch.data()};
        add_fake(*bench.source, "p", {.twice_k = 6, .k = kLargeIn, .n = kLargeOut});
        const auto weight = bench.load("p");
        const std::vector<uint16_t> x = random_rows(17 * kLargeIn, 14);
        const std::vector<uint16_t> one(x.begin(), x.begin() + kLargeIn);
        const std::vector<double> expected = oracle(dequantized(*weight), one, kLargeIn);
        for (const Regime regime : {Regime::decode, Regime::prefill}) {
            const std::vector<float> all = run_linear(*weight, x, regime);
            for (const int64_t rows : {1, 4, 5, 8, 9, 16}) {
                const std::vector<uint16_t> some(x.begin(), x.begin() + rows * kLargeIn);

                const std::vector<float> y = run_linear(*weight, some, regime);

                EXPECT_EQ(std::memcmp(y.data(), all.data(), y.size() * sizeof(float)), 0)
                    << arch << ", " << rows << " rows";
            }
            EXPECT_LE(relative_rms(widen(all).data(), expected.data(), kLargeOut),
                      on_gpu(arch) ? 4e-4 : 2e-5)
                << arch;
            if (!on_gpu(arch)) {
                break;  // one regime under two names
            }
        }
    }
}

// More rows than a pass of the prefill has (kernels/cuda/exl3/prefill.h), cut at odd places.
TEST(LinearLarge, A_prompts_rows_have_the_same_bits_however_it_is_cut) {
    if (!gpu_forms()) {
        GTEST_SKIP() << "no GPU";
    }
    constexpr int64_t kRows = 2300;
    constexpr int64_t kShortIn = 640;
    constexpr int64_t kShortOut = 384;
    QuantBench bench{format_for("gpu", exl3::make_format()), "gpu"};
    add_fake(*bench.source, "p", {.twice_k = 6, .k = kShortIn, .n = kShortOut});
    const auto weight = bench.load("p");
    const std::vector<uint16_t> x = random_rows(kRows * kShortIn, 15);
    const std::vector<float> all = run_linear(*weight, x, Regime::prefill);
    int64_t row = 0;
    for (const int64_t rows : {1, 127, 130, 3, 1000, 1039}) {
        const std::vector<uint16_t> some(x.begin() + row * kShortIn,
                                         x.begin() + (row + rows) * kShortIn);

        const std::vector<float> y = run_linear(*weight, some, Regime::prefill);

        EXPECT_EQ(std::memcmp(y.data(), all.data() + row * kShortOut, y.size() * sizeof(float)), 0)
            << rows << " rows from " << row;
        row += rows;
    }
    EXPECT_EQ(row, kRows);
}

// A decoded weight of more than 128 MiB is multiplied in runs of columns; the rows of a call that
// fits one pass are rotated for the first run only.
TEST(LinearLarge, A_prompts_rows_have_the_same_bits_where_columns_are_cut) {
    if (!gpu_forms()) {
        GTEST_SKIP() << "no GPU";
    }
    constexpr int64_t kRows = 2049;  // one more than a pass
    constexpr int64_t kLongIn = 16384;
    constexpr int64_t kWideOut = 4096 + 128;
    QuantBench bench{format_for("gpu", exl3::make_format()), "gpu"};
    add_fake(*bench.source, "p", {.twice_k = 4, .k = kLongIn, .n = kWideOut});
    const auto weight = bench.load("p");
    const std::vector<uint16_t> x = random_rows(kRows * kLongIn, 16);
    const std::vector<float> all = run_linear(*weight, x, Regime::prefill);
    for (const int64_t row : {0, 2048}) {
        const std::vector<uint16_t> one(x.begin() + row * kLongIn, x.begin() + (row + 1) * kLongIn);

        const std::vector<float> y = run_linear(*weight, one, Regime::prefill);

        EXPECT_EQ(std::memcmp(y.data(), all.data() + row * kWideOut, y.size() * sizeof(float)), 0)
            << "row " << row;
    }
}

// The test of row invariance must be able to fail: an order of summation that depends on the number
// of rows gives other bits for these inputs.
TEST(LinearControl, An_order_that_depends_on_the_row_count_changes_bits) {
    const std::vector<uint16_t> x = random_rows(kIn, 12);
    const std::vector<uint16_t> w = random_rows(kIn, 13);
    const auto sum = [&](int64_t parts) {
        float total = 0;
        for (int64_t p = 0; p < parts; ++p) {
            float part = 0;
            for (int64_t i = p * kIn / parts; i < (p + 1) * kIn / parts; ++i) {
                part = std::fma(bf16_to_f32(x[static_cast<size_t>(i)]),
                                bf16_to_f32(w[static_cast<size_t>(i)]), part);
            }
            total += part;
        }
        return total;
    };
    EXPECT_NE(sum(1), sum(4));
}

}  // namespace
}  // namespace tenon::testing
