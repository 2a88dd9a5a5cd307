// SPDX-License-Identifier: MIT
// What a reply holds: limits, stops, several replies, seeds, logprobs, raw text, figures (engine.md
// 9: 30).
#include "tests/unit/engine_support.h"

namespace tenon::test {
namespace {

TEST(EngineReply, Nothing_follows_a_stop_id_a_stop_string_or_the_last_allowed_token) {
    std::mt19937_64 rng(test_seed());
    int eos = 0, strings = 0, lengths = 0, ids = 0;
    for (int round = 0; round < 300; ++round) {
        ScriptedOptions options;
        options.draft_max = 15;
        options.draft_quality = 95;
        Bench bench(options, static_cast<int32_t>(rng() % 16));
        bool bounded = true;
        bench.model.on_submit([&](const StepPlan& p) {
            for (const plan::Window& w : p.windows) {
                bounded = bounded && w.accept_max <= w.rows;
            }
        });
        Ask ask = random_ask(rng);
        if (rng() % 3 == 0) {
            ask.stop_ids.push_back(static_cast<int32_t>(32 + rng() % 95));
        }
        const Got got = bench.ask(ask);
        EXPECT_TRUE(bounded);
        ASSERT_FALSE(got.ids.empty());
        EXPECT_LE(static_cast<int64_t>(got.ids.size()), ask.desc.max_new_tokens);
        EXPECT_EQ(got.timings.completion_tokens, static_cast<int64_t>(got.ids.size()));
        std::string text;
        for (size_t i = 0; i < got.ids.size(); ++i) {
            const bool last = i + 1 == got.ids.size();
            const int32_t id = got.ids[i];
            const bool stop_id =
                id == fakes::kEos || (!ask.stop_ids.empty() && id == ask.stop_ids[0]);
            EXPECT_TRUE(last || !stop_id) << "a token follows a stop id";
            if (!stop_id) {
                text.push_back(static_cast<char>(id));
            }
            const bool stop_string =
                !ask.stops.empty() && text.find(ask.stops[0]) != std::string::npos;
            EXPECT_TRUE(last || !stop_string) << "a token follows a stop string";
            if (last) {
                eos += id == fakes::kEos ? 1 : 0;
                ids += stop_id && id != fakes::kEos ? 1 : 0;
                strings += stop_string ? 1 : 0;
                lengths += got.finish == "length" ? 1 : 0;
                if (got.finish == "length") {
                    EXPECT_EQ(static_cast<int64_t>(got.ids.size()), ask.desc.max_new_tokens);
                }
            }
        }
        const size_t cut = ask.stops.empty() ? std::string::npos : text.find(ask.stops[0]);
        EXPECT_EQ(got.content, text.substr(0, cut)) << "stop strings and stop ids are not text";
    }
    EXPECT_GT(eos, 3);
    EXPECT_GT(strings, 3);
    EXPECT_GT(lengths, 3);
    EXPECT_GT(ids, 1);
}

TEST(EngineReply, A_stop_string_over_a_window_border_cuts_text_and_usage) {
    for (const int32_t depth : {0, 3, 7, 15}) {
        ScriptedOptions options;
        options.draft_max = 15;
        options.draft_quality = 100;
        Bench bench(options, depth);
        bench.model.reply_with(ids_of("abcdefghijklmnopqrstuvwxyz"));
        Ask ask;
        ask.stops = {"jkl", "zzz"};
        ask.desc.max_new_tokens = 100;
        const Got got = bench.ask(ask);
        EXPECT_EQ(got.content, "abcdefghi");
        EXPECT_EQ(got.finish, "stop");
        EXPECT_EQ(got.ids, ids_of("abcdefghijkl")) << "the matching token is the last one";
        EXPECT_EQ(got.timings.completion_tokens, 12);
    }
}

TEST(EngineReply, A_stop_string_inside_reasoning_does_not_end_the_reply) {
    Bench bench;
    std::vector<int32_t> script = ids_of("END is near");
    script.push_back(fakes::kThinkClose);
    const std::vector<int32_t> rest = ids_of("answer END more");
    script.insert(script.end(), rest.begin(), rest.end());
    bench.model.reply_with(script);
    Ask ask;
    ask.stops = {"END"};
    ask.desc.parser.start = ReplyStart::reasoning;
    ask.desc.max_new_tokens = 100;
    const Got got = bench.ask(ask);
    EXPECT_EQ(got.reasoning, "END is near");
    EXPECT_EQ(got.content, "answer ");
    EXPECT_EQ(got.timings.reasoning_tokens, 12);
}

TEST(EngineReply, Calls_arrive_with_name_and_arguments) {
    Bench bench;
    std::vector<int32_t> script = {fakes::kCallOpen, 'f', fakes::kCallArgs, '{', '}',
                                   fakes::kCallClose};
    bench.model.reply_with(script);
    Ask ask;
    const Got got = bench.ask(ask);
    EXPECT_EQ(got.calls, std::vector<std::string>{"f"});
    EXPECT_EQ(got.arguments, "{}");
    EXPECT_EQ(got.finish, "tool_calls");
}

TEST(EngineReply, Without_eos_the_end_token_is_neither_an_end_nor_text) {
    Bench bench;
    std::vector<int32_t> script = ids_of("ab");
    script.push_back(fakes::kEos);
    script.push_back('c');
    bench.model.reply_with(script);
    Ask ask;
    ask.desc.flags |= kIgnoreEos;
    ask.desc.max_new_tokens = 4;
    const Got got = bench.ask(ask);
    EXPECT_EQ(got.content, "abc");
    EXPECT_EQ(got.finish, "length");
    EXPECT_EQ(got.timings.completion_tokens, 4);
}

TEST(EngineReply, Raw_text_is_cut_at_stops_and_on_character_borders) {
    Bench bench;
    bench.model.reply_with(ids_of("gr\xC3\xBC\xC3\x9F dich STOP after"));
    Ask ask;
    ask.stops = {"STOP"};
    ask.desc.flags |= kRawText;
    ask.desc.max_new_tokens = 100;
    EXPECT_EQ(bench.ask(ask).content, "gr\xC3\xBC\xC3\x9F dich ");
    EXPECT_EQ(bench.ask(ask).finish, "stop");
    ask.stops = {"afterwards"};
    EXPECT_EQ(bench.ask(ask).content, "gr\xC3\xBC\xC3\x9F dich STOP after")
        << "a held beginning of a stop comes out";
    ask.stops.clear();
    ask.desc.max_new_tokens = 6;
    EXPECT_EQ(bench.ask(ask).finish, "length");
}

TEST(StopCutter, Gives_the_same_text_for_any_split) {
    std::mt19937_64 rng(test_seed());
    const std::string text = "aab abab aaab ababc tail";
    for (int i = 0; i < 500; ++i) {
        engine::StopCutter cutter({"ababc", "zz", "aaaa"});
        std::string out;
        for (size_t at = 0; at < text.size();) {
            const size_t n = 1 + rng() % 5;
            out += cutter.feed(std::string_view(text).substr(at, n));
            at += n;
        }
        out += cutter.flush();
        EXPECT_EQ(out, "aab abab aaab ");
        EXPECT_TRUE(cutter.stopped());
    }
}

TEST(EngineReply, Reply_j_is_drawn_with_seed_plus_j) {
    ScriptedOptions options;
    Bench bench(options);
    Ask ask("several replies");
    ask.desc.sampling.temperature = 1;
    ask.desc.sampling.seed_set = true;
    ask.desc.sampling.seed = 41;
    ask.desc.replies = 8;
    engine::Request* all = bench.submit(ask);
    ASSERT_TRUE(bench.run());
    ask.desc.replies = 1;
    for (int32_t j = 0; j < 8; ++j) {
        ask.desc.sampling.seed = 41 + static_cast<uint64_t>(j);
        const Got alone = bench.ask(ask);
        EXPECT_EQ(bench.result(all, j).ids, alone.ids) << j;
        EXPECT_EQ(bench.result(all, j).timings.seed, ask.desc.sampling.seed);
        EXPECT_EQ(bench.result(all, j).terminals, 1);
    }
    EXPECT_NE(bench.result(all, 0).ids, bench.result(all, 1).ids);
    EXPECT_TRUE(all->finished());
}

TEST(EngineReply, The_default_seed_is_a_digest_of_salt_and_prompt) {
    // SHA-256("") = e3b0c44298fc1c14…; SHA-256 of the three bytes "abc" = ba7816bf8f01cfea…
    EXPECT_EQ(engine::default_seed("", {}), 0x141cfc9842c4b0e3u);
    EXPECT_EQ(engine::default_seed("abc", {}), 0xeacf018fbf1678bau);
    const std::vector<int32_t> ids = {0x636261};  // its bytes are 'a' 'b' 'c' 0
    EXPECT_EQ(engine::default_seed("", ids),
              engine::default_seed(std::string_view("abc\0", 4), {}));

    Bench bench;
    Ask ask("same prompt");
    ask.desc.sampling.temperature = 1;
    const Got first = bench.ask(ask), second = bench.ask(ask);
    EXPECT_EQ(first.ids, second.ids);
    EXPECT_EQ(first.timings.seed, engine::default_seed("", ask.prompt));
    bench.limits.seed_salt = "other";
    EXPECT_NE(bench.ask(ask).timings.seed, first.timings.seed);
}

TEST(EngineReply, Logprobs_come_with_their_tokens_also_with_drafts) {
    for (const int32_t depth : {0, 4}) {
        ScriptedOptions options;
        options.draft_max = 5;
        options.draft_quality = 80;
        Bench bench(options, depth);
        Ask ask("logprobs");
        ask.desc.sampling.logprobs = 3;
        ask.desc.flags = kDraftsAllowed | kIgnoreEos;
        const Got got = bench.ask(ask);
        ASSERT_EQ(got.ids.size(), 16u);
        ASSERT_EQ(got.logprobs.size(), 16u * 4);
        for (size_t i = 0; i < got.ids.size(); ++i) {
            EXPECT_EQ(got.logprobs[4 * i].token, got.ids[i]);
            // The scripted model writes the row's position into its logprob.
            const auto position = static_cast<float>(ask.prompt.size() - 1 + i);
            EXPECT_EQ(got.logprobs[4 * i].logprob, -position / 1024);
        }
    }
}

TEST(EngineReply, Ids_are_sent_only_when_asked_for) {
    Bench bench;
    Ask ask;
    ask.desc.flags = 0;
    const Got got = bench.ask(ask);
    EXPECT_TRUE(got.ids.empty());
    EXPECT_FALSE(got.content.empty());
}

TEST(EngineReply, Figures_of_a_reply_add_up) {
    ScriptedOptions options;
    options.draft_max = 5;
    Bench bench(options, 5);
    Ask ask("how long");
    ask.desc.max_new_tokens = 40;
    ask.desc.flags |= kIgnoreEos;
    const Got got = bench.ask(ask);
    const ReplyTimings& t = got.timings;
    EXPECT_EQ(t.prompt_tokens, 8);
    EXPECT_EQ(t.completion_tokens, 40);
    EXPECT_EQ(t.cached_tokens, 0);
    EXPECT_EQ(t.rounds + t.accepted, 40) << "each round gives one token more than it accepts";
    EXPECT_GT(t.drafted, t.accepted);
    EXPECT_EQ(t.first_token, t.queue + t.prefill);
    EXPECT_GT(t.decode, 0);
    engine::Sha256 sha;
    sha.add_ids(got.ids);
    const auto digest = sha.finish();
    EXPECT_EQ(std::memcmp(t.token_sha, digest.data(), digest.size()), 0);
    EXPECT_EQ(bench.host.value("generation_tokens_total"), 40);
    EXPECT_EQ(bench.host.value("prompt_tokens_total"), 8);
    EXPECT_EQ(bench.host.value("mtp_accepted_total"), static_cast<double>(t.accepted));
    EXPECT_EQ(bench.host.value("requests_total", "outcome=ok"), 1);
    EXPECT_EQ(bench.host.value("time_to_first_token_seconds"), 1);
    EXPECT_EQ(bench.host.value("requests_running"), 0);
}

TEST(EngineReply, A_prompt_of_one_token_starts_with_its_first_row) {
    Bench bench;
    bench.model.reply_with(ids_of("ok"));
    Ask ask("x");
    int chunks = 0;
    bench.model.on_submit([&](const StepPlan& p) { chunks += static_cast<int>(p.chunks.size); });
    EXPECT_EQ(bench.ask(ask).content, "ok");
    EXPECT_EQ(chunks, 0);
}

TEST(EngineReply, The_last_prompt_token_is_the_first_decode_row) {
    Bench bench;
    std::vector<std::pair<int64_t, int64_t>> chunks;
    int64_t first_window = -1;
    bench.model.on_submit([&](const StepPlan& p) {
        for (const plan::Chunk& c : p.chunks) {
            chunks.emplace_back(c.begin, c.end);
        }
        if (first_window < 0 && p.windows.size > 0) {
            first_window = p.windows[0].position;
        }
    });
    Ask ask;
    ask.prompt.assign(80, 'p');
    bench.ask(ask);
    EXPECT_EQ(chunks, (std::vector<std::pair<int64_t, int64_t>>{{0, 32}, {32, 64}, {64, 79}}));
    EXPECT_EQ(first_window, 79);
}

TEST(EngineReply, A_context_can_be_filled_to_its_last_position) {
    for (const int32_t depth : {0, 15}) {
        ScriptedOptions options;
        options.context = 64;
        options.draft_max = 15;
        options.draft_quality = 100;
        Bench bench(options, depth);
        Ask ask;
        ask.prompt.assign(40, 'p');
        ask.desc.max_new_tokens = 24;
        ask.desc.flags |= kIgnoreEos;
        EXPECT_EQ(bench.ask(ask).ids.size(), 24u);
        ask.desc.max_new_tokens = 0;  // the default, capped to the room
        EXPECT_EQ(bench.ask(ask).ids.size(), 24u);
    }
}

}  // namespace
}  // namespace tenon::test
