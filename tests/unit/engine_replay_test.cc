// SPDX-License-Identifier: MIT
// The replay memory by itself, salts of callers, and what a finished reply leaves in it.
#include "host/engine/replay_memory.h"

#include "tests/unit/engine_support.h"

namespace tenon::test {
namespace {

using engine::caller_salt;
using engine::Digest;
using engine::plain_json;
using engine::RecordedTurn;
using engine::ReplayLookup;
using engine::ReplayMemory;

constexpr int32_t kClose = 9;

RecordedTurn turn_of(uint64_t salt, const std::vector<int32_t>& prompt) {
    RecordedTurn turn;
    engine::Sha256 sha = engine::prompt_sha(salt);
    sha.add_ids(prompt);
    turn.prompt = sha.finish();
    turn.ids = {1, 2, kClose, 3, 4};
    turn.starts_reasoning = true;
    turn.reasoning = "hm";
    turn.content = "yes";
    return turn;
}

std::vector<int32_t> find(ReplayMemory& memory, uint64_t salt, const std::vector<int32_t>& prompt,
                          const VisibleTurn& turn, bool shows = true) {
    ReplayLookup lookup(memory, salt);
    const Span<const int32_t> all = prompt;
    lookup.add_prompt(all.subspan(0, all.size / 2));
    lookup.add_prompt(all.subspan(all.size / 2, all.size - all.size / 2));
    const Span<const int32_t> ids = lookup.find(turn, shows);
    EXPECT_EQ(lookup.hits(), ids.empty() ? 0 : 1);
    return {ids.begin(), ids.end()};
}

TEST(ReplayMemory, Finds_a_turn_by_prompt_and_visible_text) {
    ReplayMemory memory(1 << 20, kClose);
    const std::vector<int32_t> prompt = {5, 6, 7};
    const RecordedTurn turn = turn_of(0, prompt);
    memory.put(turn);

    EXPECT_EQ(find(memory, 0, prompt, {"hm", "yes", {}}), turn.ids);
    EXPECT_EQ(find(memory, 0, prompt, {"", "yes", {}}), turn.ids) << "reasoning was not sent back";
    EXPECT_EQ(find(memory, 0, prompt, {"", "yes", {}}, false), (std::vector<int32_t>{3, 4}));
    EXPECT_EQ(find(memory, 0, prompt, {"other", "yes", {}}, false), (std::vector<int32_t>{3, 4}));
    EXPECT_TRUE(find(memory, 0, prompt, {"other", "yes", {}}).empty()) << "reasoning was edited";
    EXPECT_TRUE(find(memory, 0, prompt, {"hm", "yes ", {}}).empty());
}

TEST(ReplayMemory, Keeps_conversations_and_callers_apart) {
    ReplayMemory memory(1 << 20, kClose);
    memory.put(turn_of(0, {5, 6, 7}));

    EXPECT_TRUE(find(memory, 0, {5, 6, 8}, {"hm", "yes", {}}).empty());
    EXPECT_TRUE(find(memory, 0, {5, 6}, {"hm", "yes", {}}).empty());
    EXPECT_TRUE(find(memory, 1, {5, 6, 7}, {"hm", "yes", {}}).empty()) << "another salt";
}

TEST(ReplayMemory, Calls_are_found_by_their_arguments_or_their_ids) {
    ReplayMemory memory(1 << 20, kClose);
    RecordedTurn turn = turn_of(0, {5});
    turn.calls = {{"call_a", "f", R"({"x": "é", "y": [1, 2]})"}};
    memory.put(turn);
    const auto with = [&](StrView content, const VisibleCall& call) {
        return find(memory, 0, {5}, {"hm", content, Span<const VisibleCall>(&call, 1)});
    };

    EXPECT_EQ(with("yes", {"", "f", "{\"x\":\"\\u00e9\",\n\"y\":[1,2]}"}), turn.ids);
    EXPECT_EQ(with(" yes\n", {"call_a", "f", R"({"x":"é","y":[1,2]})"}), turn.ids);
    EXPECT_TRUE(with(" yes\n", {"call_b", "f", R"({"x":"é","y":[1,2]})"}).empty());
    EXPECT_TRUE(with("yes", {"call_a", "f", R"({"x":"e","y":[1,2]})"}).empty()) << "edited";
    EXPECT_TRUE(with("yes", {"call_a", "g", R"({"x":"é","y":[1,2]})"}).empty());
}

TEST(ReplayMemory, Leaves_out_what_no_later_prompt_can_hold) {
    ReplayMemory memory(1 << 20, kClose);
    RecordedTurn open = turn_of(0, {5});
    open.ids = {1, 2, 3};
    memory.put(open);
    RecordedTurn odd = turn_of(0, {6});
    odd.is_odd = true;
    memory.put(odd);
    EXPECT_EQ(memory.records(), 0);

    RecordedTurn plain = turn_of(0, {5});
    plain.ids = {1, 2};
    plain.starts_reasoning = false;
    plain.reasoning.clear();
    memory.put(plain);
    EXPECT_EQ(find(memory, 0, {5}, {"", "yes", {}}, false), plain.ids);
    EXPECT_TRUE(find(memory, 0, {5}, {"", "yes", {}}, true).empty()) << "no close marker in it";

    ReplayMemory off(0, kClose);
    off.put(turn_of(0, {5}));
    EXPECT_EQ(off.records(), 0);
}

TEST(ReplayMemory, Stays_in_its_budget_and_forgets_the_least_used_first) {
    constexpr int64_t kBudget = 256 << 10;
    ReplayMemory memory(kBudget, kClose);
    const RecordedTurn often = turn_of(0, {-1});
    memory.put(often);
    RecordedTurn big = turn_of(0, {-2});
    big.ids.assign(1 << 20, 3);
    memory.put(big);
    for (int32_t i = 0; i < 5000; ++i) {
        memory.put(turn_of(0, {i}));
        EXPECT_EQ(find(memory, 0, {-1}, {"hm", "yes", {}}), often.ids);
        ASSERT_LE(memory.bytes(), kBudget);
    }
    EXPECT_TRUE(find(memory, 0, {-2}, {"hm", "yes", {}}).empty()) << "larger than its share";
    EXPECT_TRUE(find(memory, 0, {0}, {"hm", "yes", {}}).empty());
    EXPECT_EQ(find(memory, 0, {4999}, {"hm", "yes", {}}), often.ids);
    EXPECT_GT(memory.records(), 100);
}

TEST(ReplayMemory, The_newest_of_equal_turns_is_given) {
    ReplayMemory memory(8 << 10, kClose);  // a shard holds one or two
    RecordedTurn turn = turn_of(0, {5});
    for (int32_t i = 0; i < 20; ++i) {
        turn.ids[0] = i;
        memory.put(turn);
        EXPECT_EQ(find(memory, 0, {5}, {"hm", "yes", {}}), turn.ids);
    }
}

TEST(PlainJson, Does_not_depend_on_blanks_and_escapes) {
    EXPECT_EQ(plain_json(" {\n\t\"a\" : [ 1 , \"b\\n\" ] } "),
              plain_json("{\"a\":[1,\"b\\u000a\"]}"));
    EXPECT_EQ(plain_json("\"\\ud83d\\ude00\\/\""), plain_json("\"😀/\""));
    EXPECT_NE(plain_json(R"(["a b"])"), plain_json(R"(["ab"])"));
    EXPECT_NE(plain_json(R"(["a","b"])"), plain_json(R"(["a\",\"b"])"));
    for (const char* bad : {"\"", "\"\\", "\"\\u", "\"\\u12", "\"\\ud800\\u0041\"", "\\", ""}) {
        plain_json(bad);
    }
}

TEST(CallerSalt, Is_stable_and_differs_by_key_and_wish) {
    EXPECT_EQ(caller_salt("", ""), 0U);
    // Kept files carry it: a change would make every file of a deployment unusable.
    EXPECT_EQ(caller_salt("secret-one", ""), 0xF0DC31F90ADB43BBU);
    const std::set<uint64_t> all = {caller_salt("a", ""),  caller_salt("", "a"),
                                    caller_salt("a", "a"), caller_salt("aa", ""),
                                    caller_salt("b", ""),  0};
    EXPECT_EQ(all.size(), 6U);
}

TEST(CallerSalt, The_profile_decides_whether_keys_count) {
    for (const bool by_key : {false, true}) {
        EngineSettings settings;
        settings.salt_by_key = by_key;
        LoopBench bench({}, settings);
        EXPECT_EQ(bench.loop->cache_salt("", ""), 0U);
        EXPECT_EQ(bench.loop->cache_salt("k", "") != 0, by_key);
        EXPECT_NE(bench.loop->cache_salt("", "w"), 0U);
        EXPECT_EQ(bench.loop->cache_salt("k", "w") != bench.loop->cache_salt("l", "w"), by_key);
    }
}

TEST(EngineMetrics, Have_the_names_that_dashboards_ask_for) {
    Bench bench;
    Ask a("hello there");
    const Got got = bench.ask(a);
    std::string text;
    bench.host.metrics_text(
        [](void* arg, StrView piece) noexcept {
            static_cast<std::string*>(arg)->append(piece.view());
        },
        &text);
    for (const char* name :
         {"requests_running", "requests_waiting", "prompt_tokens_total", "generation_tokens_total",
          "kv_cache_usage_ratio", "mtp_drafted_total", "mtp_accepted_total",
          "request_latency_seconds", "time_to_first_token_seconds", "request_decode_seconds",
          "prompt_tokens_cached_total", "decode_rounds_total", "request_prefill_seconds",
          "client_disconnections_total", "preemptions_total", "replayed_turns_total"}) {
        EXPECT_NE(text.find(std::string(name) + "{"), std::string::npos) << name;
    }
    EXPECT_EQ(bench.host.value("prompt_tokens_total"), 11);
    EXPECT_EQ(bench.host.value("generation_tokens_total"), static_cast<double>(got.ids.size()));
    EXPECT_EQ(bench.host.value("decode_rounds_total"), static_cast<double>(got.timings.rounds));
    EXPECT_EQ(bench.host.value("request_latency_seconds"), 1);
}

TEST(EngineStats, Show_each_stream) {
    ScriptedOptions options;
    options.eos_permille = 0;
    Bench bench(options);
    Ask a("hello there");
    a.desc.max_new_tokens = 20;
    a.desc.priority = Priority::background;
    engine::Request* request = bench.submit(a);
    EngineStats stats;
    for (int i = 0; i < 8; ++i) {
        bench.round();
        stats = bench.core->stats();
    }
    const SlotStats& s = stats.slots[0];
    ASSERT_EQ(s.request, request->request_id());
    EXPECT_EQ(s.state, 2U);
    EXPECT_EQ(s.priority, 1U);
    EXPECT_EQ(s.max_new, 20);
    EXPECT_EQ(s.prompt, 11);
    EXPECT_EQ(s.rounds, s.emitted);
    EXPECT_GT(s.emitted, 0);
    EXPECT_EQ(s.age_us, s.queue_us + s.prefill_us + s.decode_us);
    EXPECT_GT(s.prefill_us, 0);
    EXPECT_GT(s.decode_us, 0);
    EXPECT_TRUE(bench.run());
    EXPECT_EQ(bench.core->stats().slots[0].request, 0U);
}

}  // namespace
}  // namespace tenon::test
