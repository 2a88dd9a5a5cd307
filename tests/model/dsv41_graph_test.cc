// SPDX-License-Identifier: MIT
// Decode work from graphs (engine.md 2.5): whatever the lengths, slots, rows and samplers of a step
// are, the graphs that were captured at warm-up give the bits of eager work.
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "model/models.h"

namespace tenon::testing {
namespace {

constexpr uint32_t kSlots = 4;
constexpr char kNoCounts[] = "this device does not count what it captures, nor fail on demand";

struct GraphCase {
    const char* name;
    RigOptions (*options)();
    std::vector<int> sources;
    int layers, stages;
};

const GraphCase kTiny{"tiny_exl3", &tiny_exl3_model, {2, 4, 5}, 9, 3};

void PrintTo(const GraphCase& c, std::ostream* out) {
    *out << c.name;
}

std::unique_ptr<ModelRig> warm_rig(const GraphCase& c, bool graphs,
                                   const std::function<void(ModelRig&)>& before = {},
                                   TableDecorator decorate = {}) {
    RigOptions o = c.options();
    o.decorate = std::move(decorate);
    o.slots = kSlots;
    o.window_rows = 6;
    o.step_rows = 20;
    o.graphs = graphs;
    auto rig = make_rig(o);
    if (before) {
        before(*rig);
    }
    CostTable costs;
    check(rig->model().warm_up({}, &costs));
    return rig;
}

/// Everything that random steps show: ids, drafts with their confidence, probes, state.
std::string live(ModelRig& rig, const GraphCase& c, uint64_t seed, int steps) {
    std::mt19937_64 rng(seed);
    const auto below = [&](uint64_t n) { return rng() % n; };
    std::string out;
    const auto add = [&](const void* data, size_t bytes) {
        out.append(static_cast<const char*>(data), bytes);
    };
    std::vector<int32_t> pending(kSlots, 9);
    std::vector<int64_t> whole(kSlots);  // a slot is not rewound below its last prompt row
    for (uint32_t s = 0; s < kSlots; ++s) {
        rig.open(s);
        plan::Sampler sampler;
        sampler.slot = s;
        sampler.generation = rig.generation(s);
        sampler.temperature = s == 1 ? 1.0F : 0.0F;
        sampler.frequency = s == 3 ? 0.5F : 0.0F;  // needs more than the captured draw
        sampler.seed = 100 + s;
        plan::Pair bias;
        bias.token = 60;
        bias.bits = std::bit_cast<uint32_t>(1.5F);
        PlanBuilder plan = rig.next();
        plan.sampler(sampler, s == 2 && seed % 2 == 0 ? std::vector<plan::Pair>{bias}
                                                      : std::vector<plan::Pair>());
        rig.run(plan);
        // Below and above what the index selects, and what the candidates hold.
        rig.prefill(s, some_ids(5 + 45 * static_cast<int64_t>(s), seed + s));
        whole[s] = rig.length(s);
    }
    for (int i = 0; i < steps; ++i) {
        PlanBuilder plan = rig.next();
        std::vector<uint32_t> slots;
        const int64_t chunk_slot = below(8) == 0 ? static_cast<int64_t>(below(kSlots)) : -1;
        for (uint32_t s = 0; s < kSlots; ++s) {
            if (below(3) == 0 || s == chunk_slot || (s == 3 && below(3) != 0)) {
                continue;
            }
            if (below(6) == 0) {
                const int64_t back =
                    std::max(whole[s], rig.length(s) - 1 - static_cast<int64_t>(below(3)));
                PlanBuilder shorter = rig.next();
                shorter.rewind(s, rig.generation(s), back);
                rig.run(shorter);
            }
            plan::Window w;
            w.slot = s;
            w.generation = rig.generation(s);
            w.position = rig.length(s);
            w.accept_max = 16;
            std::vector<int32_t> tokens = {pending[s]};
            const size_t rows = 1 + below(5);
            while (tokens.size() < rows) {
                tokens.push_back(static_cast<int32_t>(3 + below(400)));
            }
            w.forced = below(5) == 0 ? static_cast<int32_t>(below(rows)) : 0;
            if (below(6) == 0) {
                w.flags |= plan::kWantLogprobs;
                w.top = 2;
            }
            plan.window(w, tokens);
            if (below(2) == 0) {
                plan.draft(s, w.generation);
            }
            slots.push_back(s);
        }
        if (chunk_slot >= 0 && rig.length(static_cast<uint32_t>(chunk_slot)) < 300) {
            const auto s = static_cast<uint32_t>(chunk_slot);
            plan.chunk(s, rig.generation(s), rig.length(s), some_ids(7, below(1000)));
        }
        rig.want_trace(below(9) == 0);  // such a step runs eagerly, or a part of it
        const StepOutcome step = rig.run(plan);
        rig.want_trace(false);
        if (chunk_slot >= 0) {
            whole[static_cast<size_t>(chunk_slot)] = rig.length(static_cast<uint32_t>(chunk_slot));
        }
        for (size_t k = 0; k < slots.size(); ++k) {
            const WindowOutcome& w = step.windows[k];
            add(w.tokens.data(), w.tokens.size() * 4);
            out += static_cast<char>('0' + static_cast<int>(w.finish));
            for (const TokenLogprob& p : w.logprobs) {
                add(&p.token, sizeof p.token);
                add(&p.logprob, sizeof p.logprob);
            }
            pending[slots[k]] = w.tokens.empty() ? 9 : w.tokens.back();
        }
        for (const DraftResult& d : step.drafts) {
            add(d.tokens, sizeof d.tokens);
            add(d.confidence, sizeof d.confidence);
        }
        add(&step.probe, sizeof step.probe);
    }
    for (uint32_t s = 0; s < kSlots; ++s) {
        out += state_of(rig, s, c.sources, c.layers, c.stages, false);
    }
    return out;
}

class Graphs : public ::testing::TestWithParam<GraphCase> {};

TEST_P(Graphs, Give_the_bits_of_eager_work) {
    auto eager = warm_rig(GetParam(), false);
    auto graphs = warm_rig(GetParam(), true);
    for (const uint64_t seed : {7U, 8U}) {
        EXPECT_EQ(live(*graphs, GetParam(), seed, 30) == live(*eager, GetParam(), seed, 30), true)
            << "seed " << seed;
        for (uint32_t s = 0; s < kSlots; ++s) {
            graphs->close(s);
            eager->close(s);
        }
    }
    if (!graphs->counts_graphs()) {
        return;
    }
    EXPECT_GT(graphs->capture().launched(), 60);
    EXPECT_EQ(graphs->tapped_ops().untapped(), 0) << "these run at capture instead of at replay";
}

// serving.md 10: what is captured or compiled while a request waits stalls every stream.
TEST(GraphsTiny, Pitfall_14_Nothing_is_captured_or_run_eagerly_while_serving) {
    auto rig = warm_rig(kTiny, true);
    if (!rig->counts_graphs()) {
        GTEST_SKIP() << kNoCounts;
    }
    CaptureDevice& device = rig->capture();
    for (uint32_t s = 0; s < kSlots; ++s) {
        rig->open(s);
        rig->prefill(s, some_ids(5 + 45 * static_cast<int64_t>(s), s));
    }
    const int64_t captured = device.captured();
    const int64_t eager = device.eager_calls();
    for (const int rows : {1, 2, 3, 5}) {
        for (uint32_t streams = 1; streams <= kSlots; ++streams) {
            PlanBuilder plan = rig->next();
            for (uint32_t s = 0; s < streams; ++s) {
                plan::Window w;
                w.slot = s;
                w.generation = rig->generation(s);
                w.position = rig->length(s);
                w.accept_max = 16;
                plan.window(w, some_ids(rows, s)).draft(s, w.generation);
            }
            rig->run(plan);
        }
    }
    EXPECT_EQ(device.captured(), captured);
    EXPECT_EQ(device.eager_calls(), eager);
}

TEST(GraphsTiny, A_second_warm_up_captures_nothing) {
    auto rig = warm_rig(kTiny, true);
    if (!rig->counts_graphs()) {
        GTEST_SKIP() << kNoCounts;
    }
    const int64_t captured = rig->capture().captured();
    CostTable costs;
    check(rig->model().warm_up({}, &costs));
    EXPECT_EQ(rig->capture().captured(), captured);
}

TEST(GraphsTiny, Rows_that_could_not_be_read_are_told_as_in_eager_work) {
    auto eager = warm_rig(kTiny, false);
    auto graphs = warm_rig(kTiny, true);
    std::vector<std::vector<WindowOutcome>> outcomes;
    for (ModelRig* rig : {eager.get(), graphs.get()}) {
        for (uint32_t s = 0; s < 2; ++s) {
            rig->open(s);
            rig->prefill(s, some_ids(20, s));
        }
        rig->fake_store().fail_rows("", 0, 1 << 20);
        PlanBuilder plan = rig->next();
        for (uint32_t s = 0; s < 2; ++s) {
            plan::Window w;
            w.slot = s;
            w.generation = rig->generation(s);
            w.position = rig->length(s);
            w.accept_max = 16;
            plan.window(w, some_ids(2, 50 + s));
        }
        outcomes.push_back(rig->run(plan).windows);
    }
    for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(outcomes[1][i].status, RowStatus::io);
        EXPECT_EQ(outcomes[1][i].status, outcomes[0][i].status);
        EXPECT_EQ(outcomes[1][i].tokens, outcomes[0][i].tokens);
    }
}

/// Ops that a provider cannot capture, as a GPU's state moves.
class UncapturedMoves final : public OpTable {
  public:
    OpTable* over(OpTable* inner) {
        entries_.assign(inner->ops().begin(), inner->ops().end());
        for (OpEntry& e : entries_) {
            const std::string_view name = e.id.name;
            e.traits.graph_safe = name != "state.save" && name != "state.load";
        }
        return this;
    }
    void* query(StrView facet) noexcept override {
        return facet == StrView(OpTable::kFacet) ? static_cast<OpTable*>(this) : nullptr;
    }
    void release() noexcept override {}
    Span<const OpEntry> ops() noexcept override { return entries_; }
    StrView provider() noexcept override { return "uncaptured moves"; }

  private:
    std::vector<OpEntry> entries_;
};

TEST(GraphsTiny, Slot_work_that_cannot_be_captured_does_not_matter) {
    UncapturedMoves table;
    auto rig = warm_rig(kTiny, true, {}, [&](OpTable* inner) { return table.over(inner); });
    if (!rig->counts_graphs()) {
        GTEST_SKIP() << kNoCounts;
    }
    EXPECT_GT(rig->capture().captured(), 0);
}

TEST(GraphsTiny, A_device_that_fails_to_capture_works_eagerly) {
    auto eager = warm_rig(kTiny, false);
    if (!warm_rig(kTiny, true)->counts_graphs()) {
        GTEST_SKIP() << kNoCounts;
    }
    const std::string right = live(*eager, kTiny, 3, 10);
    for (const bool in_call : {false, true}) {
        auto failing = warm_rig(kTiny, true, [&](ModelRig& r) {
            in_call ? r.capture().fail_call(300) : r.capture().fail_capture(5);
        });
        const int64_t launched = failing->capture().launched();
        EXPECT_EQ(live(*failing, kTiny, 3, 10) == right, true);
        EXPECT_EQ(failing->capture().launched(), launched);
    }
}

int64_t planned_graph_bytes(ModelRig& rig) {
    MemoryPlan plan;
    check(rig.plan(&plan));
    int64_t bytes = 0;
    for (const MemoryEntry& e : plan.entries) {
        bytes += e.tag == StrView("graphs") && e.place == PlanPlace::device ? e.bytes : 0;
    }
    return bytes;
}

TEST(GraphsTiny, Their_memory_is_planned_for_as_many_calls_as_the_parts_make) {
    auto rig = warm_rig(kTiny, true);
    if (!rig->counts_graphs()) {
        GTEST_SKIP() << kNoCounts;
    }
    // 4 KiB a call (decode_graphs.cc). Parts of the tiny model, copies apart, are fewer.
    const int64_t planned = planned_graph_bytes(*rig) / (4 << 10);
    EXPECT_GE(planned, rig->capture().captured_calls());
    EXPECT_LE(planned, 2 * rig->capture().captured_calls());
    EXPECT_EQ(planned_graph_bytes(*warm_rig(kTiny, false)), 0);
}

TEST(GraphsTiny, Where_their_memory_is_not_left_work_is_eager) {
    auto eager = warm_rig(kTiny, false);
    auto full = warm_rig(kTiny, true, [](ModelRig& r) {
        if (r.counts_graphs()) {
            r.capture().set_free(1 << 20);
        }
    });
    if (!full->counts_graphs()) {
        GTEST_SKIP() << kNoCounts;
    }
    EXPECT_EQ(full->capture().captured(), 0);
    EXPECT_EQ(live(*full, kTiny, 3, 5) == live(*eager, kTiny, 3, 5), true);
}

INSTANTIATE_TEST_SUITE_P(, Graphs,
                         ::testing::Values(kTiny, GraphCase{"mini", &mini_model, {2, 5}, 9, 3}),
                         [](const auto& p) { return std::string(p.param.name); });

}  // namespace
}  // namespace tenon::testing
