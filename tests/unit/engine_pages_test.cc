// SPDX-License-Identifier: MIT
// Pages that run out: replies wait and go on, none fails, and their ids are the same
// (engine.md 9: 16, 18; serving.md 10: max_tokens must not reserve the pool).
#include "tests/unit/engine_support.h"

namespace tenon::test {
namespace {

using engine::SlotState;

/// Pages for one context and two a slot: the least that the memory plan ever gives.
ScriptedOptions smallest_pool(int32_t slots = 4) {
    ScriptedOptions options;
    options.slots = slots;
    options.pool_pages = options.context / options.page_tokens + 2 * slots;
    options.draft_max = 5;
    return options;
}

Ask growing(std::mt19937_64& rng, int64_t prompt, int64_t max_new) {
    Ask ask = random_ask(rng, 4, 4);
    ask.stops.clear();
    ask.prompt.resize(static_cast<size_t>(prompt));
    for (int32_t& id : ask.prompt) {
        id = static_cast<int32_t>(rng() % 256);
    }
    ask.desc.max_new_tokens = max_new;
    ask.desc.flags |= kIgnoreEos;
    return ask;
}

double preemptions(Bench& bench) {
    return bench.host.value("preemptions_total");
}

TEST(EnginePages, Replies_that_were_parked_give_the_same_ids) {
    std::mt19937_64 rng(test_seed());
    double parked = 0;
    for (int round = 0; round < 8; ++round) {
        const ScriptedOptions options = smallest_pool(round % 2 == 0 ? 4 : 8);
        Bench bench(options, round % 3 == 0 ? 0 : 4, nullptr, {}, round % 2 == 1);
        std::vector<Ask> asks;
        for (int i = 0; i < 14; ++i) {
            asks.push_back(growing(rng, 1 + static_cast<int64_t>(rng() % 120),
                                   100 + static_cast<int64_t>(rng() % 280)));
            asks.back().desc.sampling.logprobs = i % 4 == 0 ? 3 : -1;
        }
        std::vector<engine::Request*> requests;
        for (Ask& ask : asks) {
            requests.push_back(bench.submit(ask));
            bench.round();
            ASSERT_TRUE(bench.status.ok()) << bench.status.message().view();
        }
        ASSERT_TRUE(bench.run());
        for (size_t i = 0; i < asks.size(); ++i) {
            Bench alone(options);
            const Got expected = alone.ask(asks[i]);
            const Got got = bench.result(requests[i]);
            EXPECT_EQ(got.ids, expected.ids) << "request " << i << " round " << round;
            EXPECT_EQ(got.finish, "length") << got.kind << got.message;
            ASSERT_EQ(got.logprobs.size(), expected.logprobs.size());
            for (size_t k = 0; k < got.logprobs.size(); ++k) {
                EXPECT_EQ(got.logprobs[k].token, expected.logprobs[k].token);
                EXPECT_EQ(got.logprobs[k].logprob, expected.logprobs[k].logprob);
            }
            EXPECT_EQ(got.started, 1);
            EXPECT_EQ(got.terminals, 1);
        }
        EXPECT_EQ(bench.core->planner().pages().free(), bench.core->planner().pages().total());
        parked += preemptions(bench);
    }
    EXPECT_GT(parked, 20);
}

TEST(EnginePages, The_oldest_reply_is_never_parked_and_always_goes_on) {
    std::mt19937_64 rng(test_seed());
    Bench bench(smallest_pool(), 4, nullptr, {}, true);
    Ask oldest = growing(rng, 10, 450);
    engine::Request* first = bench.submit(oldest);
    bench.round();
    std::vector<Ask> others;
    others.reserve(200);
    int64_t emitted = -1, still = 0;
    while (bench.result(first).terminals == 0) {
        if (bench.core->active().load() < 20 && others.size() < 200) {
            others.push_back(growing(rng, 1 + static_cast<int64_t>(rng() % 200), 200));
            bench.submit(others.back());
        }
        bench.round();
        ASSERT_TRUE(bench.status.ok()) << bench.status.message().view();
        const engine::Planner::SlotInfo info = bench.core->planner().slot(0);
        if (info.spec != nullptr && info.spec->request == first->request_id()) {
            still = info.emitted == emitted ? still + 1 : 0;
            emitted = info.emitted;
        }
        // Its own prompt, and at most one step until the pages of a parked reply are there.
        ASSERT_LT(still, 4);
    }
    EXPECT_EQ(bench.result(first).ids.size(), 450u);
    EXPECT_GT(preemptions(bench), 0);
}

TEST(EnginePages, A_long_max_tokens_reserves_nothing) {
    Bench bench(smallest_pool());
    std::mt19937_64 rng(test_seed());
    std::vector<Ask> asks;
    for (int i = 0; i < 4; ++i) {
        asks.push_back(growing(rng, 20, 490));
    }
    for (Ask& ask : asks) {
        bench.submit(ask);
    }
    for (int i = 0; i < 6; ++i) {
        bench.round();
    }
    int running = 0;
    for (int32_t i = 0; i < 4; ++i) {
        running += bench.core->planner().slot(i).state == SlotState::decoding ? 1 : 0;
    }
    EXPECT_EQ(running, 4) << "the pool holds one such reply, all four have begun";
}

TEST(EnginePages, A_parked_reply_can_be_cancelled_and_can_pass_its_deadline) {
    std::mt19937_64 rng(test_seed());
    Bench bench(smallest_pool());
    std::vector<Ask> asks;
    for (int i = 0; i < 4; ++i) {
        asks.push_back(growing(rng, 100, 400));
    }
    asks[2].desc.deadline_us = 3'000'000;
    std::vector<engine::Request*> requests;
    for (Ask& ask : asks) {
        requests.push_back(bench.submit(ask));
    }
    while (bench.core->planner().parked() < 2) {
        bench.round();
        ASSERT_TRUE(bench.status.ok());
    }
    requests[3]->cancel(CancelReason::client_gone);
    bench.host.advance(3'000'000);
    bench.round();
    bench.round();
    EXPECT_EQ(bench.result(requests[3]).kind, "client_gone");
    EXPECT_EQ(bench.result(requests[2]).kind, "timeout");
    EXPECT_EQ(bench.core->planner().parked(), 0);
    ASSERT_TRUE(bench.run());
    EXPECT_EQ(bench.result(requests[0]).ids.size(), 400u);
    EXPECT_EQ(bench.result(requests[1]).ids.size(), 400u);
}

TEST(EnginePages, Background_is_parked_before_an_older_foreground_and_lets_others_pass) {
    std::mt19937_64 rng(test_seed());
    Bench bench(smallest_pool(2));
    Ask back = growing(rng, 200, 200), front = growing(rng, 200, 200);
    back.desc.priority = Priority::background;
    engine::Request* older = bench.submit(back);
    for (int i = 0; i < 12; ++i) {
        bench.round();
    }
    engine::Request* newer = bench.submit(front);
    while (bench.core->planner().parked() == 0) {
        bench.round();
        ASSERT_TRUE(bench.status.ok());
        ASSERT_EQ(bench.result(newer).terminals, 0);
    }
    EXPECT_EQ(bench.result(older).terminals, 0);
    Ask small = growing(rng, 5, 5);
    engine::Request* passes = bench.submit(small);
    for (int i = 0; i < 20 && bench.result(passes).terminals == 0; ++i) {
        bench.round();
    }
    EXPECT_EQ(bench.result(passes).ids.size(), 5u);
    ASSERT_TRUE(bench.run());
    EXPECT_EQ(bench.result(older).ids.size(), 200u);
    EXPECT_EQ(bench.result(newer).ids.size(), 200u);
}

}  // namespace
}  // namespace tenon::test
