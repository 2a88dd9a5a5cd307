// SPDX-License-Identifier: MIT
// The tiny checkpoint as an EXL3 pack with native parts, against goldens on exact weights.
// Tolerances: README of the pack, for engines that round inside the rotated product.
#include <gtest/gtest.h>

#include "model/models.h"

namespace tenon::testing {
namespace {

const Safetensors& golden() {
    static const Safetensors file = Safetensors::open(golden_path("tiny_exl3_logits.safetensors"));
    return file;
}

TEST(TinyPack, Logits_are_within_the_rounding_of_the_rotated_product) {
    auto rig = make_rig(tiny_exl3_model());
    for (const int n : {1, 2, 33, 97}) {
        rig->open(0);
        const std::string p = "p" + std::to_string(n);
        const auto logits = rig->prefill(0, ints(golden().tensor(p + ".ids")), {}, true);
        const LogitDistance d = compare_logits(logits, golden().tensor(p + ".logits"),
                                               golden().tensor(p + ".top_gap"), 0.3);
        EXPECT_LE(d.rms, 0.05) << p;
        EXPECT_LE(d.median_row_max, 0.16) << p;
        EXPECT_LE(d.largest, 0.4) << p;
        EXPECT_EQ(d.wrong_argmax, 0) << p;
        rig->close(0);
    }
}

TEST(TinyPack, Layers_and_experts_follow_the_golden_ones) {
    auto rig = make_rig(tiny_exl3_model());
    rig->open(0);
    rig->want_trace(true);
    rig->prefill(0, ints(golden().tensor("p33.ids")));
    for (int i = 0; i < 9; ++i) {
        const std::string name = "layers." + std::to_string(i) + ".";
        EXPECT_LE(relative_rms(rig->trace(name + "h"), golden().tensor("p33." + name + "h")),
                  4e-3 + 1.2e-3 * i)
            << i;
        EXPECT_EQ(different_sets(rig->trace(name + "experts"),
                                 golden().tensor("p33." + name + "experts")),
                  0)
            << i;
    }
}

TEST(TinyPack, Greedy_ids_and_drafts_are_equal_up_to_the_first_small_gap) {
    auto rig = make_rig(tiny_exl3_model());
    for (const std::string p : {"p33", "p97"}) {
        rig->open(0);
        auto ids = ints(golden().tensor(p + ".ids"));
        const auto greedy = ints(golden().tensor(p + ".greedy"));
        const int32_t pending = ids.back();
        ids.pop_back();
        rig->prefill(0, ids);
        plan::Window w;
        w.generation = rig->generation(0);
        w.position = rig->length(0);
        w.accept_max = 16;
        PlanBuilder plan = rig->next();
        plan.window(w, {pending}).draft(0, w.generation);
        const StepOutcome first = rig->run(plan);
        ASSERT_EQ(first.windows[0].tokens.at(0), greedy[0]);
        const auto drafts = ints(golden().tensor(p + ".drafts"));
        const TensorView logits = golden().tensor(p + ".draft_logits");
        for (int i = 0; i < 5; ++i) {
            std::vector<float> row(logits.row<float>(i), logits.row<float>(i) + logits.shape[1]);
            std::nth_element(row.begin(), row.begin() + 1, row.end(), std::greater<>());
            if (*std::max_element(row.begin(), row.begin() + 1) - row[1] < 0.3) {
                break;
            }
            EXPECT_EQ(first.drafts[0].tokens[i], drafts[static_cast<size_t>(i)])
                << p << " draft " << i;
        }
        const TensorView gap = golden().tensor(p + ".greedy_gap");
        const TensorView margin = golden().tensor(p + ".greedy_route_margin");
        int64_t sure = 1;
        while (sure < static_cast<int64_t>(greedy.size()) && gap.as<float>()[sure] >= 0.3 &&
               margin.as<float>()[sure] >= 0.01) {
            ++sure;
        }
        const auto rest = rig->greedy(0, greedy[0], sure - 1);
        EXPECT_EQ(rest, std::vector<int32_t>(greedy.begin() + 1, greedy.begin() + sure)) << p;
        rig->close(0);
    }
}

TEST(TinyPack, A_missing_bias_of_image_rows_changes_nothing_for_text) {
    RigOptions with = tiny_exl3_model();
    RigOptions without = tiny_exl3_model();
    without.extra.clear();
    auto a = make_rig(with);
    auto b = make_rig(without);
    a->open(0);
    b->open(0);
    const auto ids = ints(golden().tensor("p33.ids"));
    EXPECT_EQ(a->prefill(0, ids, {}, true), b->prefill(0, ids, {}, true));
}

}  // namespace
}  // namespace tenon::testing
