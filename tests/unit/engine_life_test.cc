// SPDX-License-Identifier: MIT
// Ends of requests: cancels, slow sinks, deadlines, drain, failures; one terminal event each
// (engine.md 9: 26 to 28).
#include <thread>

#include "tests/unit/engine_support.h"

namespace tenon::test {
namespace {

using engine::SlotState;

Ask long_ask(int64_t max_new = 400, int64_t prompt = 5) {
    Ask ask;
    ask.prompt.assign(static_cast<size_t>(prompt), 'q');
    ask.desc.max_new_tokens = max_new;
    ask.desc.flags = kIgnoreEos;
    return ask;
}

TEST(EngineLife, A_cancelled_waiting_request_never_gets_a_slot) {
    ScriptedOptions options;
    options.slots = 1;
    Bench bench(options);
    Ask a = long_ask(), b = long_ask();
    bench.submit(a);
    bench.round();
    engine::Request* waiting = bench.submit(b);
    bench.round();
    waiting->cancel(CancelReason::client_gone);
    bench.round();

    const Got got = bench.result(waiting);
    EXPECT_EQ(got.kind, "client_gone");
    EXPECT_EQ(got.code, Code::cancelled);
    EXPECT_EQ(got.started, 0);
    EXPECT_EQ(got.terminals, 1);
}

TEST(EngineLife, A_cancel_takes_effect_with_the_step_in_flight_in_every_state) {
    struct Case {
        const char* name;
        int64_t prompt;
        int rounds;
    };
    // Prompt of 200 rows in chunks of 32: round 2 is in the pass; of 5 rows: round 4 decodes.
    for (const Case& c :
         {Case{"just submitted", 5, 0}, Case{"prefilling", 200, 2}, Case{"decoding", 5, 4}}) {
        Bench bench;
        Ask ask = long_ask(300, c.prompt);
        engine::Request* request = bench.submit(ask);
        for (int i = 0; i < c.rounds; ++i) {
            bench.round();
        }
        std::vector<StepPlan> after;
        int rows_after = 0;
        bench.model.on_submit([&](const StepPlan& p) {
            rows_after += static_cast<int>(p.windows.size + p.chunks.size);
        });
        request->cancel(CancelReason::client_gone);
        bench.round();

        EXPECT_EQ(bench.result(request).terminals, 1) << c.name;
        EXPECT_EQ(rows_after, 0) << c.name << ": no row is computed for it any more";
        EXPECT_TRUE(bench.run()) << c.name;
        EXPECT_EQ(bench.core->planner().pages().free(), bench.core->planner().pages().total())
            << c.name;
    }
}

TEST(EngineLife, Tokens_in_flight_at_a_cancel_are_not_delivered) {
    Bench bench;
    Ask ask = long_ask();
    ask.desc.flags |= kReturnIds;
    engine::Request* request = bench.submit(ask);
    for (int i = 0; i < 6; ++i) {
        bench.round();
    }
    const size_t before = bench.result(request).ids.size();
    request->cancel(CancelReason::client_gone);
    ASSERT_TRUE(bench.run());
    const Got got = bench.result(request);
    EXPECT_EQ(got.ids.size(), before);
    EXPECT_EQ(got.timings.completion_tokens, static_cast<int64_t>(before));
}

TEST(EngineLife, A_released_sink_cancels_its_request) {
    LoopBench bench;
    EXPECT_TRUE(bench.loop->start().ok());
    Ask ask = long_ask();
    { Ref<ReplySink> sink = bench.submit(ask); }
    EXPECT_TRUE(bench.loop->drain(bench.host.now_us() + 20'000'000).ok());
}

TEST(EngineLife, A_sink_that_is_not_drained_pauses_only_its_request_and_resumes) {
    ScriptedOptions options;
    options.context = 4096;
    options.page_tokens = 64;
    options.eos_permille = 0;
    Bench bench(options);
    Ask slow_ask = long_ask(2000), other_ask = long_ask(1500);
    engine::Request* slow = bench.submit(slow_ask);
    engine::Request* other = bench.submit(other_ask);
    bench.slow.insert(slow);
    ASSERT_FALSE(bench.run(10'000)) << "the slow one is left over";

    EXPECT_EQ(bench.result(other).finish, "length");
    const engine::Planner::SlotInfo paused = bench.core->planner().slot(0);
    EXPECT_EQ(paused.state, SlotState::decoding);
    EXPECT_TRUE(paused.blocked);
    EXPECT_LT(paused.emitted, 256);
    EXPECT_EQ(bench.core->stats().slots[0].state, engine::kPausedState);

    bench.slow.clear();
    bench.result(slow);
    ASSERT_TRUE(bench.run());
    const Got got = bench.result(slow);
    EXPECT_EQ(got.finish, "length");
    EXPECT_EQ(got.timings.completion_tokens, 2000) << "nothing was lost";
    EXPECT_EQ(got.content.size(), 2000u);
}

TEST(EngineLife, A_slow_client_is_ended_after_its_limit) {
    ScriptedOptions options;
    options.context = 4096;
    options.page_tokens = 64;
    Bench bench(options);
    Ask ask = long_ask(2000);
    engine::Request* request = bench.submit(ask);
    bench.slow.insert(request);
    ASSERT_FALSE(bench.run(10'000));
    bench.host.advance(bench.config.slow_client_limit_us - 2'000'000);
    bench.round();
    EXPECT_TRUE(bench.core->planner().slot(0).blocked) << "not yet";
    bench.host.advance(3'000'000);
    bench.round();
    bench.round();

    bench.slow.clear();
    const Got got = bench.result(request);
    EXPECT_EQ(got.kind, "slow_client");
    EXPECT_EQ(got.terminals, 1);
    EXPECT_GT(got.content.size(), 80u) << "what was generated before still arrives";
}

// serving.md 10: health that is answered by the engine's thread is not answered when it matters.
TEST(EngineLife, Pitfall_25_Stats_and_refusals_come_while_a_step_takes_long) {
    ScriptedOptions options;
    options.step_us = 300'000;
    LoopBench bench(options);
    ASSERT_TRUE(bench.loop->start().ok());
    Ask ask = long_ask(50);
    const Ref<ReplySink> sink = bench.submit(ask);
    int64_t calls = 0, steps = 0;
    while (steps < 3) {
        EngineStats stats;
        bench.loop->stats(&stats);
        Ask bad = ask;
        bad.desc.sampling.top_p = 7;
        Ref<ReplySink> none;
        EXPECT_FALSE(bench.loop->submit(bad.get(), none.out()).ok());
        ++calls;
        steps = stats.steps_total;
    }
    EXPECT_GT(calls, 100) << "calls that wait for the engine's thread come once a step";
    sink->cancel(CancelReason::client_gone);
}

// The last memory level ends every stream with its reason, and admits nothing more (engine.md 3.3).
TEST(EngineLife, Below_the_last_memory_level_every_reply_ends_with_memory) {
    ScriptedOptions options;
    options.slots = 2;
    options.step_us = 2'000;
    LoopBench bench(options);
    ASSERT_TRUE(bench.loop->start().ok());
    std::vector<Ask> asks(4, long_ask(400));
    std::vector<Ref<ReplySink>> sinks;
    for (Ask& ask : asks) {
        sinks.push_back(bench.submit(ask));
    }
    bench.loop->set_memory_level(3);
    for (const Ref<ReplySink>& sink : sinks) {
        const Got got = bench.finish(*sink)[0];
        EXPECT_EQ(got.kind, "memory") << got.finish;
        EXPECT_EQ(got.terminals, 1);
    }
    Ref<ReplySink> none;
    EXPECT_EQ(bench.loop->submit(asks[0].get(), none.out()).code(), Code::unavailable);
}

TEST(EngineLife, A_deadline_ends_waiting_and_running_requests) {
    ScriptedOptions options;
    options.slots = 1;
    Bench bench(options);
    Ask ask = long_ask();
    ask.desc.deadline_us = 50'000;
    engine::Request* running = bench.submit(ask);
    bench.round();
    engine::Request* waiting = bench.submit(ask);
    EXPECT_EQ(bench.core->next_due_us(), running->replies()[0].deadline_us);
    bench.host.advance(60'000);
    bench.round();
    for (engine::Request* r : {running, waiting}) {
        const Got got = bench.result(r);
        EXPECT_EQ(got.kind, "timeout");
        EXPECT_EQ(got.code, Code::deadline);
    }
}

TEST(EngineLife, A_failed_row_ends_exactly_its_request) {
    for (const RowStatus failure : {RowStatus::io, RowStatus::nan}) {
        for (const int64_t position : {3, 40, 70}) {  // first chunk, later chunk, decode
            Bench bench;
            Ask a = long_ask(50, 60), b = long_ask(50, 60);
            bench.model.fail_rows(1, position, failure);
            engine::Request* bad = bench.submit(a);
            engine::Request* good = bench.submit(b);
            ASSERT_TRUE(bench.run());
            EXPECT_EQ(bench.result(bad).kind, failure == RowStatus::io ? "storage" : "numeric");
            EXPECT_EQ(bench.result(bad).terminals, 1);
            EXPECT_EQ(bench.result(good).finish, "length");
            EXPECT_EQ(bench.host.value("slot_failures_total"), 1);
        }
    }
}

TEST(EngineLife, Eight_failed_rows_within_a_minute_fail_the_engine) {
    Bench bench;
    for (uint64_t i = 1; i <= 8; ++i) {
        bench.model.fail_rows(i, 0, RowStatus::io);
        Ask ask = long_ask(5);
        bench.submit(ask);
        while (bench.status.ok() && bench.round() == engine::Round::worked) {
        }
        EXPECT_EQ(bench.status.ok(), i < 8) << i;
    }
    EXPECT_EQ(bench.status.code(), Code::io);

    Bench spread;
    for (uint64_t i = 1; i <= 12; ++i) {
        spread.model.fail_rows(i, 0, RowStatus::io);
        Ask ask = long_ask(5);
        spread.submit(ask);
        spread.host.advance(10'000'000);  // eight of them take longer than a minute
        EXPECT_TRUE(spread.run());
    }
}

TEST(EngineLife, A_result_that_breaks_the_contract_is_an_internal_error) {
    Bench bench;
    bench.model.break_results(true);
    Ask ask = long_ask();
    bench.submit(ask);
    while (bench.status.ok() && bench.round() == engine::Round::worked) {
    }
    EXPECT_EQ(bench.status.code(), Code::internal);
    EXPECT_NE(bench.status.message().view().find("breaks its contract"), std::string_view::npos);
}

TEST(EngineLife, Each_model_error_ends_all_streams_with_its_event_and_exit_code) {
    struct Case {
        fakes::FaultAt where;
        Code code;
        const char* event;
        int exit_code;
    };
    const Case cases[] = {
        {fakes::FaultAt::submit, Code::internal, "internal", 70},
        {fakes::FaultAt::tokens, Code::device, "device", 5},
        {fakes::FaultAt::tokens, Code::deadline, "stalled", 70},
        {fakes::FaultAt::drafts, Code::peer, "internal", 70},
        {fakes::FaultAt::done, Code::io, "storage", 5},
    };
    for (const Case& c : cases) {
        LoopBench bench;
        bench.model.inject(c.where, c.code, 9);
        std::atomic<bool> all_in{false};
        bench.model.on_submit([&all_in](const StepPlan& p) {
            while (p.header.step == 8 && !all_in.load()) {
                std::this_thread::yield();
            }
        });
        ASSERT_TRUE(bench.loop->start().ok());
        std::vector<Ref<ReplySink>> sinks;
        for (int i = 0; i < 7; ++i) {  // four run, three wait
            Ask ask = long_ask();
            sinks.push_back(bench.submit(ask));
        }
        all_in.store(true);
        for (const Ref<ReplySink>& sink : sinks) {
            const Got got = bench.finish(*sink)[0];
            EXPECT_EQ(got.kind, c.event);
            EXPECT_EQ(got.terminals, 1);
        }
        EXPECT_EQ(bench.loop->state(), EngineState::failed);
        Ask ask = long_ask();
        Ref<ReplySink> sink;
        EXPECT_EQ(bench.loop->submit(ask.get(), sink.out()).code(), Code::unavailable);
        bench.loop->stop();
        EXPECT_EQ(bench.failures.load(), 1);
        EXPECT_EQ(bench.failure.exit_code, c.exit_code);
        EXPECT_EQ(bench.failure.event, c.event);
        EXPECT_NE(bench.failure.message.find("injected fault"), std::string::npos);
        const bool internal = std::string(c.event) == "internal";
        EXPECT_EQ(bench.host.count_lines("engine: plan step="), internal ? 9 : 0) << c.event;
        EXPECT_EQ(bench.host.count_lines("engine: plan step=9 "), internal ? 1 : 0) << c.event;
    }
}

TEST(EngineLife, The_last_plans_are_kept_in_short) {
    engine::PlanLog log;
    std::vector<plan::Window> windows(18);
    for (size_t i = 0; i < windows.size(); ++i) {
        windows[i].slot = static_cast<uint32_t>(i);
        windows[i].generation = 7;
        windows[i].position = 100;
        windows[i].rows = 3;
    }
    plan::Chunk chunk;
    chunk.slot = 2;
    chunk.generation = 1;
    chunk.begin = 64;
    chunk.end = 80;
    const std::vector<int32_t> secrets{123'456};
    for (uint64_t step = 1; step <= 70; ++step) {
        StepPlan p;
        p.header.step = step;
        p.windows = Span<const plan::Window>(windows).subspan(0, step == 70 ? 18 : 1);
        if (step == 69) {
            p.chunks = {&chunk, 1};
        }
        p.tokens = secrets;
        log.note(p, 1000 + step);
    }
    std::vector<std::string> lines;
    log.each_line([&](const std::string& line) { lines.push_back(line); });

    ASSERT_EQ(lines.size(), 64U);
    EXPECT_EQ(lines[0], "step=7 bytes=1007 windows=[0.7@100..103] chunks=[]");
    EXPECT_EQ(lines[62], "step=69 bytes=1069 windows=[0.7@100..103] chunks=[2.1@64..80]");
    EXPECT_EQ(lines[63].rfind("step=70 bytes=1070 windows=[0.7@100..103 1.7@100..103 ", 0), 0U);
    EXPECT_NE(lines[63].find(" 15.7@100..103 and 2 more] chunks=[]"), std::string::npos)
        << lines[63];
}

TEST(EngineLife, Lost_peers_are_told_as_such_only_in_a_group) {
    EXPECT_EQ(engine::EngineCore::cause_of(Status(Code::peer, ""), 2), engine::EndCause::peer_lost);
    EXPECT_EQ(engine::EngineCore::cause_of(Status(Code::peer, ""), 1), engine::EndCause::internal);
}

TEST(EngineLife, A_failed_warm_up_is_returned_by_start) {
    LoopBench bench;
    bench.model.inject(fakes::FaultAt::warm_up, Code::device);
    const Status status = bench.loop->start();
    EXPECT_EQ(status.code(), Code::device);
    EXPECT_NE(status.message().view().find("warm-up"), std::string_view::npos);
    EXPECT_EQ(bench.loop->state(), EngineState::failed);
    bench.loop->stop();
}

TEST(EngineLife, A_warm_up_that_does_not_end_is_an_error_of_start) {
    EngineSettings settings;
    settings.warm_up_us = 20'000;
    LoopBench bench({}, settings);
    std::atomic<bool> stuck{true};
    bench.model.on_warm_up([&] { stuck.wait(true); });

    const Status status = bench.loop->start();

    EXPECT_EQ(status.code(), Code::deadline);
    EXPECT_NE(status.message().view().find("did not end within 0 s (engine.warm_up)"),
              std::string_view::npos)
        << status.message().view();
    EXPECT_EQ(bench.loop->state(), EngineState::failed);
    stuck = false;
    stuck.notify_all();
    bench.loop->stop();
    EXPECT_EQ(bench.loop->state(), EngineState::failed);
}

TEST(EngineLife, Before_start_and_after_drain_requests_are_refused) {
    LoopBench bench;
    Ask ask;
    Ref<ReplySink> sink;
    Status status = bench.loop->submit(ask.get(), sink.out());
    EXPECT_EQ(status.code(), Code::unavailable);
    EXPECT_EQ(status.message().view().substr(0, 7), "loading");
    ASSERT_TRUE(bench.loop->start().ok());
    EXPECT_EQ(bench.loop->state(), EngineState::ready);
    bench.loop->begin_drain();
    status = bench.loop->submit(ask.get(), sink.out());
    EXPECT_EQ(status.code(), Code::unavailable);
    EXPECT_EQ(status.message().view().substr(0, 8), "draining");
    bench.loop->stop();
    bench.loop->stop();
}

TEST(EngineLife, A_full_queue_is_refused_and_opens_again) {
    ScriptedOptions options;
    options.slots = 2;
    options.step_us = 300;
    EngineSettings settings;
    settings.max_queued = 3;
    LoopBench bench(options, settings);
    ASSERT_TRUE(bench.loop->start().ok());
    std::vector<Ref<ReplySink>> sinks;
    for (int i = 0; i < 5; ++i) {
        Ask ask = long_ask(300);
        sinks.push_back(bench.submit(ask));
    }
    Ask ask = long_ask(300);
    Ref<ReplySink> refused;
    const Status status = bench.loop->submit(ask.get(), refused.out());
    EXPECT_EQ(status.code(), Code::unavailable);
    EXPECT_EQ(status.message().view().substr(0, 10), "queue full");
    EXPECT_GE(bench.loop->retry_after_s(), 1);
    EXPECT_LE(bench.loop->retry_after_s(), 60);
    for (const Ref<ReplySink>& sink : sinks) {
        EXPECT_EQ(bench.finish(*sink)[0].finish, "length");
    }
    Ref<ReplySink> again = bench.submit(ask);
    EXPECT_EQ(bench.finish(*again)[0].finish, "length");
}

TEST(EngineLife, Drain_lets_replies_end) {
    LoopBench bench;
    ASSERT_TRUE(bench.loop->start().ok());
    std::vector<Ref<ReplySink>> sinks;
    for (int i = 0; i < 9; ++i) {
        Ask ask = long_ask(60);
        sinks.push_back(bench.submit(ask));
    }
    EXPECT_TRUE(bench.loop->drain(bench.host.now_us() + 20'000'000).ok());
    for (const Ref<ReplySink>& sink : sinks) {
        EXPECT_EQ(bench.finish(*sink)[0].finish, "length");
    }
}

TEST(EngineLife, A_drain_past_its_deadline_ends_replies_with_shutdown) {
    ScriptedOptions options;
    options.step_us = 2000;
    LoopBench bench(options);
    ASSERT_TRUE(bench.loop->start().ok());
    std::vector<Ref<ReplySink>> sinks;
    for (int i = 0; i < 6; ++i) {
        Ask ask = long_ask(400);
        sinks.push_back(bench.submit(ask));
    }
    const Status status = bench.loop->drain(bench.host.now_us() + 50'000);
    EXPECT_EQ(status.code(), Code::deadline);
    EXPECT_NE(status.message().view().find("6 replies"), std::string_view::npos);
    for (const Ref<ReplySink>& sink : sinks) {
        EXPECT_EQ(bench.finish(*sink)[0].kind, "shutdown");
    }
}

TEST(EngineLife, Stop_ends_what_runs) {
    ScriptedOptions options;
    options.step_us = 1000;
    LoopBench bench(options);
    ASSERT_TRUE(bench.loop->start().ok());
    Ask ask = long_ask(400);
    Ref<ReplySink> sink = bench.submit(ask);
    bench.loop->stop();
    EXPECT_EQ(bench.finish(*sink)[0].kind, "shutdown");
    bench.loop.reset();
    EXPECT_TRUE(sink->finished()) << "a sink may outlive the engine";
}

TEST(EngineLife, Every_reply_gets_exactly_one_terminal_event_whatever_happens) {
    const uint64_t seed = test_seed();
    ScriptedOptions options;
    options.draft_max = 4;
    EngineSettings settings;
    settings.max_queued = 20;
    settings.draft_depth = 3;
    settings.slow_client_limit_us = 30'000;
    LoopBench bench(options, settings);
    ASSERT_TRUE(bench.loop->start().ok());
    std::atomic<int64_t> submitted{0}, terminals{0}, refused{0};
    const auto client = [&](uint64_t number) {
        std::mt19937_64 rng(seed + number);
        for (int i = 0; i < 60; ++i) {
            Ask ask = random_ask(rng);
            ask.desc.replies = 1 + static_cast<int32_t>(rng() % 3);
            ask.desc.deadline_us = rng() % 6 == 0 ? 1 + static_cast<int64_t>(rng() % 3000) : 0;
            Ref<ReplySink> sink;
            const Status status = bench.loop->submit(ask.get(), sink.out());
            if (!status.ok()) {
                EXPECT_EQ(status.code(), Code::unavailable) << status.message().view();
                refused.fetch_add(1);
                continue;
            }
            const uint64_t fate = rng() % 8;
            if (fate == 0) {
                continue;  // gone without a look
            }
            submitted.fetch_add(ask.desc.replies);
            if (fate == 1) {
                sink->cancel(CancelReason::client_gone);
            }
            std::map<int32_t, Got> replies;
            if (fate == 2) {
                take(*sink, &replies, 1);
                std::this_thread::sleep_for(std::chrono::milliseconds(60));  // a slow client
            }
            take(*sink, &replies, 20'000'000);
            EXPECT_TRUE(sink->finished());
            EXPECT_EQ(replies.size(), static_cast<size_t>(ask.desc.replies));
            for (const auto& [index, got] : replies) {
                EXPECT_EQ(got.terminals, 1);
                EXPECT_EQ(got.after_end, 0);
                terminals.fetch_add(got.terminals);
            }
            SinkEvent event;
            EXPECT_FALSE(sink->next(0, &event)) << "nothing follows the last terminal event";
        }
    };
    std::vector<std::thread> clients;
    for (uint64_t i = 0; i < 4; ++i) {
        clients.emplace_back(client, i);
    }
    for (std::thread& t : clients) {
        t.join();
    }
    EXPECT_EQ(terminals.load(), submitted.load());
    EXPECT_TRUE(bench.loop->drain(bench.host.now_us() + 20'000'000).ok());
    EngineStats stats;
    bench.loop->stats(&stats);
    EXPECT_EQ(stats.pages_free, stats.pages_total);
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.waiting, 0);
}

}  // namespace
}  // namespace tenon::test
