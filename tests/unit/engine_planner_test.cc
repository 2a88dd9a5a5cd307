// SPDX-License-Identifier: MIT
// The planner: replay, page accounting, admission order, fairness, pauses (engine.md 9: 5, 7, 17,
// 29).
#include "host/engine/plan_digest.h"

#include "tests/unit/engine_recording.h"

namespace tenon::test {
namespace {

using engine::EndCause;
using engine::SlotState;

TEST(Planner, Replaying_recorded_inputs_gives_byte_equal_plans) {
    std::mt19937_64 rng(test_seed());
    int64_t compared = 0;
    for (int round = 0; round < 6; ++round) {
        ScriptedOptions options;
        options.draft_max = 5;
        options.pool_pages = 90;
        Recorder recorder;
        Bench bench(options, round % 3 * 2, &recorder, {}, round % 2 == 1);
        live_at_random(bench, rng, 800);

        FakeHost host(true);
        engine::Planner planner(bench.config, {}, host);
        std::vector<uint64_t> buffer(engine::longest_plan_bytes(bench.config) / 8 + 1);
        for (const Recorder::Step& step : recorder.steps) {
            StepPlan plan;
            planner.outline(step.outline);
            const bool has_plan = planner.finish(step.finish, &plan);
            ASSERT_EQ(has_plan, !step.plan.empty());
            if (!has_plan) {
                continue;
            }
            uint64_t size = 0;
            ASSERT_TRUE(plan::encode(plan, &engine::plan_digest,
                                     {reinterpret_cast<uint8_t*>(buffer.data()), buffer.size() * 8},
                                     &size)
                            .ok());
            ASSERT_EQ(size, step.plan.size());
            ASSERT_EQ(std::memcmp(buffer.data(), step.plan.data(), size), 0);
            ++compared;
        }
    }
    EXPECT_GT(compared, 1000);
}

TEST(Planner, Pages_add_up_after_every_step_and_are_all_free_at_the_end) {
    std::mt19937_64 rng(test_seed());
    for (int round = 0; round < 6; ++round) {
        ScriptedOptions options;
        options.pool_pages = 70;
        Bench bench(options);
        std::vector<engine::Request*> requests;
        for (int i = 0; i < 600; ++i) {
            if (rng() % 3 == 0 && bench.core->active().load() < 60) {
                Ask ask = random_ask(rng);
                requests.push_back(bench.submit(ask));
            }
            if (rng() % 9 == 0 && !requests.empty()) {
                requests[rng() % requests.size()]->cancel(CancelReason::client_gone);
            }
            bench.round();
            ASSERT_TRUE(bench.status.ok()) << bench.status.message().view();
            const engine::PageAllocator& pages = bench.core->planner().pages();
            int64_t referenced = 0;
            for (int32_t p = 0; p < pages.total(); ++p) {
                ASSERT_GE(pages.references(p), 0);
                ASSERT_LE(pages.references(p), 1) << "no page is shared in this version";
                referenced += pages.references(p);
            }
            ASSERT_EQ(pages.free() + referenced, pages.total());
            // Slots that ended with the last results are still open in the mirror, until the next
            // plan.
            ASSERT_GE(bench.core->mirror().pages_in_use(), 0);
        }
        ASSERT_TRUE(bench.run());
        EXPECT_EQ(bench.core->planner().pages().free(), bench.core->planner().pages().total());
        EXPECT_EQ(bench.core->mirror().pages_in_use(), 0);
    }
}

TEST(PageAllocator, Gives_the_page_freed_last_first) {
    engine::PageAllocator pages(4);
    std::vector<int32_t> got(3);
    ASSERT_TRUE(pages.take(got));
    EXPECT_EQ(got, (std::vector<int32_t>{0, 1, 2}));
    pages.release(1);
    std::vector<int32_t> one(1);
    ASSERT_TRUE(pages.take(one));
    EXPECT_EQ(one[0], 1);
    pages.share(1);
    pages.release(1);
    EXPECT_EQ(pages.free(), 1);
    EXPECT_EQ(pages.references(1), 1);
}

TEST(PageAllocator, Takes_nothing_when_there_is_not_enough) {
    engine::PageAllocator pages(2);
    std::vector<int32_t> got(3);
    EXPECT_FALSE(pages.take(got));
    EXPECT_EQ(pages.free(), 2);
}

/// Slot in which a request is, or -1.
int32_t slot_of(const Bench& bench, const engine::Request* request) {
    for (int32_t i = 0; i < bench.config.slots; ++i) {
        const engine::Planner::SlotInfo s = bench.core->planner().slot(i);
        if (s.state != SlotState::free &&
            s.spec->request == const_cast<engine::Request*>(request)->request_id()) {
            return i;
        }
    }
    return -1;
}

Ask sized(int64_t prompt, int64_t max_new = 30) {
    Ask ask;
    ask.prompt.assign(static_cast<size_t>(prompt), 'a');
    ask.desc.max_new_tokens = max_new;
    ask.desc.flags |= kIgnoreEos;
    return ask;
}

TEST(Planner, The_shortest_prompt_goes_first_until_an_older_one_is_overdue) {
    ScriptedOptions options;
    options.slots = 1;
    Bench bench(options);
    Ask running = sized(5), longer = sized(200), shorter = sized(20);
    bench.submit(running);
    bench.round();
    engine::Request* older = bench.submit(longer);
    bench.round();
    engine::Request* younger = bench.submit(shorter);
    while (slot_of(bench, older) < 0 && slot_of(bench, younger) < 0) {
        bench.round();
    }
    EXPECT_EQ(slot_of(bench, younger), 0);

    engine::Request* third = bench.submit(shorter);
    bench.round();
    bench.host.advance(61'000'000);  // past the fairness bound of 60 s: now the oldest goes first
    while (slot_of(bench, older) < 0 && slot_of(bench, third) < 0) {
        bench.round();
    }
    EXPECT_EQ(slot_of(bench, older), 0);
}

TEST(Planner, Background_waits_for_foreground) {
    ScriptedOptions options;
    options.slots = 1;
    Bench bench(options);
    Ask running = sized(5), background = sized(5), foreground = sized(200);
    background.desc.priority = Priority::background;
    bench.submit(running);
    bench.round();
    engine::Request* back = bench.submit(background);
    engine::Request* front = bench.submit(foreground);
    while (slot_of(bench, back) < 0 && slot_of(bench, front) < 0) {
        bench.round();
    }
    EXPECT_EQ(slot_of(bench, front), 0);
}

TEST(Planner, A_reply_that_waits_for_pages_is_not_overtaken) {
    ScriptedOptions options;
    options.pool_pages = 64;  // one context of 512 tokens
    Bench bench(options);
    Ask big = sized(300, 60), bigger = sized(200, 30), small = sized(20, 10);
    small.desc.priority = Priority::background;
    bench.submit(big);
    bench.round();
    bench.round();
    engine::Request* waits = bench.submit(bigger);
    engine::Request* later = bench.submit(small);
    for (int i = 0; i < 20; ++i) {
        bench.round();
        EXPECT_LT(slot_of(bench, waits), 0);
        EXPECT_LT(slot_of(bench, later), 0) << "would fit, but came behind a longer wait";
    }
    EXPECT_TRUE(bench.run());
    EXPECT_EQ(bench.result(waits).ids.size(), 30u);
}

TEST(Planner, Decoding_goes_on_beside_a_long_prompt) {
    Bench bench;
    Ask stream = sized(5, 200), prompt = sized(400, 5);
    engine::Request* first = bench.submit(stream);
    for (int i = 0; i < 5; ++i) {
        bench.round();
    }
    bench.submit(prompt);
    int64_t before = bench.core->planner().slot(0).emitted;
    for (int i = 0; i < 10; ++i) {
        bench.round();
        const int64_t now = bench.core->planner().slot(0).emitted;
        EXPECT_EQ(now, before + 1) << "a running stream gets a row in every step";
        before = now;
    }
    ASSERT_TRUE(bench.run());
    EXPECT_EQ(bench.result(first).ids.size(), 200u);
}

TEST(Planner, Hard_memory_level_ends_the_newest_and_soft_admits_nothing) {
    Bench bench;
    Ask a = sized(5, 400), b = sized(5, 400), c = sized(5, 400);
    engine::Request* older = bench.submit(a);
    engine::Request* newer = bench.submit(b);
    bench.round();
    bench.round();
    bench.core->set_memory_level(1);
    engine::Request* waiting = bench.submit(c);
    for (int i = 0; i < 5; ++i) {
        bench.round();
    }
    EXPECT_LT(slot_of(bench, waiting), 0);
    bench.core->set_memory_level(2);
    bench.round();
    bench.core->set_memory_level(0);
    ASSERT_TRUE(bench.run());
    EXPECT_EQ(bench.result(newer).kind, "memory");
    EXPECT_EQ(bench.result(older).finish, "length");
    EXPECT_EQ(bench.result(waiting).finish, "length");
}

TEST(Outliner, A_fault_of_each_kind_is_named) {
    std::vector<SlotView> slots(3);
    slots[0] = {0, 2, 1, 10, 5, 0, 0, 0};
    slots[1] = {1, 1, 2, 0, 50, 0, 0, 0};
    slots[2] = {2, engine::kPausedState, 3, 10, 5, 0, 0, 1};
    SchedulerView view;
    view.slots = slots;
    view.row_cap = 16;
    view.chunk_rows = 32;
    StepOutline good;
    good.decode_count = 1;
    good.row_cap = 16;
    good.slice_slot = 1;
    good.slice_rows = 32;
    EXPECT_EQ(engine::outline_fault(view, good), nullptr);
    const auto fault = [&](auto&& change) {
        StepOutline o = good;
        change(o);
        const char* text = engine::outline_fault(view, o);
        return std::string(text == nullptr ? "" : text);
    };
    EXPECT_NE(fault([](StepOutline& o) { o.row_cap = 17; }), "");
    EXPECT_NE(fault([](StepOutline& o) { o.decode_count = 17; }), "");
    EXPECT_NE(fault([](StepOutline& o) { o.decode_count = -1; }), "");
    EXPECT_NE(fault([](StepOutline& o) { o.decode[0] = 1; }), "") << "still prefilling";
    EXPECT_NE(fault([](StepOutline& o) { o.decode[0] = 2; }), "") << "paused";
    EXPECT_NE(fault([](StepOutline& o) { o.decode[0] = 9; }), "");
    EXPECT_NE(fault([](StepOutline& o) { o.decode_count = 2; }), "") << "twice";
    EXPECT_NE(fault([](StepOutline& o) { o.slice_slot = 0; }), "");
    EXPECT_NE(fault([](StepOutline& o) { o.slice_slot = -2; }), "");
    EXPECT_NE(fault([](StepOutline& o) { o.slice_rows = 33; }), "");
    EXPECT_NE(fault([](StepOutline& o) { o.slice_rows = 0; }), "");
    EXPECT_NE(fault([](StepOutline& o) { o.slice_stages = 7; }), "");
    EXPECT_NE(fault([](StepOutline& o) { o = StepOutline{}; }), "")
        << "idle although there is work";
}

}  // namespace
}  // namespace tenon::test
