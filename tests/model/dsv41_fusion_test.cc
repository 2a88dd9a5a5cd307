// SPDX-License-Identifier: MIT
// The model calls fused ops with the right operands: composed from their parts they change no bit,
// alone or together.
#include <gtest/gtest.h>

#include <thread>

#include "model/fake_group.h"
#include "model/fused_by_parts.h"
#include "model/models.h"

namespace tenon::testing {
namespace {

/// Everything that a run shows: logits of chunks and windows, ids, drafts, state.
std::string run(ModelRig& rig) {
    rig.open(0);
    const auto logits =
        rig.prefill(0, ints(tiny_prompts().tensor("p331.ids")), {130, 1, 200}, true);
    std::string out(reinterpret_cast<const char*>(logits.data()), logits.size() * 4);
    int32_t pending = 9;
    for (int i = 0; i < 8; ++i) {
        plan::Window w;
        w.generation = rig.generation(0);
        w.position = rig.length(0);
        w.accept_max = 16;
        PlanBuilder plan = rig.next();
        plan.window(w, {pending, 4, 5}).draft(0, w.generation);
        const StepOutcome step = rig.run(plan);
        pending = step.windows[0].tokens.back();
        for (int k = 0; k < 5; ++k) {
            out += std::to_string(step.drafts[0].tokens[k]) + " " +
                   std::to_string(step.drafts[0].confidence[k]) + " ";
        }
    }
    return out + state_of(rig, 0, {2, 4, 5}, 9, 3);
}

std::string run_with(FusedByParts* table, std::set<std::string> names) {
    RigOptions o = tiny_model();
    o.decorate = [&](OpTable* inner) {
        if (table == nullptr) {
            return inner;
        }
        table->attach(inner, names);
        return static_cast<OpTable*>(table);
    };
    return run(*make_rig(o));
}

TEST(Fusions, Each_alone_and_all_together_change_no_bit) {
    const std::string parts = run_with(nullptr, {});
    FusedByParts table;
    for (const std::string& name : FusedByParts::all_names()) {
        if (name == "mhc.reduce_expand" || name == "engram.reduce_gate") {
            continue;  // sums over ranks; below
        }
        EXPECT_EQ(run_with(&table, {name}) == parts, true) << name;
        EXPECT_GT(table.calls(), 0) << name << " was never called";
    }
    EXPECT_EQ(run_with(&table, {}) == parts, true) << "all";
}

TEST(Fusions, A_vetoed_one_is_not_called) {
    FusedByParts table;
    RigOptions o = tiny_model();
    o.fusions_off = {"mhc.seam"};
    o.decorate = [&](OpTable* inner) {
        table.attach(inner, {"mhc.seam"});
        return static_cast<OpTable*>(&table);
    };
    run(*make_rig(o));
    EXPECT_EQ(table.calls(), 0);
}

TEST(Fusions, Sums_over_ranks_inside_fused_ops_change_no_bit) {
    const auto both = [](bool fused, std::set<std::string> names) {
        FakeGroup group(2);
        FusedByParts tables[2];
        std::string out[2];
        const auto body = [&](int32_t rank) {
            RigOptions o = tiny_model();
            o.world = 2;
            o.rank = rank;
            o.communicator = group.rank(rank);
            o.threads = 1;
            if (fused) {
                o.decorate = [&tables, rank, names](OpTable* inner) {
                    tables[rank].attach(inner, names);
                    return static_cast<OpTable*>(&tables[rank]);
                };
            }
            auto rig = make_rig(o);
            rig->open(0);
            const auto ids = some_ids(120, 2);
            const auto logits = rig->prefill(0, ids, {70, 50}, true);
            out[rank].assign(reinterpret_cast<const char*>(logits.data()), logits.size() * 4);
            for (const int32_t id : rig->greedy(0, 9, 6)) {
                out[rank] += std::to_string(id) + " ";
            }
            out[rank] += state_of(*rig, 0, {2, 4, 5}, 9, 3, false);
        };
        std::thread other([&] { body(1); });
        body(0);
        other.join();
        return out[0] + out[1];
    };
    const std::string parts = both(false, {});
    EXPECT_EQ(both(true, {"mhc.reduce_expand", "engram.reduce_gate"}) == parts, true);
    EXPECT_EQ(both(true, {}) == parts, true);
}

TEST(Formats, Experts_of_a_format_without_the_facet_are_composed) {
    // Sums in f64 instead of f32: the tolerance of sum orders.
    RigOptions o = tiny_model();
    o.formats = {"dense"};
    auto rig = make_rig(o);
    rig->open(0);
    const auto logits = rig->prefill(0, ints(tiny_prompts().tensor("p33.ids")), {}, true);
    const LogitDistance d = compare_logits(logits, tiny_prompts().tensor("p33.logits"),
                                           tiny_prompts().tensor("p33.top_gap"), 0.3);
    EXPECT_LE(d.rms, 0.02);
    EXPECT_EQ(d.wrong_argmax, 0);
}

TEST(Formats, A_missing_tensor_a_wrong_shape_and_an_unknown_matrix_are_named) {
    const auto message = [](const std::function<void(CheckpointFolder&)>& edit) {
        RigOptions o = tiny_model();
        o.edit = edit;
        auto rig = ModelRig::make(o);
        return rig.ok() ? std::string("ok") : rig.status().message().str();
    };
    const auto has = [](const std::string& text, const char* part) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
    };
    has(message([](CheckpointFolder& c) { c.remove("layers.3.attn.q_norm.weight"); }),
        "layers.3.attn.q_norm.weight");
    has(message([](CheckpointFolder& c) { c.remove("layers.3.attn.wq_a.weight"); }),
        "layers.3.attn.wq_a");
    has(message([](CheckpointFolder& c) { c.remove("layers.2.ffn.experts.1.w2.weight"); }),
        "layers.2.ffn.experts.1.w2");
    has(message([](CheckpointFolder& c) { c.remove("mtp.2.markov_head.embed.weight"); }),
        "mtp.2.markov_head.embed.weight");
    has(message([](CheckpointFolder& c) {
            std::string json = c.config();
            const size_t at = json.find("\"num_attention_heads\": 4");
            c.set_config(json.replace(at, 24, "\"num_attention_heads\": 2"));
        }),
        "expected");
}

}  // namespace
}  // namespace tenon::testing
