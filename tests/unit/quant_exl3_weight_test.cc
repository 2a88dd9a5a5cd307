// SPDX-License-Identifier: MIT
// EXL3 weights through the format: golden layers, worked layer, padding, bias, legacy signs, groups
// (docs/exl3.md 7).
#include "plugins/quant_exl3/format.h"

#include <fstream>

#include "quant_exl3_util.h"
#include "quant_forms.h"
#include "tenon/testing/quant_harness.h"
#include "tenon/testing/safetensors.h"

namespace tenon::testing {
namespace {

using exl3::Codebook;

void copy_layer(const Safetensors& file, const std::string& from, MemorySource& to,
                const std::string& base) {
    for (const char* part : {".trellis", ".suh", ".svh", ".mcg", ".mul1"}) {
        if (file.has(from + part)) {
            to.add(base + part, file.tensor(from + part));
        }
    }
}

/// Layers of a golden file: names with a trellis.
std::vector<std::string> layers(const Safetensors& file) {
    std::vector<std::string> list;
    for (const std::string& name : file.names()) {
        const size_t at = name.find(".trellis");
        if (at != std::string::npos) {
            list.push_back(name.substr(0, at));
        }
    }
    return list;
}

int twice_k_of(const Safetensors& file, const std::string& layer) {
    return static_cast<int>(file.tensor(layer + ".trellis").shape[2] / 8);
}

Codebook codebook_of(const Safetensors& file, const std::string& layer) {
    return file.has(layer + ".mul1")  ? Codebook::mul1
           : file.has(layer + ".mcg") ? Codebook::mcg
                                      : Codebook::inst3;
}

/// Decoded inner weight [in, out], half bits.
std::vector<uint16_t> inner_of(const Safetensors& file, const std::string& layer) {
    const TensorView trellis = file.tensor(layer + ".trellis");
    const int64_t n = 16 * trellis.shape[1];
    std::vector<uint16_t> inner(static_cast<size_t>(16 * trellis.shape[0] * n));
    for (int64_t kt = 0; kt < trellis.shape[0]; ++kt) {
        for (int64_t nt = 0; nt < trellis.shape[1]; ++nt) {
            uint16_t values[256];
            exl3::decode_tile(
                trellis.as<uint16_t>() + kt * trellis.stride[0] + nt * trellis.stride[1],
                twice_k_of(file, layer), codebook_of(file, layer), values);
            for (int64_t i = 0; i < 256; ++i) {
                inner[static_cast<size_t>((16 * kt + i / 16) * n + 16 * nt + i % 16)] = values[i];
            }
        }
    }
    return inner;
}

/// W[in, out] by the definition: dense products of the inner weight with both rotations.
std::vector<double> exact_weight(const Safetensors& file, const std::string& layer) {
    const std::vector<uint16_t> inner = inner_of(file, layer);
    const TensorView suh = file.tensor(layer + ".suh");
    const TensorView svh = file.tensor(layer + ".svh");
    const int64_t k = suh.shape[0];
    const int64_t n = svh.shape[0];
    const auto sign = [](int64_t i, int64_t j) {
        return (__builtin_popcountll(static_cast<uint64_t>(i & j & 127)) & 1) != 0 ? -1.0 : 1.0;
    };
    std::vector<double> left(static_cast<size_t>(k * n), 0.0);
    for (int64_t r = 0; r < k; ++r) {
        for (int64_t a = r / 128 * 128; a < r / 128 * 128 + 128; ++a) {
            for (int64_t c = 0; c < n; ++c) {
                left[static_cast<size_t>(r * n + c)] +=
                    sign(r, a) *
                    static_cast<double>(f16_to_f32(inner[static_cast<size_t>(a * n + c)]));
            }
        }
    }
    std::vector<double> w(static_cast<size_t>(k * n), 0.0);
    for (int64_t r = 0; r < k; ++r) {
        for (int64_t c = 0; c < n; ++c) {
            double sum = 0;
            for (int64_t b = c / 128 * 128; b < c / 128 * 128 + 128; ++b) {
                sum += sign(c, b) * left[static_cast<size_t>(r * n + b)];
            }
            w[static_cast<size_t>(r * n + c)] =
                sum / 128 * static_cast<double>(f16_to_f32(suh.as<uint16_t>()[r])) *
                static_cast<double>(f16_to_f32(svh.as<uint16_t>()[c]));
        }
    }
    return w;
}

std::string fixture(const char* name) {
    return std::string(TENON_FIXTURES "/golden/exl3/") + name + ".safetensors";
}

class Exl3Weight : public ::testing::TestWithParam<const char*> {
  protected:
    QuantBench bench{format_for(GetParam(), exl3::make_format()), GetParam()};
};

/// The checksum that the original run noted for a layer's inner weight.
uint32_t noted_crc(const std::string& layer) {
    std::ifstream in(TENON_FIXTURES "/golden/exl3/summary.json");
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    const size_t layers_at = text.find("\"layers\"");
    const size_t layer_at = text.find('"' + layer + '"', layers_at);
    const size_t at = text.find("\"crc_inner\": \"", layer_at);
    EXPECT_NE(layer_at, std::string::npos) << layer;
    return static_cast<uint32_t>(std::stoul(text.substr(at + 14, 8), nullptr, 16));
}

TEST(Exl3Golden, Every_layer_decodes_to_the_inner_weight_of_the_original_bit_for_bit) {
    for (const char* name : {"golden_small", "golden_half"}) {
        const Safetensors file = Safetensors::open(fixture(name));
        for (const std::string& layer : layers(file)) {
            const std::vector<uint16_t> inner = inner_of(file, layer);
            if (std::string_view(name) == "golden_small") {
                EXPECT_EQ(crc32(inner.data(), 2 * inner.size()), noted_crc(layer)) << layer;
            }
            if (file.has(layer + ".inner")) {
                const TensorView stored = file.tensor(layer + ".inner");
                EXPECT_EQ(std::memcmp(inner.data(), stored.data, 2 * inner.size()), 0) << layer;
            }
        }
    }
}

TEST_P(Exl3Weight, Golden_layers_dequantize_to_the_exact_product) {
    for (const char* name : {"golden_small", "golden_half"}) {
        const Safetensors file = Safetensors::open(fixture(name));
        for (const std::string& layer : layers(file)) {
            copy_layer(file, layer, *bench.source, layer);
            const auto weight = bench.load(layer);
            const QuantInfo info = weight->info();
            const std::vector<double> exact = exact_weight(file, layer);
            const std::vector<float> ours = dequantized(*weight);
            double worst = 0;
            for (int64_t o = 0; o < info.out_features; ++o) {
                for (int64_t i = 0; i < info.in_features; ++i) {
                    const double e = exact[static_cast<size_t>(i * info.out_features + o)];
                    const double d = ours[static_cast<size_t>(o * info.in_features + i)] - e;
                    // One rounding to f32: half an ulp, 2^-24 of the value.
                    worst = std::max(worst, std::abs(d) - std::abs(e) * 0x1.0001p-24);
                }
            }
            EXPECT_LE(worst, 1e-45) << layer;
        }
    }
}

TEST_P(Exl3Weight, Golden_layers_multiply_within_the_stated_tolerances) {
    const Safetensors file = Safetensors::open(fixture("golden_small"));
    const TensorView x = file.tensor("x.128");
    std::vector<float> wide;
    for (int64_t i = 0; i < x.elements(); ++i) {
        wide.push_back(f16_to_f32(x.as<uint16_t>()[i]));
    }
    for (const std::string& layer : layers(file)) {
        copy_layer(file, layer, *bench.source, layer);
        const auto weight = bench.load(layer, 128, 256);
        const std::vector<double> exact = exact_weight(file, layer);
        std::vector<float> y(17 * 256);
        Bytes scratch(weight->scratch_bytes(17, Regime::decode, DType::f32));
        LinearArgs args;
        args.x = make_view(wide.data(), DType::f32, {17, 128});  // fp16 inputs are exact in f32
        args.y = make_view(y.data(), DType::f32, {17, 256});
        args.scratch = scratch.view();
        TENON_ASSERT_OK(weight->linear(args, bench.stream));

        std::vector<double> expected(17 * 256, 0.0);
        for (size_t t = 0; t < 17; ++t) {
            for (size_t i = 0; i < 128; ++i) {
                for (size_t o = 0; o < 256; ++o) {
                    expected[t * 256 + o] +=
                        static_cast<double>(wide[t * 128 + i]) * exact[i * 256 + o];
                }
            }
        }
        const std::vector<double> ours = widen(y);
        EXPECT_LE(relative_rms(ours.data(), expected.data(), 17 * 256),
                  on_gpu(GetParam()) ? 4e-4 : 2e-6)
            << layer;
        const TensorView y32 = file.tensor(layer + ".y32");
        const std::vector<double> theirs(y32.as<float>(), y32.as<float>() + 17 * 256);
        EXPECT_LE(relative_rms(ours.data(), theirs.data(), 17 * 256), 2e-3) << layer;
    }
}

TEST_P(Exl3Weight, Golden_half_rate_layers_equal_their_stored_weight_and_output) {
    const Safetensors file = Safetensors::open(fixture("golden_half"));
    for (const std::string& layer : layers(file)) {
        copy_layer(file, layer, *bench.source, layer);
        const auto weight = bench.load(layer);
        const QuantInfo info = weight->info();
        const int64_t in = info.in_features;
        const TensorView full = file.tensor(layer + ".w_full");
        const std::vector<float> w = dequantized(*weight);
        std::vector<double> ours;
        std::vector<double> stored;
        for (int64_t i = 0; i < in; ++i) {
            for (int64_t o = 0; o < info.out_features; ++o) {
                ours.push_back(w[static_cast<size_t>(o * in + i)]);
                stored.push_back(full.as<float>()[i * info.out_features + o]);
            }
        }
        EXPECT_LE(relative_rms(ours.data(), stored.data(), static_cast<int64_t>(ours.size())),
                  1e-6);

        const TensorView x = file.tensor("x." + std::to_string(in));
        std::vector<float> wide;
        for (int64_t i = 0; i < x.elements(); ++i) {
            wide.push_back(f16_to_f32(x.as<uint16_t>()[i]));
        }
        std::vector<float> y(static_cast<size_t>(17 * info.out_features));
        Bytes scratch(weight->scratch_bytes(17, Regime::prefill, DType::f32));
        LinearArgs args;
        args.x = make_view(wide.data(), DType::f32, {17, in});
        args.y = make_view(y.data(), DType::f32, {17, info.out_features});
        args.regime = Regime::prefill;
        args.scratch = scratch.view();
        TENON_ASSERT_OK(weight->linear(args, bench.stream));
        const TensorView expected = file.tensor(layer + ".y");
        const std::vector<double> theirs(expected.as<float>(),
                                         expected.as<float>() + expected.elements());
        EXPECT_LE(relative_rms(widen(y).data(), theirs.data(), expected.elements()),
                  on_gpu(GetParam()) ? 4e-4 : 1e-5)
            << layer;
    }
}

TEST_P(Exl3Weight, Worked_layer_of_the_format_description) {
    WordGenerator generator(12345);
    std::vector<uint16_t> trellis;
    for (int tile = 0; tile < 64; ++tile) {
        const auto words = generated_tile(6, generator);
        trellis.insert(trellis.end(), words.begin(), words.end());
    }
    std::vector<uint16_t> suh, svh;
    std::vector<float> x;
    for (int i = 0; i < 128; ++i) {
        suh.push_back(
            f32_to_f16((7 * i % 3 != 0 ? 1.0f : -1.0f) * static_cast<float>(1 + i % 5) / 64.0f));
        svh.push_back(
            f32_to_f16((5 * i % 4 != 0 ? 1.0f : -1.0f) * static_cast<float>(4 + i % 3) / 4.0f));
        x.push_back(static_cast<float>(11 * i % 17 - 8) / 8.0f);
    }
    bench.source->add("p.trellis", DType::i16, {8, 8, 48}, trellis);
    bench.source->add("p.suh", DType::f16, {128}, suh);
    bench.source->add("p.svh", DType::f16, {128}, svh);
    bench.source->add<uint32_t>("p.mcg", DType::i32, {}, {0xCBAC1FEDu});

    std::vector<uint16_t> inner(128 * 128);
    for (int tile = 0; tile < 64; ++tile) {
        uint16_t values[256];
        exl3::decode_tile(trellis.data() + 48 * tile, 6, Codebook::mcg, values);
        for (int i = 0; i < 256; ++i) {
            inner[static_cast<size_t>((16 * (tile / 8) + i / 16) * 128 + 16 * (tile % 8) +
                                      i % 16)] = values[i];
        }
    }
    EXPECT_EQ(crc32(inner.data(), 2 * inner.size()), 0x5c5d6bb2u);

    const auto weight = bench.load("p");
    const std::vector<float> w = dequantized(*weight);
    const auto at = [&](size_t r, size_t c) { return static_cast<double>(w[c * 128 + r]); };
    EXPECT_NEAR(at(0, 0), 0.00367692113, 1e-6 * 0.0037);
    EXPECT_NEAR(at(0, 1), 0.0261630863, 1e-6 * 0.026);
    EXPECT_NEAR(at(1, 0), -0.00955998898, 1e-6 * 0.0096);
    EXPECT_NEAR(at(5, 77), -0.00971232355, 1e-6 * 0.0097);
    EXPECT_NEAR(at(127, 127), 0.0683928654, 1e-6 * 0.068);

    std::vector<uint16_t> rows;
    for (const float v : x) {
        rows.push_back(f32_to_bf16(v));  // eighths up to 1: exact
    }
    const std::vector<float> y = run_linear(*weight, rows);
    const std::pair<size_t, double> expected[] = {{0, 0.256623294},   {1, 0.37779096},
                                                  {2, -0.888388367},  {3, -0.0754501857},
                                                  {77, -0.101889627}, {127, -0.56753784}};
    for (const auto& [c, value] : expected) {
        // A GPU rounds rotated rows to f16 here: 2^-12 of values up to 4 times their rms.
        EXPECT_NEAR(static_cast<double>(y[c]), value, on_gpu(GetParam()) ? 4e-4 : 2e-6);
    }
}

TEST_P(Exl3Weight, Golden_mixture_weights_reproduce_its_reference) {
    const Safetensors file = Safetensors::open(fixture("golden_moe"));
    const TensorView x = file.tensor("x");
    const TensorView selected = file.tensor("sel");
    const TensorView routing = file.tensor("weights");
    for (const std::string codebook : {"mcg", "mul1"}) {
        std::vector<double> y(6 * 256, 0.0);
        for (int t = 0; t < 6; ++t) {
            for (int slot = 0; slot < 2; ++slot) {
                const auto expert = selected.as<int64_t>()[2 * t + slot];
                const double weight = f16_to_f32(routing.as<uint16_t>()[2 * t + slot]);
                const std::string base = codebook + ".experts." + std::to_string(expert);
                std::vector<float> w[3];
                const char* names[] = {".gate_proj", ".up_proj", ".down_proj"};
                for (int p = 0; p < 3; ++p) {
                    copy_layer(file, base + names[p], *bench.source, base + names[p]);
                    w[p] = dequantized(*bench.load(base + names[p]));
                }
                double a[128];
                for (int i = 0; i < 128; ++i) {
                    double g = 0;
                    double u = 0;
                    for (int c = 0; c < 256; ++c) {
                        const double v = f16_to_f32(x.as<uint16_t>()[256 * t + c]);
                        g += v * static_cast<double>(w[0][static_cast<size_t>(256 * i + c)]);
                        u += v * static_cast<double>(w[1][static_cast<size_t>(256 * i + c)]);
                    }
                    a[i] = g / (1 + std::exp(-g)) * u;
                }
                for (int c = 0; c < 256; ++c) {
                    for (int i = 0; i < 128; ++i) {
                        y[static_cast<size_t>(256 * t + c)] +=
                            weight * a[i] *
                            static_cast<double>(w[2][static_cast<size_t>(128 * c + i)]);
                    }
                }
            }
        }
        const TensorView reference = file.tensor(codebook + ".ref");
        const std::vector<double> theirs(reference.as<float>(), reference.as<float>() + 6 * 256);
        EXPECT_LE(relative_rms(y.data(), theirs.data(), 6 * 256), 1e-6) << codebook;
    }
}

TEST_P(Exl3Weight, Info_comes_from_shapes_and_markers) {
    add_fake(*bench.source, "a", {.twice_k = 5, .k = 256, .n = 384});
    add_fake(*bench.source, "b", {.twice_k = 16, .codebook = Codebook::mcg});
    add_fake(*bench.source, "c", {.twice_k = 2, .codebook = Codebook::inst3, .bias = true});

    QuantInfo info;
    TENON_ASSERT_OK(bench.format->inspect(*bench.source, "a", &info));
    EXPECT_EQ(info.in_features, 256);
    EXPECT_EQ(info.out_features, 384);
    EXPECT_EQ(info.bits, 2.5);
    EXPECT_EQ(info.groups, 1);
    EXPECT_EQ(info.granule_in, 128);
    EXPECT_EQ(info.granule_out, 128);
    EXPECT_EQ(info.bytes, 256 * 384 * 5 / 16 + 2 * (256 + 384) + 4);
    EXPECT_STREQ(info.codec, "exl3 mul1 K=2.5");
    TENON_ASSERT_OK(bench.format->inspect(*bench.source, "b", &info));
    EXPECT_STREQ(info.codec, "exl3 mcg K=8");
    TENON_ASSERT_OK(bench.format->inspect(*bench.source, "c", &info));
    EXPECT_STREQ(info.codec, "exl3 3inst K=1");
}

TEST_P(Exl3Weight, Zero_input_gives_the_bias_exactly) {
    add_fake(*bench.source, "p", {.bias = true});
    const auto weight = bench.load("p");

    const std::vector<float> y = run_linear(*weight, std::vector<uint16_t>(3 * 128, 0));

    const auto* bias = reinterpret_cast<const uint16_t*>(bench.source->bytes("p.bias"));
    for (size_t i = 0; i < y.size(); ++i) {
        EXPECT_EQ(y[i], f16_to_f32(bias[i % 128])) << i;
    }
}

TEST_P(Exl3Weight, A_bias_in_f32_is_rounded_to_f16) {
    add_fake(*bench.source, "p", {});
    bench.source->add<float>("p.bias", DType::f32, {128}, std::vector<float>(128, 0.1f));
    const auto weight = bench.load("p");

    const std::vector<float> y = run_linear(*weight, std::vector<uint16_t>(128, 0));

    EXPECT_EQ(y[5], f16_to_f32(f32_to_f16(0.1f)));
}

TEST_P(Exl3Weight, Columns_with_a_zero_scale_are_zero) {
    add_fake(*bench.source, "p", {});
    reinterpret_cast<uint16_t*>(bench.source->bytes("p.svh"))[77] = 0;
    const auto weight = bench.load("p");

    const std::vector<float> y = run_linear(*weight, random_rows(2 * 128, 5));

    EXPECT_EQ(y[77], 0.0f);
    EXPECT_EQ(y[128 + 77], 0.0f);
    EXPECT_NE(y[78], 0.0f);
}

TEST_P(Exl3Weight, Large_inputs_stay_finite_and_a_nan_stays_in_its_row) {
    add_fake(*bench.source, "p", {.k = 256});
    const auto weight = bench.load("p");
    std::vector<uint16_t> x = random_rows(3 * 256, 6, 3e4f);
    x[256 + 9] = 0x7FC0;

    const std::vector<float> y = run_linear(*weight, x);
    std::vector<uint16_t> alone(x.begin(), x.begin() + 256);
    const std::vector<float> y0 = run_linear(*weight, alone);

    for (size_t c = 0; c < 128; ++c) {
        EXPECT_TRUE(std::isfinite(y[c]));
        EXPECT_TRUE(std::isnan(y[128 + c]));
        EXPECT_TRUE(std::isfinite(y[256 + c]));
        EXPECT_EQ(y[c], y0[c]);
    }
}

TEST_P(Exl3Weight, Legacy_signs_equal_their_expanded_form) {
    add_fake(*bench.source, "legacy", {.k = 256, .n = 128, .legacy_signs = true});
    const auto expand = [&](const char* from, const char* to, int64_t length) {
        const auto* words = reinterpret_cast<const uint16_t*>(bench.source->bytes(from));
        std::vector<uint16_t> halves;
        for (int64_t i = 0; i < length; ++i) {
            halves.push_back((words[i / 16] >> (i % 16) & 1) != 0 ? 0xBC00 : 0x3C00);
        }
        bench.source->add(to, DType::f16, {length}, halves);
    };
    expand("legacy.su", "new.suh", 256);
    expand("legacy.sv", "new.svh", 128);
    bench.source->add_bytes("new.trellis", DType::i16, {16, 8, 48},
                            bench.source->bytes("legacy.trellis"), 16 * 8 * 48 * 2);
    bench.source->add<uint32_t>("new.mul1", DType::i32, {}, {1u});
    const std::vector<uint16_t> x = random_rows(2 * 256, 8);

    const std::vector<float> a = run_linear(*bench.load("legacy"), x);
    const std::vector<float> b = run_linear(*bench.load("new"), x);

    EXPECT_EQ(a, b);
}

TEST_P(Exl3Weight, Legacy_signs_follow_the_golden_bit_order) {
    const Safetensors file = Safetensors::open(fixture("golden_tables"));
    add_fake(*bench.source, "p", {});
    bench.source->remove("p.suh");
    bench.source->add("p.su", file.tensor("signs.packed"));
    add_fake(*bench.source, "q", {});
    bench.source->add("q.suh", file.tensor("signs.unpacked"));
    const std::vector<uint16_t> x = random_rows(128, 8);

    EXPECT_EQ(run_linear(*bench.load("p"), x), run_linear(*bench.load("q"), x));
}

TEST_P(Exl3Weight, Widths_that_are_not_multiples_of_128_are_extended_and_trimmed) {
    add_fake(*bench.source, "p", {.k = 256, .n = 384});
    const auto whole = bench.load("p", 256, 384);
    const auto narrow = bench.load("p", 200, 300);
    EXPECT_EQ(narrow->info().in_features, 200);
    EXPECT_EQ(narrow->info().out_features, 300);
    std::vector<uint16_t> x = random_rows(2 * 200, 9);
    std::vector<uint16_t> extended(2 * 256, 0);
    for (size_t t = 0; t < 2; ++t) {
        std::copy_n(x.begin() + static_cast<int64_t>(200 * t), 200,
                    extended.begin() + static_cast<int64_t>(256 * t));
    }

    const std::vector<float> y = run_linear(*narrow, x);
    const std::vector<float> expected = run_linear(*whole, extended);

    for (size_t t = 0; t < 2; ++t) {
        for (size_t c = 0; c < 300; ++c) {
            ASSERT_EQ(y[300 * t + c], expected[384 * t + c]) << t << "," << c;
        }
    }
}

TEST_P(Exl3Weight, Slices_multiply_each_group_with_its_own_input) {
    add_fake(*bench.source, "w.slice.0", {.twice_k = 8, .k = 256, .seed = 1});
    add_fake(*bench.source, "w.slice.1", {.twice_k = 3, .k = 256, .seed = 2});
    add_fake(*bench.source, "w.slice.2",
             {.twice_k = 4, .codebook = Codebook::mcg, .k = 256, .seed = 3});
    QuantInfo info;
    TENON_ASSERT_OK(bench.format->inspect(*bench.source, "w", &info));
    EXPECT_EQ(info.groups, 3);
    EXPECT_EQ(info.out_features, 384);
    EXPECT_STREQ(info.codec, "exl3 mixed");
    const auto weight = bench.load("w", 256, 384, 3);
    const std::vector<uint16_t> x = random_rows(5 * 3 * 256, 10);

    const std::vector<float> y = run_linear(*weight, x);

    const std::vector<float> all = dequantized(*weight);
    for (int64_t g = 0; g < 3; ++g) {
        const auto slice = bench.load("w.slice." + std::to_string(g));
        std::vector<uint16_t> mine;
        for (int64_t t = 0; t < 5; ++t) {
            mine.insert(mine.end(), x.begin() + (3 * t + g) * 256,
                        x.begin() + (3 * t + g + 1) * 256);
        }
        const std::vector<float> expected = run_linear(*slice, mine);
        const std::vector<float> part = dequantized(*slice);
        EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + g * 128 * 256));
        for (int64_t t = 0; t < 5; ++t) {
            for (int64_t c = 0; c < 128; ++c) {
                ASSERT_EQ(y[static_cast<size_t>(384 * t + 128 * g + c)],
                          expected[static_cast<size_t>(128 * t + c)]);
            }
        }
    }
}

TEST_P(Exl3Weight, One_matrix_may_hold_all_groups_side_by_side) {
    add_fake(*bench.source, "w", {.k = 128, .n = 256});
    const auto grouped = bench.load("w", 128, 256, 2);
    const auto plain = bench.load("w", 128, 256);
    const std::vector<uint16_t> x = random_rows(2 * 128, 11);

    const std::vector<float> y = run_linear(*grouped, x);

    const std::vector<float> both = run_linear(*plain, x);  // rows = the two groups' inputs
    for (size_t c = 0; c < 128; ++c) {
        EXPECT_EQ(y[c], both[c]);
        EXPECT_EQ(y[128 + c], both[256 + 128 + c]);
    }
}

INSTANTIATE_TEST_SUITE_P(Forms, Exl3Weight, ::testing::ValuesIn(archs_here()),
                         [](const auto& param_info) { return arch_name(param_info.param); });

}  // namespace
}  // namespace tenon::testing
