// SPDX-License-Identifier: MIT
// Rules of matrices that are loaded together: groups that share an input, and the experts of a
// layer. Both facets are optional; a format that refuses them says `unsupported`.
#include <cstring>

#include "quant/samples.h"

namespace tenon::testing {
namespace {

class QuantGroupRules : public QuantSuite {};

TEST_P(QuantGroupRules, A_group_equals_its_members) {
    const std::string& first = bases()[0];
    std::vector<std::string> members;
    for (const std::string& base : bases()) {
        if (inspect(base).in_features == inspect(first).in_features && members.size() < 6) {
            members.push_back(base);
        }
    }
    std::vector<WeightRequest> requests;
    for (const std::string& base : members) {
        requests.push_back(request(base));
    }
    Ref<QuantGroup> group;
    const Status status = format().load_group(requests, group.out());
    if (status.code() == Code::unsupported) {
        GTEST_SKIP() << "the format refuses groups: " << status.message().view();
    }
    TENON_ASSERT_OK(status.copy());
    EXPECT_GT(group->device_bytes(), 0);
    for (const int64_t rows : {0, 1, 7, 64}) {
        const int64_t in = inspect(first).in_features;
        const std::vector<uint16_t> x = random_rows(rows * in, 1);
        std::vector<std::vector<float>> outputs;
        std::vector<TensorView> views;
        for (const std::string& base : members) {
            const int64_t out = inspect(base).out_features;
            outputs.emplace_back(static_cast<size_t>(rows * out), std::nanf(""));
            views.push_back(make_view(outputs.back().data(), DType::f32, {rows, out}));
        }
        Bytes scratch(group->scratch_bytes(rows, Regime::decode));
        TENON_ASSERT_OK(group->linear(make_view(x.data(), DType::bf16, {rows, in}), views,
                                      Regime::decode, scratch.view(), stream()));
        for (size_t i = 0; rows > 0 && i < members.size(); ++i) {
            const std::vector<float> alone = run_linear(*load(members[i]), x);
            // ops.md 6.21: within one ulp of the separate product.
            for (size_t c = 0; c < alone.size(); ++c) {
                ASSERT_NEAR(outputs[i][c], alone[c], std::abs(alone[c]) * 0x1p-23f) << members[i];
            }
        }
    }
}

TEST_P(QuantGroupRules, A_group_with_another_input_width_is_refused) {
    const std::string& first = bases()[0];
    for (const std::string& base : bases()) {
        if (inspect(base).in_features != inspect(first).in_features) {
            const WeightRequest requests[] = {request(first), request(base)};
            QuantGroup* untouched = nullptr;
            EXPECT_FALSE(format().load_group(Span<const WeightRequest>(requests), &untouched).ok());
            EXPECT_EQ(untouched, nullptr);
            return;
        }
    }
}

class QuantExpertsRules : public QuantSuite {
  protected:
    void SetUp() override {
        QuantSuite::SetUp();
        if (IsSkipped() || HasFatalFailure()) {
            return;
        }
        for (const std::string& base : bases()) {
            const size_t at = base.find("experts.0.w1");
            if (at != std::string::npos) {
                prefix_ = base.substr(0, at);
                hidden_ = inspect(base).in_features;
                width_ = inspect(base).out_features;
                const Status status = format().load_experts(experts_request(), experts_.out());
                if (status.code() == Code::unsupported) {
                    GTEST_SKIP() << "the format refuses experts: " << status.message().view();
                }
                TENON_ASSERT_OK(status.copy());
                return;
            }
        }
        GTEST_SKIP() << "no sample 'experts.0.w1' in this format";
    }

    ExpertsRequest experts_request() {
        routed_ = prefix_ + "experts";
        shared_ = prefix_ + "shared";
        ExpertsRequest r;
        r.prefix = routed_;
        r.shared_prefix = shared_;
        r.experts = 4;
        r.hidden = hidden_;
        r.intermediate = width_;
        r.source = &source();
        r.device = &device();
        r.stream = &stream();
        return r;
    }

    std::vector<float> run(QuantExperts& experts, const std::vector<uint16_t>& x,
                           const std::vector<int32_t>& ids, const std::vector<float>& weights,
                           int64_t k, Regime regime = Regime::decode) {
        const auto rows = static_cast<int64_t>(x.size()) / hidden_;
        std::vector<float> out(static_cast<size_t>(rows * hidden_), std::nanf(""));
        Bytes scratch(experts.scratch_bytes(rows, static_cast<int32_t>(k), regime));
        ExpertsArgs args;
        args.x = make_view(x.data(), DType::bf16, {rows, hidden_});
        args.ids = make_view(ids.data(), DType::i32, {rows, k});
        args.weights = make_view(weights.data(), DType::f32, {rows, k});
        args.limit = 10.0f;
        args.out = make_view(out.data(), DType::f32, {rows, hidden_});
        args.regime = regime;
        args.scratch = scratch.view();
        TENON_EXPECT_OK(experts.run(args, stream()));
        return out;
    }

    /// One expert for one row from the format's own linears, with the roundings of ops.md 3.4.
    std::vector<float> by_linear(const std::string& prefix, const std::vector<uint16_t>& row,
                                 float weight) {
        const std::vector<float> g = run_linear(*load(request(keep(prefix + ".w1"))), row);
        const std::vector<float> u = run_linear(*load(request(keep(prefix + ".w3"))), row);
        std::vector<uint16_t> a;
        for (size_t i = 0; i < g.size(); ++i) {
            const float gate = std::min(round_bf16(g[i]), 10.0f);
            const float up = std::clamp(round_bf16(u[i]), -10.0f, 10.0f);
            const double z = gate;
            a.push_back(f32_to_bf16(weight * static_cast<float>(z / (1.0 + std::exp(-z))) * up));
        }
        std::vector<float> p = run_linear(*load(request(keep(prefix + ".w2"))), a);
        for (float& v : p) {
            v = round_bf16(v);
        }
        return p;
    }

    const std::string& keep(std::string name) {
        names_.push_back(std::make_unique<std::string>(std::move(name)));
        return *names_.back();
    }

    Ref<QuantExperts> experts_;
    std::string prefix_, routed_, shared_;
    int64_t hidden_ = 0, width_ = 0;
    std::vector<std::unique_ptr<std::string>> names_;
};

TEST_P(QuantExpertsRules, The_mixture_is_the_sum_over_slots_then_the_shared_expert) {
    const std::vector<uint16_t> x = random_rows(hidden_, 1);
    const std::vector<float> out = run(*experts_, x, {1, 3}, {0.75f, 0.5f}, 2);

    const std::vector<float> a = by_linear(routed_ + ".1", x, 0.75f);
    const std::vector<float> b = by_linear(routed_ + ".3", x, 0.5f);
    const std::vector<float> s = by_linear(shared_, x, 1.0f);

    std::vector<double> expected;
    for (size_t c = 0; c < out.size(); ++c) {
        expected.push_back((a[c] + b[c]) + s[c]);
    }
    // Another exp or order of sums moves single values across a bf16 boundary.
    EXPECT_LE(relative_rms(widen(out).data(), expected.data(), hidden_), 2e-3);
}

TEST_P(QuantExpertsRules, A_rows_bits_depend_on_its_own_experts_only) {
    constexpr int64_t kRows = 70;
    const std::vector<uint16_t> x = random_rows(kRows * hidden_, 2);
    std::vector<int32_t> ids;
    std::vector<float> weights;
    for (int32_t t = 0; t < kRows; ++t) {
        const int32_t first = t % 4;
        const int32_t second = t % 7 == 0 ? -1 : (first + 1 + t % 3) % 4;
        ids.insert(ids.end(), {first, second});
        weights.insert(weights.end(), {0.5f + 0.01f * static_cast<float>(t), 0.25f});
    }
    const std::vector<float> all = run(*experts_, x, ids, weights, 2, Regime::prefill);
    for (int64_t t = 0; t < kRows; ++t) {
        const auto at = static_cast<size_t>(2 * t);
        const std::vector<float> alone =
            run(*experts_,
                std::vector<uint16_t>(x.begin() + t * hidden_, x.begin() + (t + 1) * hidden_),
                {ids[at], ids[at + 1]}, {weights[at], weights[at + 1]}, 2, Regime::prefill);
        ASSERT_EQ(std::memcmp(alone.data(), all.data() + t * hidden_, alone.size() * sizeof(float)),
                  0)
            << "row " << t;
    }
}

TEST_P(QuantExpertsRules, Empty_slots_and_no_rows_are_legal) {
    const std::vector<uint16_t> x = random_rows(hidden_, 3);
    const std::vector<float> none = run(*experts_, x, {-1, -1}, {1, 1}, 2);
    const std::vector<float> one = run(*experts_, x, {-1}, {1}, 1);
    EXPECT_EQ(none, one);
    EXPECT_TRUE(run(*experts_, {}, {}, {}, 2).empty());
}

TEST_P(QuantExpertsRules, Keeping_f32_changes_results_and_can_be_undone) {
    const std::vector<uint16_t> x = random_rows(2 * hidden_, 4);
    const std::vector<int32_t> ids{0, 1, 2, 3};
    const std::vector<float> weights{0.3f, 0.6f, 0.9f, 1.2f};
    const std::vector<float> rounded = run(*experts_, x, ids, weights, 2);
    experts_->keep_f32(true);
    const std::vector<float> kept = run(*experts_, x, ids, weights, 2);
    experts_->keep_f32(false);

    EXPECT_NE(kept, rounded);
    EXPECT_EQ(run(*experts_, x, ids, weights, 2), rounded);
}

TEST_P(QuantExpertsRules, Parts_by_expert_add_up_to_the_whole) {
    const std::vector<uint16_t> x = random_rows(3 * hidden_, 5);
    const std::vector<int32_t> ids{0, 1, 2, 3, 0, 3};
    const std::vector<float> weights(6, 0.5f);
    const std::vector<float> whole = run(*experts_, x, ids, weights, 2);
    std::vector<float> sum(whole.size(), 0.0f);
    for (int32_t rank = 0; rank < 2; ++rank) {
        ExpertsRequest r = experts_request();
        r.shard = {ShardAxis::expert, rank, 2};
        Ref<QuantExperts> part;
        TENON_ASSERT_OK(format().load_experts(r, part.out()));
        const std::vector<float> mine = run(*part, x, ids, weights, 2);
        for (size_t i = 0; i < sum.size(); ++i) {
            sum[i] += mine[i];
        }
    }
    EXPECT_LE(
        relative_rms(widen(sum).data(), widen(whole).data(), static_cast<int64_t>(sum.size())),
        1e-6);
}

TENON_INSTANTIATE_FOR_KIND(QuantGroupRules, PluginKind::quant);
TENON_INSTANTIATE_FOR_KIND(QuantExpertsRules, PluginKind::quant);

}  // namespace
}  // namespace tenon::testing
