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
