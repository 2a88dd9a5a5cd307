// SPDX-License-Identifier: MIT
// Two ranks as threads: both hold equal bits, and together they compute the model that one rank
// computes.
#include <gtest/gtest.h>

#include <thread>

#include "model/fake_group.h"
#include "model/models.h"

namespace tenon::testing {
namespace {

/// Runs the same body on both ranks at once.
void on_both(const std::function<void(int32_t)>& body) {
    std::thread other([&] { body(1); });
    body(0);
    other.join();
}

class TwoRanks : public ::testing::Test {
  protected:
    void SetUp() override {
        on_both([&](int32_t rank) {
            RigOptions o = tiny_model();
            o.world = 2;
            o.rank = rank;
            o.communicator = group_.rank(rank);
            o.threads = 1;
            o.slots = 2;
            rigs_[rank] = make_rig(o);
            rigs_[rank]->open(0);
        });
    }
    FakeGroup group_{2};
    std::unique_ptr<ModelRig> rigs_[2];
};

TEST_F(TwoRanks, Logits_are_those_of_the_goldens) {
    for (const auto& [n, limit] :
         std::vector<std::pair<int, double>>{{33, 0.035}, {97, 0.04}, {331, 0.06}}) {
        const std::string p = "p" + std::to_string(n);
        std::vector<float> logits;
        on_both([&](int32_t rank) {
            rigs_[rank]->close(0);
            rigs_[rank]->open(0);
            const auto found =
                rigs_[rank]->prefill(0, ints(tiny_prompts().tensor(p + ".ids")), {}, true);
            if (rank == 0) {
                logits = found;
            }
        });
        const LogitDistance d = compare_logits(logits, tiny_prompts().tensor(p + ".logits"),
                                               tiny_prompts().tensor(p + ".top_gap"), 0.3);
        // Column "other legitimate rounding": experts' partial sums stay f32 (ops.md 3.4).
        EXPECT_LE(d.rms, limit) << p;
        EXPECT_EQ(d.wrong_argmax, 0) << p;
    }
}

TEST_F(TwoRanks, Greedy_ids_are_golden_and_both_ranks_know_them) {
    std::vector<int32_t> ids = ints(tiny_prompts().tensor("p33.ids"));
    const int32_t pending = ids.back();
    ids.pop_back();
    std::vector<int32_t> found[2];
    on_both([&](int32_t rank) {
        rigs_[rank]->prefill(0, ids);
        found[rank] = rigs_[rank]->greedy(0, pending, 64);
    });
    EXPECT_EQ(found[0], ints(tiny_prompts().tensor("p33.greedy")));
    EXPECT_EQ(found[1], found[0]);
}

TEST_F(TwoRanks, State_drafts_and_probes_have_equal_bits) {
    std::string state[2];
    std::vector<DraftResult> drafts[2];
    std::vector<uint64_t> probes[2];
    on_both([&](int32_t rank) {
        ModelRig& rig = *rigs_[rank];
        rig.open(1);
        rig.prefill(0, some_ids(120, 3), {50, 70});
        rig.prefill(1, some_ids(30, 4));
        plan::Sampler s;
        s.generation = rig.generation(0);
        s.temperature = 1;
        s.seed = 5;
        s.frequency = 0.5F;
        PlanBuilder sampler = rig.next();
        sampler.sampler(s);
        rig.run(sampler);
        int32_t pending[2] = {9, 11};
        for (int i = 0; i < 6; ++i) {
            PlanBuilder plan = rig.next();
            for (uint32_t slot = 0; slot < 2; ++slot) {
                plan::Window w;
                w.slot = slot;
                w.generation = rig.generation(slot);
                w.position = rig.length(slot);
                w.accept_max = 16;
                std::vector<int32_t> rows = {pending[slot]};
                if (!drafts[rank].empty()) {
                    const DraftResult& d = drafts[rank][slot];
                    rows.insert(rows.end(), d.tokens, d.tokens + d.count);
                }
                plan.window(w, rows).draft(slot, w.generation);
            }
            const StepOutcome out = rig.run(plan);
            drafts[rank] = out.drafts;
            probes[rank].push_back(out.probe);
            for (uint32_t slot = 0; slot < 2; ++slot) {
                pending[slot] = out.windows[slot].tokens.back();
            }
        }
        state[rank] =
            state_of(rig, 0, {2, 4, 5}, 9, 3, false) + state_of(rig, 1, {2, 4, 5}, 9, 3, false);
    });
    EXPECT_EQ(state[0] == state[1], true);
    EXPECT_EQ(probes[0], probes[1]);
    ASSERT_EQ(drafts[0].size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(drafts[0][i].count, 5);
        for (int k = 0; k < 5; ++k) {
            EXPECT_EQ(drafts[0][i].tokens[k], drafts[1][i].tokens[k]);
            EXPECT_EQ(drafts[0][i].confidence[k], drafts[1][i].confidence[k]);
        }
    }
}

/// A teacher-forced run over a prompt: logits, and which positions chose which experts and rows.
struct Trace {
    std::vector<float> logits;
    std::vector<std::string> sets;  ///< per position, over all layers
};

Trace traced(ModelRig& rig, const std::vector<int32_t>& ids) {
    Trace out;
    rig.open(0);
    rig.want_trace(true);
    out.logits = rig.prefill(0, ids, {}, true);
    out.sets.resize(ids.size());
    const auto add = [&](const std::string& name) {
        const TensorView v = rig.trace(name);
        for (size_t r = 0; r < ids.size(); ++r) {
            out.sets[r].append(v.row<char>(0) + static_cast<int64_t>(r) * v.stride[0] * 4,
                               static_cast<size_t>(v.shape[1]) * 4);
        }
    };
    for (int i = 0; i < 9; ++i) {
        add("layers." + std::to_string(i) + ".experts");
    }
    for (const int i : {2, 4, 5, 7}) {
        add("layers." + std::to_string(i) + ".chosen");
    }
    return out;
}

/// Relative rms of logits over positions whose sets agree, and how many do not.
std::pair<double, int64_t> distance(const Trace& a, const Trace& b) {
    double diff = 0;
    double norm = 0;
    int64_t differing = 0;
    const size_t width = a.logits.size() / a.sets.size();
    for (size_t r = 0; r < a.sets.size(); ++r) {
        if (a.sets[r] != b.sets[r]) {
            ++differing;
            continue;
        }
        for (size_t i = r * width; i < (r + 1) * width; ++i) {
            diff += (static_cast<double>(a.logits[i]) - b.logits[i]) *
                    (static_cast<double>(a.logits[i]) - b.logits[i]);
            norm += static_cast<double>(b.logits[i]) * b.logits[i];
        }
    }
    return {std::sqrt(diff / norm), differing};
}

TEST_F(TwoRanks, Differ_from_one_rank_no_more_than_unrounded_experts_do) {
    // ops.md 3.4: world 2 keeps experts' partial products in f32; one rank with the same arithmetic
    // ("1f") measures how far that alone moves the model.
    const auto ids = ints(tiny_prompts().tensor("p331.ids"));
    Trace two;
    on_both([&](int32_t rank) {
        rigs_[rank]->close(0);
        Trace run = traced(*rigs_[rank], ids);
        if (rank == 0) {
            two = std::move(run);
        }
    });
    const Trace one = traced(*make_rig(tiny_model()), ids);
    RigOptions o = tiny_model();
    o.experts_in_f32 = true;
    const Trace unrounded = traced(*make_rig(o), ids);

    const auto [rms_two, sets_two] = distance(two, one);
    const auto [rms_f, sets_f] = distance(unrounded, one);
    EXPECT_GT(rms_f, 0) << "the switch must do something";
    EXPECT_LE(rms_two, 2 * rms_f);
    EXPECT_LE(sets_two, 2 * sets_f);
}

TEST(OneRankOfTwo, Needs_dimensions_that_divide) {
    FakeGroup group(2);
    RigOptions o = tiny_exl3_model();
    o.world = 2;
    o.communicator = group.rank(0);
    auto rig = ModelRig::make(o);
    ASSERT_FALSE(rig.ok());
    EXPECT_NE(rig.status().message().str().find("128"), std::string::npos)
        << rig.status().message().view();
    o = tiny_model();
    o.world = 3;
    auto three = ModelRig::make(o);
    ASSERT_FALSE(three.ok());
    EXPECT_NE(three.status().message().str().find("cannot be split over 3 ranks"),
              std::string::npos)
        << three.status().message().view();
    o.world = 2;
    o.communicator = nullptr;
    EXPECT_EQ(ModelRig::make(o).status().code(), Code::unavailable);
}

}  // namespace
}  // namespace tenon::testing
