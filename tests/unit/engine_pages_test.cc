// SPDX-License-Identifier: MIT
// Pages that run out: replies wait and go on, none fails, and their ids are the same
// (engine.md 9: 16, 18; serving.md 10: max_tokens must not reserve the pool).
#include <deque>

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

/// Slots, parked and waiting replies, pages: for the message of a test that sees no progress.
std::string state_of(Bench& bench) {
    const engine::Planner& planner = bench.core->planner();
    std::string text = "pages " + std::to_string(planner.pages().free()) + " free, " +
                       std::to_string(planner.pages().held_only()) + " of cuts alone, " +
                       std::to_string(planner.parked()) + " parked, " +
                       std::to_string(planner.waiting()) + " wait";
    for (int32_t i = 0; i < bench.config.slots; ++i) {
        const engine::Planner::SlotInfo s = planner.slot(i);
        text += "; slot " + std::to_string(i) + " state " +
                std::to_string(static_cast<uint32_t>(s.state)) + " length " +
                std::to_string(s.length) + " known " + std::to_string(s.known) + " emitted " +
                std::to_string(s.emitted) + (s.blocked ? " blocked" : "");
    }
    return text;
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
    oldest.desc.priority = Priority::foreground;  // or it yields
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

TEST(EnginePages, Pitfall_09_A_long_max_tokens_reserves_nothing) {
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
    front.desc.priority = Priority::foreground;
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
    small.desc.priority = Priority::foreground;
    engine::Request* passes = bench.submit(small);
    for (int i = 0; i < 20 && bench.result(passes).terminals == 0; ++i) {
        bench.round();
    }
    EXPECT_EQ(bench.result(passes).ids.size(), 5u);
    ASSERT_TRUE(bench.run());
    EXPECT_EQ(bench.result(older).ids.size(), 200u);
    EXPECT_EQ(bench.result(newer).ids.size(), 200u);
}

/// Rounds until `request` ends while new foreground requests keep coming; -1: more than `most`.
int64_t rounds_under_load(Bench& bench, std::mt19937_64& rng, engine::Request* request,
                          int64_t most) {
    std::deque<Ask> others;
    for (int64_t round = 0; round < most; ++round) {
        while (bench.core->active().load() < 12) {
            others.push_back(growing(rng, 1 + static_cast<int64_t>(rng() % 200),
                                     20 + static_cast<int64_t>(rng() % 250)));
            others.back().desc.priority = Priority::foreground;
            bench.submit(others.back());
        }
        bench.round();
        if (!bench.status.ok()) {
            ADD_FAILURE() << bench.status.message().view();
            return -1;
        }
        if (bench.result(request).terminals > 0) {
            return round;
        }
    }
    return -1;
}

// A background reply is parked first and resumed last, but past its fairness bound it is the oldest
// of all: without that each foreground reply that grows parks it again, for ever.
TEST(EnginePages, A_background_reply_ends_although_foreground_never_stops) {
    std::mt19937_64 rng(test_seed());
    for (int round = 0; round < 6; ++round) {
        ScriptedOptions options = smallest_pool();
        options.pool_pages = options.context / options.page_tokens;
        options.snapshot_cells = round % 2 * 40;
        Bench bench(options, 0, nullptr, {}, false, [](engine::PlannerConfig& c) {
            c.fairness_us = 1'000'000;
            c.fairness_background_us = 2'000'000;  // 2000 rounds of this bench
        });
        Ask back = growing(rng, 100, 300);
        back.desc.priority = Priority::background;
        engine::Request* request = bench.submit(back);
        const int64_t rounds = rounds_under_load(bench, rng, request, 8000);
        EXPECT_GE(rounds, 0) << "round " << round;
        EXPECT_EQ(bench.result(request).ids.size(), 300U);
    }
}

// engine.md 9, 18: with the smallest pool that holds one context every reply ends, and none for
// lack of pages, also where a kept cut has a page of its own beside the context.
TEST(EnginePages, With_a_pool_of_one_context_every_reply_ends_whatever_comes) {
    std::mt19937_64 rng(test_seed());
    double parked = 0;
    int64_t cached = 0;
    for (int round = 0; round < 12; ++round) {
        ScriptedOptions options = smallest_pool(round % 2 == 0 ? 4 : 2);
        options.pool_pages = options.context / options.page_tokens;
        options.snapshot_cells = round % 3 * 20;
        options.partial_distance = round % 4 == 3 ? 90 : 0;
        Bench bench(options, round % 2 * 4, nullptr, {}, round % 3 == 0,
                    [](engine::PlannerConfig& c) { c.fairness_background_us = 3'000'000; });
        std::deque<Ask> asks;
        std::vector<engine::Request*> requests;
        std::vector<int32_t> shared = growing(rng, 150, 1).prompt;
        int64_t rounds = 0, last_end = 0, ended = 0;
        while (asks.size() < 35 || bench.core->active().load() > 0) {
            if (asks.size() < 35 && bench.core->active().load() < 16 && rng() % 3 == 0) {
                // Some fill the context to its last position.
                const int64_t prompt = 1 + static_cast<int64_t>(rng() % 480);
                const int64_t room = options.context - prompt;
                asks.push_back(growing(
                    rng, prompt,
                    rng() % 3 == 0 ? room : 1 + static_cast<int64_t>(rng() % uint64_t(room))));
                Ask& ask = asks.back();
                if (rng() % 2 == 0) {
                    std::copy_n(shared.begin(), std::min(shared.size(), ask.prompt.size()),
                                ask.prompt.begin());
                }
                ask.desc.keeps_reasoning = rng() % 2 == 0;
                requests.push_back(bench.submit(ask));
                if (rng() % 6 == 0) {
                    requests.back()->cancel(CancelReason::client_gone);
                }
            }
            bench.round();
            ASSERT_TRUE(bench.status.ok()) << bench.status.message().view();
            ++rounds;
            int64_t now = 0;
            for (engine::Request* request : requests) {
                now += bench.result(request).terminals;
            }
            last_end = now > ended ? rounds : last_end;
            ended = now;
            ASSERT_LT(rounds - last_end, 3000)
                << "round " << round << ": nothing ends; " << state_of(bench);
        }
        for (size_t i = 0; i < asks.size(); ++i) {
            const Got got = bench.result(requests[i]);
            EXPECT_EQ(got.terminals, 1);
            if (!got.kind.empty()) {
                EXPECT_EQ(got.kind, "client_gone") << got.message;
                continue;
            }
            cached += got.timings.cached_tokens;
            if (i % 4 == 0) {
                Bench alone(smallest_pool());
                EXPECT_EQ(got.ids, alone.ask(asks[i]).ids) << "request " << i;
            }
        }
        parked += preemptions(bench);
    }
    EXPECT_GT(parked, 50);
    EXPECT_GT(cached, 0);
}

// The cut keeps its last page, which the reply cannot share: with it one page too many is wanted,
// and nobody is left to give one back.
TEST(EnginePages, A_retry_that_fills_the_context_goes_on_without_its_cut) {
    std::mt19937_64 rng(test_seed());
    ScriptedOptions options = smallest_pool();
    options.pool_pages = options.context / options.page_tokens;
    options.snapshot_cells = 20;
    Bench bench(options);
    Ask first = growing(rng, 480, 4);
    EXPECT_EQ(bench.ask(first).ids.size(), 4U);
    ASSERT_GT(bench.core->planner().pages().held_only(), 0);
    Ask again = first;
    again.desc.max_new_tokens = options.context - 480;
    engine::Request* request = bench.submit(again);
    for (int i = 0; i < 200 && bench.result(request).terminals == 0; ++i) {
        bench.round();
        ASSERT_TRUE(bench.status.ok()) << bench.status.message().view();
    }
    EXPECT_EQ(bench.result(request).ids.size(), 32U) << state_of(bench);
}

// engine.md 9, 27: what a silent client's reply holds does not stop others for want of pages.
TEST(EnginePages, Pages_of_a_reply_whose_client_reads_nothing_go_to_others) {
    std::mt19937_64 rng(test_seed());
    ScriptedOptions options = smallest_pool(2);
    options.pool_pages = options.context / options.page_tokens;
    Bench bench(options);
    Ask silent = growing(rng, 250, 250), other = growing(rng, 200, 300);
    engine::Request* first = bench.submit(silent);
    bench.slow.insert(first);
    while (!first->ring().blocked()) {
        bench.round();
        ASSERT_TRUE(bench.status.ok());
    }
    engine::Request* second = bench.submit(other);
    for (int i = 0; i < 1000 && bench.result(second).terminals == 0; ++i) {
        bench.round();
        ASSERT_TRUE(bench.status.ok());
    }
    EXPECT_EQ(bench.result(second).ids.size(), 300U);
    bench.slow.clear();
    ASSERT_TRUE(bench.run());
    Bench alone(options);
    EXPECT_EQ(bench.result(first).ids, alone.ask(silent).ids);
}

}  // namespace
}  // namespace tenon::test
