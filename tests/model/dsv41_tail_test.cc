// SPDX-License-Identifier: MIT
// The tail of a prompt through the upper layers has the bits of every row through every layer
// (engine.md 9, 12; dsv41.md 3.11).
#include <gtest/gtest.h>

#include "model/models.h"

namespace tenon::testing {
namespace {

struct TailCase {
    const char* name;
    RigOptions (*options)();
    std::vector<int> sources;
    int64_t window, distance;
};

class Tail : public ::testing::TestWithParam<TailCase> {
  protected:
    void SetUp() override {
        RigOptions o = GetParam().options();
        o.slots = 2;
        o.context = 1024;
        o.chunk_rows = 512;
        o.snapshot_cells = 8;
        rig_ = make_rig(o);
        rig_->open(0);
        rig_->open(1);
        // Another prompt was in both slots before.
        rig_->prefill(0, some_ids(500, 77));
        rig_->prefill(1, some_ids(490, 78));
        ids_ = some_ids(1000, 31);
    }
    void reopen(uint32_t slot) {
        rig_->close(slot);
        rig_->open(slot);
    }
    std::string state(uint32_t slot) { return state_of(*rig_, slot, GetParam().sources, 9, 3); }
    /// One chunk up to `end` with these full targets, cuts as asked.
    void chunk(uint32_t slot, int64_t end, std::vector<plan::Target> targets) {
        PlanBuilder plan = rig_->next();
        const int64_t begin = rig_->length(slot);
        plan.bare_chunk(slot, rig_->generation(slot), begin,
                        {ids_.begin() + begin, ids_.begin() + end});
        for (const plan::Target& t : targets) {
            plan.target(t);
        }
        rig_->run(plan);
    }
    /// Slot 1 goes on from a cut that it made itself, with its pages.
    void resume(uint32_t snapshot, int64_t at, plan::CutKind kind) {
        const std::vector<int32_t> pages = rig_->pages(1);
        const uint32_t generation = rig_->new_generation();
        PlanBuilder plan = rig_->next();
        plan.close(1, rig_->generation(1))
            .open(1, generation)
            .map(1, generation, 0, pages)
            .restore(snapshot, 1, generation, at, kind);
        rig_->adopt(1, generation, at, pages);
        rig_->run(plan);
    }
    void drop(uint32_t snapshot, int64_t at, plan::CutKind kind) {
        PlanBuilder plan = rig_->next();
        plan.drop(snapshot, at, kind);
        rig_->run(plan);
    }
    static plan::Target full(int64_t at) {
        plan::Target t;
        t.at = at;
        return t;
    }
    static plan::Target cut(int64_t at, plan::CutKind kind, uint32_t snapshot) {
        plan::Target t;
        t.at = at;
        t.kind = kind;
        t.snapshot = snapshot;
        return t;
    }
    /// Every row through every layer: tracing asks for it.
    std::string yardstick(int64_t end) {
        reopen(0);
        rig_->want_trace(true);
        for (int64_t at = 0; at < end;) {
            const int64_t next = std::min(at + 300, end);
            chunk(0, next, {full(end)});
            at = next;
        }
        rig_->want_trace(false);
        return state(0);
    }
    /// Chunks of these ends, the last one is the target.
    std::string tail(const std::vector<int64_t>& ends) {
        reopen(1);
        for (const int64_t end : ends) {
            const bool in_reach = ends.back() - GetParam().distance < end;
            chunk(1, end,
                  in_reach ? std::vector<plan::Target>{full(ends.back())}
                           : std::vector<plan::Target>{});
        }
        return state(1);
    }

    std::unique_ptr<ModelRig> rig_;
    std::vector<int32_t> ids_;
};

TEST_P(Tail, The_model_says_how_far_a_partial_cut_is_from_a_full_one) {
    EXPECT_EQ(rig_->model().info().partial_distance, GetParam().distance);
}

TEST_P(Tail, At_any_length_the_state_has_the_bits_of_a_full_pass) {
    const int64_t w = GetParam().window;
    const int64_t d = GetParam().distance;
    for (const int64_t t : {int64_t{1}, int64_t{2}, w - 2, w - 1, w, w + 1, d - 1, d, d + 1,
                            d + w - 1, d + w, d + w + 1, int64_t{500}}) {
        EXPECT_EQ(tail({t}) == yardstick(t), true) << t;
    }
}

TEST_P(Tail, However_the_prompt_is_cut_into_chunks) {
    const int64_t d = GetParam().distance;
    const std::string whole = yardstick(700);
    for (const std::vector<int64_t>& ends : {std::vector<int64_t>{300, 700},
                                             {256, 512, 700},
                                             {350, 700 - d - 1, 700},
                                             {350, 700 - d + 1, 700},
                                             {400, 690, 695, 699, 700},
                                             {500, 637, 638, 700},
                                             {203, 204, 207, 700},
                                             {300, 700 - d + 7, 700 - d + 29, 700 - 61, 700}}) {
        EXPECT_EQ(tail(ends) == whole, true) << "first chunk " << ends[0];
    }
}

TEST_P(Tail, Lengths_around_a_chunk_border_after_another_prompt) {
    for (const int64_t rest : {0, 1, 13, 31, 63, 64}) {
        const int64_t t = 512 + rest;
        EXPECT_EQ(tail(rest == 0 ? std::vector<int64_t>{512} : std::vector<int64_t>{512, t}) ==
                      yardstick(t),
                  true)
            << t;
    }
}

TEST_P(Tail, Two_targets_in_one_pass_are_both_whole) {
    const int64_t d = GetParam().distance;
    const std::string whole = yardstick(700);
    for (const int64_t first : {700 - d - 30, 700 - d, 640L, 699L}) {
        reopen(1);
        chunk(
            1, 300,
            first - d < 300 ? std::vector<plan::Target>{full(first)} : std::vector<plan::Target>{});
        std::vector<plan::Target> targets = {cut(first, plan::CutKind::full, 1)};
        if (700 - d < first) {
            targets.push_back(full(700));
        }
        chunk(1, first, targets);
        chunk(1, 700, {full(700)});
        EXPECT_EQ(state(1) == whole, true) << first;
        resume(1, first, plan::CutKind::full);
        EXPECT_EQ(state(1) == yardstick(first), true) << first;
        drop(1, first, plan::CutKind::full);
    }
}

TEST_P(Tail, A_pass_from_a_partial_cut_reaches_every_target_from_its_distance_on) {
    const int64_t d = GetParam().distance;
    reopen(1);
    chunk(1, 333, {cut(333, plan::CutKind::partial, 1)});
    for (const int64_t t : {333 + d, 333 + d + 1, 333 + d + 100}) {
        const std::string expected = yardstick(t);
        // The oldest window row of the lowest upper layer may lie before the cut at distance d; no
        // later row reads it.
        resume(1, 333, plan::CutKind::partial);
        for (int64_t at = 333; at < t;) {
            const int64_t next = std::min(at + 111, t);
            chunk(1, next,
                  t - d < next ? std::vector<plan::Target>{full(t)} : std::vector<plan::Target>{});
            at = next;
        }
        const std::vector<int32_t> resumed = rig_->greedy(1, 9, 30);
        if (t > 333 + d) {
            resume(1, 333, plan::CutKind::partial);
            chunk(1, t, {full(t)});
            EXPECT_EQ(state(1) == expected, true) << t;
        }
        reopen(0);
        chunk(0, std::min<int64_t>(t, 500), {full(t)});
        if (t > 500) {
            chunk(0, t, {full(t)});
        }
        EXPECT_EQ(rig_->greedy(0, 9, 30), resumed) << t;
    }
}

TEST_P(Tail, A_pass_from_a_tail_cut_reaches_its_target) {
    const int64_t d = GetParam().distance;
    reopen(1);
    chunk(1, 300, {});
    chunk(1, 600 - d / 2, {full(600), cut(600 - d / 2, plan::CutKind::tail, 3)});
    for (const int64_t t : {600, 640}) {
        resume(3, 600 - d / 2, plan::CutKind::tail);
        chunk(1, t, {full(t)});
        EXPECT_EQ(state(1) == yardstick(t), true) << t;
    }
}

TEST_P(Tail, Work_that_a_cut_cannot_carry_is_refused) {
    reopen(1);
    chunk(1, 300, {cut(300, plan::CutKind::partial, 1)});
    const auto refused = [&](PlanBuilder plan, const char* text) {
        const Status status = rig_->try_submit(plan);
        EXPECT_EQ(status.code(), Code::internal);
        EXPECT_NE(status.message().str().find(text), std::string::npos) << status.message().view();
    };
    PlanBuilder window = rig_->next();
    plan::Window w;
    w.slot = 1;
    w.generation = rig_->generation(1);
    w.position = 300;
    refused(window.window(w, {5}), "is whole from");
    PlanBuilder target = rig_->next();
    target.bare_chunk(1, rig_->generation(1), 300, {1, 2, 3, 4}).target(full(304));
    rig_->reserve(target, 1, 304);
    refused(std::move(target), "allows none before");
    refused(rig_->next().save(3, 1, rig_->generation(1), 300), "is whole from");
}

TEST_P(Tail, Bounded_replay_runs_fewer_rows_and_says_what_it_reaches) {
    RigOptions o = GetParam().options();
    o.context = 1024;
    o.replay_exact = false;
    auto rig = make_rig(o);
    EXPECT_EQ(rig->model().info().partial_distance, GetParam().window);
    rig->open(0);
    PlanBuilder plan = rig->next();
    plan.bare_chunk(0, rig->generation(0), 0, {ids_.begin(), ids_.begin() + 400})
        .bounded()
        .target(full(400));
    rig->run(plan);
    const std::vector<int32_t> first = rig->greedy(0, 9, 20);
    rig->close(0);
    rig->open(0);
    // The same in chunks: what lies before the replay is not looked at.
    PlanBuilder one = rig->next();
    one.bare_chunk(0, rig->generation(0), 0, {ids_.begin(), ids_.begin() + 320}).bounded();
    rig->run(one);
    PlanBuilder two = rig->next();
    two.bare_chunk(0, rig->generation(0), 320, {ids_.begin() + 320, ids_.begin() + 400})
        .bounded()
        .target(full(400));
    rig->run(two);
    EXPECT_EQ(rig->greedy(0, 9, 20), first);
}

INSTANTIATE_TEST_SUITE_P(Models, Tail,
                         ::testing::Values(TailCase{"tiny", &tiny_model, {2, 4, 5}, 32, 93},
                                           TailCase{"mini", &mini_model, {2, 5}, 64, 189}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace tenon::testing
