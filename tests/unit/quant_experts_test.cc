// SPDX-License-Identifier: MIT
// quant.experts in both formats and both forms: values and rounding points, order of the sum, cuts,
// row invariance, odd routings (ops.md 3.4 and 6.19, docs/exl3.md 7.13).
#include <gtest/gtest.h>

#include <numeric>

#include "plugins/quant_exl3/format.h"
#include "plugins/quant_plain/format.h"
#include "quant_exl3_util.h"
#include "quant_forms.h"
#include "tenon/testing/quant_harness.h"
#include "tenon/testing/safetensors.h"

namespace tenon::testing {
namespace {

using exl3::Codebook;

struct Form {
    const char* name;
    const char* arch;
    bool exl3;
    bool only_mul1 = false;
    Regime regime = Regime::decode;  // CPU: both have the same bits
};
const std::vector<Form> kForms = {{"Exl3_reference", "cpu-reference", true},
                                  {"Exl3", "cpu-test", true},
                                  {"Plain_reference", "cpu-reference", false},
                                  {"Plain", "cpu-test", false},
                                  {"Exl3_gpu", "gpu", true},
                                  {"Exl3_mul1_gpu", "gpu", true, true},
                                  {"Exl3_gpu_prefill", "gpu", true, false, Regime::prefill},
                                  {"Exl3_mul1_gpu_prefill", "gpu", true, true, Regime::prefill},
                                  {"Exl3_mul1", "cpu-test", true, true},
                                  {"Plain_gpu", "gpu", false}};

constexpr int64_t kHidden = 256;
constexpr int64_t kWidth = 384;
constexpr int32_t kExperts = 5;

/// Experts e.{0..4}.w1|w3|w2 and a shared one, every matrix in another rate or encoding.
void add_experts(const Form& form, MemorySource& source, int64_t width = kWidth) {
    constexpr int kRates[] = {4, 6, 8, 5, 10, 3, 2, 12, 7, 16};
    int n = 0;
    for (int e = 0; e <= kExperts; ++e) {
        const std::string prefix = e == kExperts ? "shared" : "e." + std::to_string(e);
        for (const char* name : {"w1", "w3", "w2"}) {
            const bool down = std::string_view(name) == "w2";
            const int64_t in = down ? width : kHidden;
            const int64_t out = down ? kHidden : width;
            const std::string base = prefix + "." + name;
            ++n;
            if (form.exl3) {
                const int rate = kRates[n % 10];
                const Codebook codebook = rate % 2 == 1 || form.only_mul1 ? Codebook::mul1
                                          : n % 3 == 0                    ? Codebook::mcg
                                          : n % 3 == 1                    ? Codebook::mul1
                                                                          : Codebook::inst3;
                add_fake(source, base,
                         {.twice_k = rate,
                          .codebook = codebook,
                          .k = in,
                          .n = out,
                          .seed = static_cast<uint32_t>(n)});
            } else {
                add_plain(source, base, kFakes[n % 5], out, in, static_cast<uint32_t>(n));
            }
        }
    }
}

/// Routing of some rows: k slots each.
struct Routing {
    int64_t k = 2;
    std::vector<int32_t> ids;
    std::vector<float> weights;
    int64_t rows() const { return k == 0 ? 0 : static_cast<int64_t>(ids.size()) / k; }
};

Routing random_routing(int64_t rows, int64_t k, uint32_t seed) {
    std::mt19937 rng(seed);
    Routing r;
    r.k = k;
    for (int64_t t = 0; t < rows; ++t) {
        std::vector<int32_t> all(kExperts);
        std::iota(all.begin(), all.end(), 0);
        std::shuffle(all.begin(), all.end(), rng);
        std::sort(all.begin(), all.begin() + k);
        for (int64_t s = 0; s < k; ++s) {
            r.ids.push_back(all[static_cast<size_t>(s)]);
            r.weights.push_back(0.2f + static_cast<float>(rng() % 1000) / 1000.0f);
        }
    }
    return r;
}

class Experts : public ::testing::TestWithParam<Form> {
  protected:
    Experts() { add_experts(GetParam(), *bench.source); }

    static QuantFormat* make(const Form& form) {
        return format_for(form.arch, form.exl3 ? exl3::make_format() : plain::make_format(false));
    }
    ExpertsRequest request(QuantBench& from, const char* shared = "shared") {
        ExpertsRequest r;
        r.prefix = "e";
        r.shared_prefix = shared;
        r.experts = kExperts;
        r.hidden = kHidden;
        r.intermediate = kWidth;
        r.source = from.source.get();
        r.device = from.device.get();
        r.stream = &from.stream;
        return r;
    }
    Ref<QuantExperts> load(const ExpertsRequest& r) {
        Ref<QuantExperts> experts;
        TENON_EXPECT_OK(bench.format->load_experts(r, experts.out()));
        return experts;
    }
    Ref<QuantExperts> load(const char* shared = "shared") { return load(request(bench, shared)); }

    std::vector<float> run(QuantExperts& experts, const std::vector<uint16_t>& x,
                           const Routing& routing, float limit, Regime regime) {
        const auto rows = static_cast<int64_t>(x.size()) / kHidden;
        std::vector<float> out(static_cast<size_t>(rows * kHidden), std::nanf(""));
        Bytes scratch(experts.scratch_bytes(rows, static_cast<int32_t>(routing.k), regime));
        ExpertsArgs args;
        args.x = make_view(x.data(), DType::bf16, {rows, kHidden});
        args.ids = make_view(routing.ids.data(), DType::i32, {rows, routing.k});
        args.weights = make_view(routing.weights.data(), DType::f32, {rows, routing.k});
        args.limit = limit;
        args.out = make_view(out.data(), DType::f32, {rows, kHidden});
        args.regime = regime;
        args.scratch = scratch.view();
        TENON_EXPECT_OK(experts.run(args, bench.stream));
        return out;
    }

    std::vector<float> run(QuantExperts& experts, const std::vector<uint16_t>& x,
                           const Routing& routing, float limit = 0) {
        return run(experts, x, routing, limit, GetParam().regime);
    }

    struct Dense {
        std::vector<float> w1, w3, w2;
    };
    /// Weights of expert e, or of the shared one.
    const Dense& dense(int32_t e) {
        auto it = dense_.find(e);
        if (it == dense_.end()) {
            const std::string p = e == kExperts ? "shared" : "e." + std::to_string(e);
            Dense d{dequantized(*bench.load(p + ".w1")), dequantized(*bench.load(p + ".w3")),
                    dequantized(*bench.load(p + ".w2"))};
            it = dense_.emplace(e, std::move(d)).first;
        }
        return it->second;
    }

    /// The activation of one expert for one row: every rounding of ops.md 3.4 up to `a`.
    std::vector<uint16_t> activation(int32_t e, const std::vector<uint16_t>& row, float weight,
                                     float limit, bool clamp_both = false) {
        const std::vector<double> g64 = oracle(dense(e).w1, row, kHidden);
        const std::vector<double> u64 = oracle(dense(e).w3, row, kHidden);
        std::vector<uint16_t> a;
        for (size_t i = 0; i < g64.size(); ++i) {
            float g = round_bf16(static_cast<float>(g64[i]));
            float u = round_bf16(static_cast<float>(u64[i]));
            if (limit > 0) {
                g = std::min(g, limit);
                g = clamp_both ? std::max(g, -limit) : g;
                u = std::clamp(u, -limit, limit);
            }
            const double silu = static_cast<double>(g) / (1.0 + std::exp(-static_cast<double>(g)));
            a.push_back(f32_to_bf16(weight * static_cast<float>(silu) * u));
        }
        return a;
    }

    /// The whole mixture by the definition; down products are rounded if `round`.
    std::vector<double> expected(const std::vector<uint16_t>& x, const Routing& routing,
                                 bool shared, float limit = 0, bool round = true,
                                 bool clamp_both = false) {
        const auto rows = static_cast<int64_t>(x.size()) / kHidden;
        std::vector<double> out;
        for (int64_t t = 0; t < rows; ++t) {
            const std::vector<uint16_t> row(x.begin() + t * kHidden, x.begin() + (t + 1) * kHidden);
            std::vector<float> sum(kHidden, 0.0f);
            for (int64_t s = 0; s <= routing.k; ++s) {
                const bool last = s == routing.k;
                const int32_t e = last ? (shared ? kExperts : -1)
                                       : routing.ids[static_cast<size_t>(t * routing.k + s)];
                if (e < 0) {
                    continue;
                }
                const float weight =
                    last ? 1.0f : routing.weights[static_cast<size_t>(t * routing.k + s)];
                const std::vector<double> p =
                    oracle(dense(e).w2, activation(e, row, weight, limit, clamp_both), kWidth);
                for (size_t c = 0; c < p.size(); ++c) {
                    const auto f = static_cast<float>(p[c]);
                    sum[c] += round ? round_bf16(f) : f;
                }
            }
            out.insert(out.end(), sum.begin(), sum.end());
        }
        return out;
    }

    // Sums in f32 against f64 move g, u, a or p across a bf16 rounding boundary now and then: one
    // part in 2^8 of one term in several thousand. On a GPU products are good to 4e-4 (the linear
    // tests), which moves one term in ten; docs/exl3.md 7.13 allows 5e-3.
    void expect_near(const std::vector<float>& out, const std::vector<double>& reference) {
        ASSERT_EQ(out.size(), reference.size());
        EXPECT_LE(
            relative_rms(widen(out).data(), reference.data(), static_cast<int64_t>(out.size())),
            on_gpu(GetParam().arch) ? 5e-3 : 1e-3);
    }

    QuantBench bench{make(GetParam()), GetParam().arch};
    std::map<int32_t, Dense> dense_;
};

TEST_P(Experts, Equal_the_definition) {
    for (const char* shared : {"shared", ""}) {
        const auto experts = load(shared);
        for (const int64_t rows : {1, 2, 5, 17}) {
            const std::vector<uint16_t> x = random_rows(rows * kHidden, 1);
            const Routing routing = random_routing(rows, 2, 2);
            expect_near(run(*experts, x, routing, 10.0f),
                        expected(x, routing, *shared != '\0', 10.0f));
        }
    }
}

TEST_P(Experts, Without_the_rounding_of_down_products_the_sum_stays_f32) {
    const auto experts = load();
    const std::vector<uint16_t> x = random_rows(3 * kHidden, 3);
    const Routing routing = random_routing(3, 2, 4);
    const std::vector<float> rounded = run(*experts, x, routing);
    experts->keep_f32(true);
    const std::vector<float> kept = run(*experts, x, routing);
    experts->keep_f32(false);

    expect_near(kept, expected(x, routing, true, 0, false));
    EXPECT_NE(rounded, kept);
    // With one slot and no shared expert the output is one down product: a bf16 number.
    const std::vector<float> one = run(*load(""), x, random_routing(3, 1, 4));
    for (const float v : one) {
        ASSERT_EQ(v, round_bf16(v));
    }
    EXPECT_EQ(run(*experts, x, routing), rounded);
}

// Slot order, then the shared expert, in f32 and bit for bit: the terms come from calls with one
// slot.
TEST_P(Experts, The_sum_runs_over_slots_and_ends_with_the_shared_expert) {
    const auto both = load();
    const auto routed = load("");
    both->keep_f32(true);
    routed->keep_f32(true);
    const std::vector<uint16_t> x = random_rows(kHidden, 5);
    const Routing all{3, {4, 0, 2}, {0.9f, 0.5f, 0.7f}};
    std::vector<std::vector<float>> terms;
    for (size_t s = 0; s < 3; ++s) {
        terms.push_back(run(*routed, x, Routing{1, {all.ids[s]}, {all.weights[s]}}));
    }
    const std::vector<float> shared = run(*both, x, Routing{1, {-1}, {0.0f}});

    const std::vector<float> out = run(*both, x, all);

    int other_order_differs = 0;
    for (size_t c = 0; c < kHidden; ++c) {
        ASSERT_EQ(out[c], ((terms[0][c] + terms[1][c]) + terms[2][c]) + shared[c]) << c;
        other_order_differs += out[c] != ((shared[c] + terms[0][c]) + terms[1][c]) + terms[2][c];
    }
    EXPECT_GT(other_order_differs, 0) << "the inputs do not tell orders apart";
}

TEST_P(Experts, A_rows_bits_do_not_depend_on_other_rows_or_their_experts) {
    const auto experts = load();
    constexpr int64_t kRows = 300;
    const std::vector<uint16_t> x = random_rows(kRows * kHidden, 6);
    const Routing routing = random_routing(kRows, 2, 7);
    const bool slow = std::string_view(GetParam().arch) == "cpu-reference";
    for (const int64_t rows : {1, 2, 3, 16, 33, 64, 129, 300}) {
        if (slow && rows > 33) {
            continue;
        }
        const std::vector<uint16_t> some(x.begin(), x.begin() + rows * kHidden);
        Routing part = routing;
        part.ids.resize(static_cast<size_t>(rows * 2));
        part.weights.resize(static_cast<size_t>(rows * 2));
        for (const Regime regime : {Regime::decode, Regime::prefill}) {
            if (on_gpu(GetParam().arch) && regime != GetParam().regime) {
                continue;  // other bits there
            }
            const std::vector<float> out = run(*experts, some, part, 10.0f, regime);
            for (int64_t t = 0; t < rows; t += 1 + rows / 20) {
                const std::vector<uint16_t> row(x.begin() + t * kHidden,
                                                x.begin() + (t + 1) * kHidden);
                const auto at = static_cast<size_t>(2 * t);
                const Routing one{2,
                                  {routing.ids[at], routing.ids[at + 1]},
                                  {routing.weights[at], routing.weights[at + 1]}};
                const std::vector<float> alone = run(*experts, row, one, 10.0f);
                ASSERT_TRUE(std::equal(alone.begin(), alone.end(), out.begin() + t * kHidden))
                    << "row " << t << " of " << rows;
            }
        }
    }
}

TEST_P(Experts, A_nan_row_stays_alone) {
    const auto experts = load();
    std::vector<uint16_t> x = random_rows(4 * kHidden, 8);
    const Routing routing{2, {0, 1, 0, 1, 0, 1, 0, 1}, std::vector<float>(8, 0.5f)};
    const std::vector<float> before = run(*experts, x, routing, 10.0f);
    x[kHidden + 3] = 0x7FC0;

    const std::vector<float> after = run(*experts, x, routing, 10.0f);

    for (size_t t : {size_t{0}, size_t{2}, size_t{3}}) {
        EXPECT_TRUE(std::equal(before.begin() + static_cast<int64_t>(t * kHidden),
                               before.begin() + static_cast<int64_t>((t + 1) * kHidden),
                               after.begin() + static_cast<int64_t>(t * kHidden)));
    }
    EXPECT_TRUE(std::isnan(after[kHidden]));
}

TEST_P(Experts, Any_number_of_threads_gives_the_same_bits) {
    if (on_gpu(GetParam().arch)) {
        GTEST_SKIP() << "a GPU has no host threads";
    }
    for (const int64_t rows : {1, 7, 200}) {
        const std::vector<uint16_t> x = random_rows(rows * kHidden, 9);
        const Routing routing = random_routing(rows, 2, 10);
        const std::vector<float> inline_bits = run(*load(), x, routing, 10.0f);
        for (const int32_t workers : {1, 2, 3, 8}) {
            QuantBench threaded{make(GetParam()), GetParam().arch, workers};
            add_experts(GetParam(), *threaded.source);
            Ref<QuantExperts> experts;
            TENON_ASSERT_OK(threaded.format->load_experts(request(threaded), experts.out()));
            EXPECT_EQ(run(*experts, x, routing, 10.0f), inline_bits) << rows << " " << workers;
            EXPECT_GT(threaded.device->threads().runs, 0);
        }
    }
}

TEST_P(Experts, All_rows_may_choose_one_expert_and_each_row_another) {
    const auto experts = load();
    const std::vector<uint16_t> x = random_rows(64 * kHidden, 11);
    Routing one{1, std::vector<int32_t>(64, 3), std::vector<float>(64, 0.8f)};
    Routing each = one;
    for (int32_t t = 0; t < 64; ++t) {
        each.ids[static_cast<size_t>(t)] = t % kExperts;
    }
    const std::vector<float> out_one = run(*experts, x, one);
    const std::vector<float> out_each = run(*experts, x, each);
    for (int64_t t = 0; t < 64; t += 9) {
        const std::vector<uint16_t> row(x.begin() + t * kHidden, x.begin() + (t + 1) * kHidden);
        const std::vector<float> a = run(*experts, row, Routing{1, {3}, {0.8f}});
        EXPECT_TRUE(std::equal(a.begin(), a.end(), out_one.begin() + t * kHidden));
        const std::vector<float> b =
            run(*experts, row, Routing{1, {static_cast<int32_t>(t) % kExperts}, {0.8f}});
        EXPECT_TRUE(std::equal(b.begin(), b.end(), out_each.begin() + t * kHidden));
    }
}

TEST_P(Experts, Empty_slots_add_nothing) {
    const auto experts = load("");
    const std::vector<uint16_t> x = random_rows(3 * kHidden, 12);
    const Routing holes{3,
                        {-1, 2, -1, -1, -1, -1, 1, -1, 4},
                        {9.0f, 0.5f, std::nanf(""), 1, 1, 1, 0.25f, 1, 0.75f}};

    const std::vector<float> out = run(*experts, x, holes);

    const std::vector<uint16_t> first(x.begin(), x.begin() + kHidden);
    const std::vector<uint16_t> third(x.begin() + 2 * kHidden, x.end());
    const std::vector<float> a = run(*experts, first, Routing{1, {2}, {0.5f}});
    const std::vector<float> c = run(*experts, third, Routing{2, {1, 4}, {0.25f, 0.75f}});
    EXPECT_TRUE(std::equal(a.begin(), a.end(), out.begin()));
    EXPECT_TRUE(std::equal(c.begin(), c.end(), out.begin() + 2 * kHidden));
    for (size_t i = kHidden; i < 2 * kHidden; ++i) {
        EXPECT_EQ(out[i], 0.0f);
    }
}

TEST_P(Experts, An_expert_may_appear_twice_in_a_row) {
    const auto experts = load("");
    const std::vector<uint16_t> x = random_rows(kHidden, 13);
    const std::vector<float> a = run(*experts, x, Routing{1, {2}, {0.5f}});
    const std::vector<float> b = run(*experts, x, Routing{1, {2}, {0.75f}});

    const std::vector<float> out = run(*experts, x, Routing{2, {2, 2}, {0.5f, 0.75f}});

    for (size_t c = 0; c < kHidden; ++c) {
        EXPECT_EQ(out[c], a[c] + b[c]);
    }
}

TEST_P(Experts, The_limit_clamps_the_gate_above_and_the_other_on_both_sides) {
    const auto experts = load();
    const std::vector<uint16_t> x = random_rows(4 * kHidden, 14, 4.0f);
    const Routing routing = random_routing(4, 2, 15);
    const float limit = 0.25f;

    const std::vector<float> out = run(*experts, x, routing, limit);

    expect_near(out, expected(x, routing, true, limit));
    const std::vector<double> both = expected(x, routing, true, limit, true, true);
    EXPECT_GT(relative_rms(widen(out).data(), both.data(), 4 * kHidden), 1e-2);
    const std::vector<double> none = expected(x, routing, true, 0);
    EXPECT_GT(relative_rms(widen(out).data(), none.data(), 4 * kHidden), 1e-2);
}

TEST_P(Experts, No_rows_and_no_slots_are_legal) {
    const auto experts = load();
    EXPECT_EQ(experts->scratch_bytes(0, 2, GetParam().regime), 0);
    ExpertsArgs args;
    args.x = make_view(static_cast<void*>(nullptr), DType::bf16, {0, kHidden});
    args.ids = make_view(static_cast<void*>(nullptr), DType::i32, {0, 2});
    args.weights = make_view(static_cast<void*>(nullptr), DType::f32, {0, 2});
    args.out = make_view(static_cast<void*>(nullptr), DType::f32, {0, kHidden});
    TENON_EXPECT_OK(experts->run(args, bench.stream));

    const std::vector<uint16_t> x = random_rows(2 * kHidden, 16);
    const std::vector<float> none = run(*experts, x, Routing{0, {}, {}});
    const std::vector<float> holes = run(*experts, x, Routing{1, {-1, -1}, {0, 0}});
    EXPECT_EQ(none, holes);
}

TEST_P(Experts, Cuts_by_width_add_up_within_the_bound_of_the_contract) {
    const auto whole = load();
    const std::vector<uint16_t> x = random_rows(5 * kHidden, 17);
    const Routing routing = random_routing(5, 2, 18);
    const std::vector<float> one = run(*whole, x, routing, 10.0f);
    // |y_W - y_1| <= u sum |p_e| + g (ops.md 3.4, before the last rounding); `magnitude` is sum
    // |p_e|.
    whole->keep_f32(true);
    std::vector<double> magnitude(one.size(), 0.0);
    for (int slot = 0; slot <= 2; ++slot) {
        Routing part = routing;
        for (size_t i = 0; i < part.ids.size(); ++i) {
            part.ids[i] = static_cast<int>(i % 2) == slot ? part.ids[i] : -1;
        }
        auto only = load(slot == 2 ? "shared" : "");
        only->keep_f32(true);
        const std::vector<float> p = run(*only, x, part, 10.0f);
        for (size_t i = 0; i < p.size(); ++i) {
            magnitude[i] += std::abs(static_cast<double>(p[i]));
        }
    }
    for (const int32_t world : {2, 3}) {
        std::vector<float> sum(one.size(), 0.0f);
        for (int32_t rank = 0; rank < world; ++rank) {
            ExpertsRequest r = request(bench);
            r.shard = {ShardAxis::out, rank, world};
            const std::vector<float> part = run(*load(r), x, routing, 10.0f);
            for (size_t i = 0; i < part.size(); ++i) {
                sum[i] += part[i];
            }
        }
        double largest = 0;
        for (const double m : magnitude) {
            largest = std::max(largest, m);
        }
        for (size_t i = 0; i < one.size(); ++i) {
            // g: 2 (i + k + 1 + W + 8) 2^-24 of sums of |a_i w_i|, which are below 100 x the
            // largest p.
            const double g =
                2 * static_cast<double>(kWidth + 3 + world + 8) * 0x1p-24 * 100 * largest;
            ASSERT_NEAR(static_cast<double>(sum[i]), static_cast<double>(one[i]),
                        0x1p-8 * magnitude[i] + g)
                << world;
        }
    }
}

TEST_P(Experts, Cuts_by_expert_hold_whole_experts_and_one_shared_one) {
    const std::vector<uint16_t> x = random_rows(6 * kHidden, 19);
    const Routing routing = random_routing(6, 2, 20);
    const std::vector<float> one = run(*load(), x, routing, 10.0f);
    const int64_t bytes = load()->device_bytes();
    for (const int32_t world : {2, 3, 7}) {
        std::vector<float> sum(one.size(), 0.0f);
        int64_t parts = 0;
        for (int32_t rank = 0; rank < world; ++rank) {
            ExpertsRequest r = request(bench);
            r.shard = {ShardAxis::expert, rank, world};
            const auto experts = load(r);
            parts += experts->device_bytes();
            const std::vector<float> part = run(*experts, x, routing, 10.0f);
            for (size_t i = 0; i < part.size(); ++i) {
                sum[i] += part[i];
            }
        }
        EXPECT_EQ(parts, bytes);
        // Ids ascend, so the sum in rank order is the sum in slot order, shared last: equal bits.
        EXPECT_EQ(sum, one) << world;
    }
}

TEST_P(Experts, Device_bytes_are_those_of_the_matrices) {
    int64_t bytes = 0;
    for (int e = 0; e <= kExperts; ++e) {
        for (const char* name : {".w1", ".w3", ".w2"}) {
            const std::string prefix = e == kExperts ? "shared" : "e." + std::to_string(e);
            int64_t planned = 0;
            TENON_ASSERT_OK(bench.format->plan_bytes(bench.request(prefix + name), &planned));
            bytes += planned;
        }
    }
    EXPECT_EQ(load()->device_bytes(), bytes);
}

TEST_P(Experts, Misuse_is_refused_with_the_field_named) {
    const auto experts = load();
    const std::vector<uint16_t> x = random_rows(2 * kHidden, 21);
    Routing routing = random_routing(2, 2, 22);
    std::vector<float> out(2 * kHidden);
    Bytes scratch(experts->scratch_bytes(2, 2, GetParam().regime));
    ExpertsArgs good;
    good.regime = GetParam().regime;
    good.x = make_view(x.data(), DType::bf16, {2, kHidden});
    good.ids = make_view(routing.ids.data(), DType::i32, {2, 2});
    good.weights = make_view(routing.weights.data(), DType::f32, {2, 2});
    good.out = make_view(out.data(), DType::f32, {2, kHidden});
    good.scratch = scratch.view();
    const auto refused = [&](const char* text, void (*change)(ExpertsArgs&)) {
        ExpertsArgs args = good;
        change(args);
        TENON_EXPECT_ERROR(experts->run(args, bench.stream), Code::invalid_argument, text);
    };
    refused("x is f32[2, 256]", [](ExpertsArgs& a) { a.x.dtype = DType::f32; });
    refused("ids is i64", [](ExpertsArgs& a) { a.ids.dtype = DType::i64; });
    refused("ids is i32[1, 2], expected dense i32[2, k]",
            [](ExpertsArgs& a) { a.ids.shape[0] = 1; });
    refused("weights is f32[2, 1], expected dense f32[2, 2]",
            [](ExpertsArgs& a) { a.weights.shape[1] = 1; });
    refused("out is bf16", [](ExpertsArgs& a) { a.out.dtype = DType::bf16; });
    refused("x is null", [](ExpertsArgs& a) { a.x.data = nullptr; });
    refused("scratch has", [](ExpertsArgs& a) { a.scratch.shape[0] -= 1; });
    if (on_gpu(GetParam().arch)) {
        return;  // ids lie in device memory: the host does not read them
    }
    routing.ids[2] = kExperts;
    refused("id 5 of row 1, expected -1 to 4", [](ExpertsArgs&) {});
    routing.ids[2] = -2;
    refused("id -2 of row 1", [](ExpertsArgs&) {});
}

TEST_P(Experts, Bad_requests_are_refused) {
    Ref<QuantExperts> out;
    ExpertsRequest r = request(bench);
    r.hidden = 384;
    EXPECT_EQ(bench.format->load_experts(r, out.out()).code(), Code::invalid_argument);
    r = request(bench);
    r.shard = {ShardAxis::in, 0, 2};
    TENON_EXPECT_ERROR(bench.format->load_experts(r, out.out()), Code::invalid_argument,
                       "cut by width (out) or by expert");
    r = request(bench);
    r.experts = 0;
    TENON_EXPECT_ERROR(bench.format->load_experts(r, out.out()), Code::invalid_argument,
                       "0 experts");
    r = request(bench);
    r.experts = kExperts + 1;
    TENON_EXPECT_ERROR(bench.format->load_experts(r, out.out()), Code::unsupported,
                       "e.5.w1: is not");
    r = request(bench);
    r.shared_prefix = "nothing";
    TENON_EXPECT_ERROR(bench.format->load_experts(r, out.out()), Code::unsupported, "nothing.w1");
    r = request(bench);
    r.device = nullptr;
    TENON_EXPECT_ERROR(bench.format->load_experts(r, out.out()), Code::invalid_argument,
                       "without a device");
}

TEST_P(Experts, Matrices_with_equal_input_scales_share_one_rotation_without_changing_bits) {
    if (!GetParam().exl3) {
        return;  // ordinary matrices have no input scales
    }
    const std::vector<uint16_t> x = random_rows(5 * kHidden, 23);
    const Routing routing = random_routing(5, 2, 24);
    bench.source->add_bytes("e.0.w3.suh", DType::f16, {kHidden}, bench.source->bytes("e.0.w1.suh"),
                            2 * kHidden);
    expect_near(run(*load(), x, routing), expected(x, routing, true));
}

INSTANTIATE_TEST_SUITE_P(Forms, Experts, ::testing::ValuesIn(forms_here(kForms)),
                         [](const auto& param_info) { return param_info.param.name; });

// The original's mixture: x in fp16 there and in bf16 here, bf16 between the stages here.
TEST(ExpertsGolden, The_stored_mixture_is_reproduced) {
    const Safetensors file =
        Safetensors::open(TENON_FIXTURES "/golden/exl3/golden_moe.safetensors");
    for (const char* arch : archs_here()) {
        for (const std::string codebook : {"mcg", "mul1"}) {
            QuantBench bench(format_for(arch, exl3::make_format()), arch);
            const std::pair<const char*, const char*> names[] = {
                {"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}};
            for (int e = 0; e < 4; ++e) {
                for (const auto& [theirs, ours] : names) {
                    const std::string from =
                        codebook + ".experts." + std::to_string(e) + "." + theirs;
                    for (const char* part : {".trellis", ".suh", ".svh", ".mcg", ".mul1"}) {
                        if (file.has(from + part)) {
                            bench.source->add("m." + std::to_string(e) + "." + ours + part,
                                              file.tensor(from + part));
                        }
                    }
                }
            }
            ExpertsRequest r;
            r.prefix = "m";
            r.experts = 4;
            r.hidden = 256;
            r.intermediate = 128;
            r.source = bench.source.get();
            r.device = bench.device.get();
            Ref<QuantExperts> experts;
            TENON_ASSERT_OK(bench.format->load_experts(r, experts.out()));
            std::vector<uint16_t> x;
            std::vector<int32_t> ids;
            std::vector<float> weights;
            for (int64_t i = 0; i < 6 * 256; ++i) {
                x.push_back(f32_to_bf16(f16_to_f32(file.tensor("x").as<uint16_t>()[i])));
            }
            for (int64_t i = 0; i < 12; ++i) {
                ids.push_back(static_cast<int32_t>(file.tensor("sel").as<int64_t>()[i]));
                weights.push_back(f16_to_f32(file.tensor("weights").as<uint16_t>()[i]));
            }
            std::vector<float> out(6 * 256);
            Bytes scratch(experts->scratch_bytes(6, 2, Regime::decode));
            ExpertsArgs args;
            args.x = make_view(x.data(), DType::bf16, {6, 256});
            args.ids = make_view(ids.data(), DType::i32, {6, 2});
            args.weights = make_view(weights.data(), DType::f32, {6, 2});
            args.out = make_view(out.data(), DType::f32, {6, 256});
            args.scratch = scratch.view();
            TENON_ASSERT_OK(experts->run(args, bench.stream));
            const TensorView ref = file.tensor(codebook + ".ref");
            const std::vector<double> theirs(ref.as<float>(), ref.as<float>() + 6 * 256);
            // Roundings to bf16 of x, g, u, a and p: each 2^-9 / sqrt(3) relative on average, five
            // of them, some doubled by silu's slope.
            EXPECT_LE(relative_rms(widen(out).data(), theirs.data(), 6 * 256), 5e-3) << codebook;
        }
    }
}

}  // namespace
}  // namespace tenon::testing
