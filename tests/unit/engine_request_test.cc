// SPDX-License-Identifier: MIT
// Admission: each field out of range is refused by its name; what is kept; the sink ring on its
// own.
#include <limits>
#include <thread>

#include "tests/unit/engine_support.h"

namespace tenon::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Refusal {
    const char* field;
    Code code;
    void (*change)(Ask&);
};

TEST(EngineRequest, Each_bad_field_is_refused_by_its_name) {
    constexpr Code kBad = Code::invalid_argument, kLong = Code::does_not_fit,
                   kNo = Code::unsupported;
    const Refusal cases[] = {
        {"temperature: ", kBad, [](Ask& a) { a.desc.sampling.temperature = -0.1f; }},
        {"temperature: ", kBad, [](Ask& a) { a.desc.sampling.temperature = kNan; }},
        {"temperature: ", kBad, [](Ask& a) { a.desc.sampling.temperature = kInf; }},
        {"top_p: ", kBad, [](Ask& a) { a.desc.sampling.top_p = 0; }},
        {"top_p: ", kBad, [](Ask& a) { a.desc.sampling.top_p = 1.01f; }},
        {"top_p: ", kBad, [](Ask& a) { a.desc.sampling.top_p = kNan; }},
        {"min_p: ", kBad, [](Ask& a) { a.desc.sampling.min_p = 1; }},
        {"min_p: ", kBad, [](Ask& a) { a.desc.sampling.min_p = -0.01f; }},
        {"presence_penalty: ", kBad, [](Ask& a) { a.desc.sampling.presence = 2.1f; }},
        {"frequency_penalty: ", kBad, [](Ask& a) { a.desc.sampling.frequency = -2.1f; }},
        {"repetition_penalty: ", kBad, [](Ask& a) { a.desc.sampling.repetition = 0; }},
        {"repetition_penalty: ", kBad, [](Ask& a) { a.desc.sampling.repetition = kInf; }},
        {"logprobs: ", kBad, [](Ask& a) { a.desc.sampling.logprobs = 21; }},
        {"logprobs: ", kBad, [](Ask& a) { a.desc.sampling.logprobs = -2; }},
        {"logit_bias[1]: ", kBad,
         [](Ask& a) {
             a.bias = {{1, 0}, {288, 0}};
         }},
        {"logit_bias[0]: ", kBad,
         [](Ask& a) {
             a.bias = {{-1, 0}};
         }},
        {"logit_bias[0]: ", kBad,
         [](Ask& a) {
             a.bias = {{1, kNan}};
         }},
        {"logit_bias: ", kBad, [](Ask& a) { a.bias.resize(4097); }},
        {"stop_token_ids[0]: ", kBad, [](Ask& a) { a.stop_ids = {300}; }},
        {"stop_token_ids: ", kBad, [](Ask& a) { a.stop_ids.resize(16); }},
        {"stop[1]: ", kBad,
         [](Ask& a) {
             a.stops = {"x", ""};
         }},
        {"stop: ", kBad, [](Ask& a) { a.stops.resize(65, "x"); }},
        {"prompt: ", kBad, [](Ask& a) { a.prompt.clear(); }},
        {"prompt[2]: ", kBad, [](Ask& a) { a.prompt[2] = fakes::kTextVocab; }},
        {"prompt[0]: ", kBad, [](Ask& a) { a.prompt[0] = -1; }},
        {"the prompt has 512 tokens", kLong, [](Ask& a) { a.prompt.assign(512, 'x'); }},
        {"max_tokens: ", kBad, [](Ask& a) { a.desc.max_new_tokens = -1; }},
        {"max_tokens: 508", kLong, [](Ask& a) { a.desc.max_new_tokens = 508; }},
        {"n: ", kBad, [](Ask& a) { a.desc.replies = 0; }},
        {"n: ", kBad, [](Ask& a) { a.desc.replies = 9; }},
        {"deadline: ", kBad, [](Ask& a) { a.desc.deadline_us = -5; }},
        {"priority: ", kBad, [](Ask& a) { a.desc.priority = static_cast<Priority>(7); }},
        {"thinking_budget: ", kNo, [](Ask& a) { a.desc.thinking_budget = 10; }},
        {"thinking_budget: ", kBad, [](Ask& a) { a.desc.thinking_budget = -2; }},
        {"prompt_logprobs: ", kNo, [](Ask& a) { a.desc.flags |= kPromptLogprobs; }},
        {"response_format: ", kNo,
         [](Ask& a) { a.desc.constraint = reinterpret_cast<TokenConstraint*>(uintptr_t{8}); }},
    };
    Bench bench;
    for (const Refusal& c : cases) {
        Ask ask;
        c.change(ask);
        const Status status = engine::check_request(ask.get(), bench.limits);
        EXPECT_EQ(status.code(), c.code) << c.field;
        EXPECT_EQ(status.message().view().substr(0, std::strlen(c.field)), c.field);
    }
    Ask borders;
    const Border wrong[] = {{4, BorderKind::message_end, 0}, {3, BorderKind::message_end, 0}};
    borders.get();
    borders.desc.borders = wrong;
    EXPECT_EQ(engine::check_request(borders.desc, bench.limits).message().view().substr(0, 11),
              "borders[1]:");
}

// serving.md 10: a budget that ends reasoning may leave nothing for the answer. This engine forces
// no tokens yet, so it says so instead of ignoring the field.
TEST(EngineRequest, Pitfall_28_A_thinking_budget_is_refused_by_name) {
    Bench bench;
    Ask ask;
    ask.desc.thinking_budget = 100;
    const Status status = engine::check_request(ask.get(), bench.limits);
    EXPECT_EQ(status.code(), Code::unsupported);
    EXPECT_EQ(status.message().str().rfind("thinking_budget: ", 0), 0U) << status.message().str();
    ask.desc.thinking_budget = -1;
    EXPECT_TRUE(engine::check_request(ask.get(), bench.limits).ok());
}

// serving.md 10: greedy decoding in thinking mode loops.
TEST(EngineRequest, Pitfall_17_Defaults_are_the_sampling_values_of_the_release) {
    const SamplingDefaults defaults;
    EXPECT_EQ(defaults.temperature, 1.0F);
    EXPECT_EQ(defaults.top_p, 0.95F);
    EXPECT_EQ(defaults.top_k, 0);
    EXPECT_EQ(defaults.min_p, 0.0F);
}

TEST(EngineRequest, Limits_themselves_are_accepted) {
    Bench bench;
    Ask ask;
    ask.desc.sampling.top_p = 1;
    ask.desc.sampling.min_p = 0.999f;
    ask.desc.sampling.presence = -2;
    ask.desc.sampling.repetition = 2;
    ask.desc.sampling.logprobs = 20;
    ask.desc.sampling.top_k = -1;  // clients write that for "off"
    ask.stop_ids.resize(15, 7);
    ask.desc.max_new_tokens = 512 - 5;
    EXPECT_TRUE(engine::check_request(ask.get(), bench.limits).ok());
    ask.stop_ids.resize(16, 7);
    ask.desc.flags |= kIgnoreEos;
    EXPECT_TRUE(engine::check_request(ask.get(), bench.limits).ok());
}

TEST(EngineRequest, A_long_reply_is_clamped_if_the_profile_says_so) {
    Bench bench;
    bench.limits.clamp_max_tokens = true;
    Ask ask;
    ask.desc.max_new_tokens = 100'000;
    engine::Request* request = bench.submit(ask);
    EXPECT_EQ(request->replies()[0].max_new, 512 - 5);
}

TEST(EngineRequest, Penalties_name_each_prompt_id_once) {
    Bench bench;
    Ask ask("banana");
    ask.desc.sampling.repetition = 1.2f;
    engine::Request* request = bench.submit(ask);
    ASSERT_EQ(request->counts.size(), 3u);
    for (const plan::Pair& p : request->counts) {
        EXPECT_EQ(p.bits, 0x80000000u) << "in the prompt, not in the output";
    }
    Ask plain("banana");
    EXPECT_TRUE(bench.submit(plain)->counts.empty());
}

TEST(EngineRequest, A_refused_submit_leaves_no_sink) {
    LoopBench bench;
    ASSERT_TRUE(bench.loop->start().ok());
    Ask ask;
    ask.desc.replies = 99;
    ReplySink* sink = nullptr;
    EXPECT_EQ(bench.loop->submit(ask.get(), &sink).code(), Code::invalid_argument);
    EXPECT_EQ(sink, nullptr);
}

TEST(EngineLoopCreate, Contradicting_settings_are_refused_with_both_values) {
    FakeHost host;
    ScriptedOptions options;
    options.slots = 8;
    ScriptedModel model(options);
    const auto refusal = [&](auto&& change) {
        EngineSettings settings;
        settings.slots = 8;
        change(settings);
        auto made = EngineLoop::create(model, std::move(settings), host, {});
        return made.ok() ? std::string() : made.status().message().str();
    };
    EXPECT_EQ(refusal([](EngineSettings&) {}), "");
    EXPECT_NE(refusal([](EngineSettings& s) { s.slots = 17; }).find("slots: 17 with step_rows 16"),
              std::string::npos);
    EXPECT_NE(refusal([](EngineSettings& s) { s.context_tokens = 513; }).find("limit is 512"),
              std::string::npos);
    EXPECT_NE(refusal([](EngineSettings& s) { s.pool_pages = 79; }).find("need 80"),
              std::string::npos);
    EXPECT_NE(refusal([](EngineSettings& s) { s.max_queued = 0; }).find("max_queued"),
              std::string::npos);
}

TEST(SinkRing, Gives_events_in_order_over_many_wraps) {
    engine::SinkRing ring;
    std::mt19937_64 rng(test_seed());
    uint64_t sent = 0, got = 0;
    bool freed = false;
    std::vector<std::string> texts;
    while (got < 20'000) {
        for (uint64_t n = rng() % 40; n > 0; --n, ++sent) {
            texts.push_back(std::string(rng() % 900, static_cast<char>('a' + sent % 26)));
            const std::vector<int32_t> ids(rng() % 5, static_cast<int32_t>(sent));
            SinkEvent e;
            e.text = texts.back();
            e.id = "i";
            e.ids = ids;
            e.index = static_cast<int32_t>(sent);
            ASSERT_TRUE(ring.push(e));
        }
        for (uint64_t n = rng() % 60; n > 0; --n) {
            SinkEvent e;
            if (!ring.next(0, &e, &freed)) {
                break;
            }
            ASSERT_EQ(e.index, static_cast<int32_t>(got));
            ASSERT_EQ(e.text.view(), texts[got]);
            ASSERT_EQ(e.id.view(), "i");
            for (const int32_t id : e.ids) {
                ASSERT_EQ(id, static_cast<int32_t>(got));
            }
            ++got;
        }
    }
}

TEST(SinkRing, Blocks_at_three_quarters_and_frees_at_half) {
    engine::SinkRing ring;
    SinkEvent e, out;
    e.text = "x";
    bool freed = false;
    for (int i = 0; i < 191; ++i) {
        ring.push(e);
    }
    EXPECT_FALSE(ring.blocked());
    ring.push(e);
    EXPECT_TRUE(ring.blocked());
    int taken = 0;
    while (ring.blocked()) {
        ASSERT_TRUE(ring.next(0, &out, &freed));
        ++taken;
    }
    EXPECT_TRUE(freed);
    EXPECT_EQ(taken, 65) << "the event in hand counts until the next call";

    engine::SinkRing bytes;
    const std::string big(70'000, 'b');
    e.text = big;
    bytes.push(e);
    bytes.push(e);
    EXPECT_FALSE(bytes.blocked());
    bytes.push(e);
    EXPECT_TRUE(bytes.blocked());
}

TEST(SinkRing, Loses_nothing_when_a_burst_is_larger_than_the_ring) {
    engine::SinkRing ring;
    SinkEvent e;
    bool freed = false;
    int64_t sent = 0;
    const std::string text(10'000, 't');
    e.text = text;
    while (ring.push(e)) {
        ++sent;
    }
    EXPECT_GT(sent, 4'000'000 / 10'080);
    SinkEvent end;
    end.kind = SinkEventKind::error;
    EXPECT_TRUE(ring.push(end)) << "a terminal event is always taken";
    SinkEvent out;
    int64_t got = 0;
    while (ring.next(0, &out, &freed) && out.kind != SinkEventKind::error) {
        ASSERT_EQ(out.text.size, 10'000u);
        ++got;
    }
    EXPECT_EQ(got, sent);
    EXPECT_FALSE(ring.next(0, &out, &freed));
}

TEST(SinkRing, A_waiting_reader_is_woken) {
    engine::SinkRing ring;
    std::thread writer([&ring] {
        SinkEvent e;
        for (int i = 0; i < 2000; ++i) {
            e.index = i;
            ring.push(e);
        }
    });
    SinkEvent out;
    bool freed = false;
    for (int i = 0; i < 2000; ++i) {
        ASSERT_TRUE(ring.next(5'000'000, &out, &freed));
        ASSERT_EQ(out.index, i);
    }
    writer.join();
}

TEST(SeqLock, Readers_see_only_whole_values) {
    struct Value {
        uint64_t words[40] = {};
    };
    engine::SeqLock<Value> lock;
    std::atomic<bool> done{false};
    std::thread writer([&] {
        Value v;
        for (uint64_t i = 1; i < 20'000; ++i) {
            for (uint64_t& w : v.words) {
                w = i;
            }
            lock.write(v);
        }
        done.store(true);
    });
    while (!done.load()) {
        const Value v = lock.read();
        for (const uint64_t w : v.words) {
            ASSERT_EQ(w, v.words[0]);
        }
    }
    writer.join();
}

}  // namespace
}  // namespace tenon::test
