// SPDX-License-Identifier: MIT
// The codec through the interface that the engine sees.
#include "text/codec.h"

#include <algorithm>
#include <set>

#include "unit/text_support.h"

namespace tenon::dsv41 {
namespace {

using testing::at;
using testing::golden_path;
using testing::ids_of;
using testing::read_file;
using testing::read_lines;
using testing::str;

Ref<TextCodec> make(const char* folder, const CodecOptions& options = {}) {
    Ref<TextCodec> codec;
    const Status status = make_codec(
        read_file(golden_path(std::string(folder) + "/tokenizer.json")), options, codec.out());
    EXPECT_TRUE(status.ok()) << status.message().view();
    return codec;
}

class Collector final : public ReplyEvents {
  public:
    void on_event(const ReplyEvent& e) noexcept override {
        static constexpr const char* kNames[] = {
            "reasoning:", "content:", "call:", "arguments:", "finish:"};
        text += kNames[static_cast<size_t>(e.kind)] + e.text.str() + "|";
        if (e.kind == ReplyEventKind::call) {
            call_id = e.id.str();
        }
    }
    std::string text, call_id;
};

TEST(Codec, Describes_the_released_vocabulary) {
    const Ref<TextCodec> codec = make("text/tokenizer", {.image_id = 129264});
    const TextInfo info = codec->info();

    EXPECT_EQ(info.vocab, 129280);
    EXPECT_EQ(info.bos, 0);
    EXPECT_EQ(info.eos, 1);
    EXPECT_EQ(info.pad, 2);
    EXPECT_EQ(info.think_open, 128821);
    EXPECT_EQ(info.think_close, 128822);
    EXPECT_EQ(info.image, 129264);
    EXPECT_EQ(info.tokenizer_digest.view(),
              "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b");
    // The 422 sentinels of image data and the three placeholders.
    const std::set<int32_t> forbidden(info.forbidden.begin(), info.forbidden.end());
    EXPECT_EQ(forbidden.size(), 425U);
    EXPECT_EQ(*forbidden.begin(), 128847);
    EXPECT_EQ(*forbidden.rbegin(), 129279);
    EXPECT_EQ(forbidden.count(129271), 0U);
}

TEST(Codec, Renders_a_request_with_all_that_the_engine_asks_for) {
    const Ref<TextCodec> codec = make("text/small");
    Ref<Prompt> prompt;
    const Status status = codec->render(
        R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}],
            "tools":[{"type":"function","function":{"name":"f"}}],"parallel_tool_calls":false,
            "response_format":{"type":"json_object"}})",
        prompt.out());
    ASSERT_TRUE(status.ok()) << status.message().view();

    EXPECT_TRUE(prompt->thinking());
    EXPECT_TRUE(prompt->keeps_reasoning());
    EXPECT_FALSE(prompt->parallel_tool_calls());
    EXPECT_TRUE(prompt->json_reply());
    EXPECT_EQ(prompt->start(), ReplyStart::reasoning);
    EXPECT_EQ(prompt->tools_json().view(), R"([{"type": "function", "function": {"name": "f"}}])");
    ASSERT_EQ(prompt->images().size, 1U);
    const PromptImage& image = prompt->images()[0];
    EXPECT_EQ(image.url.view(), "data:image/png;base64,AA");
    EXPECT_EQ(image.part.view(), "messages[0].content[0]");
    EXPECT_EQ(prompt->ids()[static_cast<uint64_t>(image.position)], codec->info().image);
    const Span<const Border> borders = prompt->borders();
    EXPECT_EQ(borders[borders.size - 1].kind, BorderKind::last_header);
    EXPECT_EQ(borders[borders.size - 1].position, static_cast<int64_t>(prompt->ids().size) - 1);
    EXPECT_EQ(prompt->text().view().substr(0, 29), "<｜begin▁of▁sentence｜>");
}

TEST(Codec, Keeps_reasoning_only_where_the_next_turn_repeats_it) {
    const Ref<TextCodec> codec = make("text/small");
    const auto keeps = [&](const char* extra) {
        Ref<Prompt> prompt;
        EXPECT_TRUE(codec
                        ->render(std::string(R"({"messages":[{"role":"user","content":"x"}])") +
                                     extra + "}",
                                 prompt.out())
                        .ok());
        return prompt->keeps_reasoning();
    };
    EXPECT_FALSE(keeps(""));
    EXPECT_TRUE(keeps(R"(,"thinking":false)"));
    EXPECT_TRUE(keeps(R"(,"tools":[{"type":"function","function":{"name":"f"}}])"));
    EXPECT_FALSE(
        keeps(R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")"));
}

/// Knows one turn: the `count`-th that is asked for.
class OneTurn final : public TurnReplay {
  public:
    OneTurn(int32_t count, std::vector<int32_t> ids) : left_(count), ids_(std::move(ids)) {}
    void add_prompt(Span<const int32_t> ids) noexcept override {
        prompt.insert(prompt.end(), ids.begin(), ids.end());
    }
    Span<const int32_t> find(const VisibleTurn& turn, bool shows_reasoning) noexcept override {
        asked += format("[{}|{}|{}|", turn.reasoning, turn.content, shows_reasoning);
        for (const VisibleCall& call : turn.calls) {
            asked += format("{} {} {}", call.id, call.name, call.arguments);
        }
        asked += "]";
        lengths.push_back(prompt.size());
        return --left_ == 0 ? Span<const int32_t>(ids_) : Span<const int32_t>();
    }
    std::vector<int32_t> prompt;
    std::vector<size_t> lengths;
    std::string asked;

  private:
    int32_t left_;
    std::vector<int32_t> ids_;
};

constexpr const char* kTalk =
    R"({"messages":[{"role":"user","content":"a"},
        {"role":"assistant","reasoning_content":"r1","content":"b"},
        {"role":"user","content":"c"},
        {"role":"assistant","reasoning_content":"r2","content":"d","tool_calls":[{"id":"call_x",
         "type":"function","function":{"name":"f","arguments":"{ \"k\": 1 }"}}]},
        {"role":"tool","tool_call_id":"call_x","content":"e"}])";
constexpr const char* kTools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";

TEST(Codec, Turns_that_the_replay_knows_are_written_as_their_ids) {
    const Ref<TextCodec> codec = make("text/small");
    const TextInfo info = codec->info();
    for (const bool tools : {true, false}) {
        const std::string body = kTalk + std::string(tools ? kTools : "") + "}";
        Ref<Prompt> plain;
        ASSERT_TRUE(codec->render(body, plain.out()).ok());
        const std::vector<int32_t> canonical(plain->ids().begin(), plain->ids().end());
        for (const int32_t turn : {1, 2, 3}) {
            const std::vector<int32_t> known = {300, 301, info.think_close, 302};
            OneTurn replay(turn, known);
            Ref<Prompt> prompt;
            ASSERT_TRUE(codec->render_with(body, replay, prompt.out()).ok());
            const std::vector<int32_t> ids(prompt->ids().begin(), prompt->ids().end());

            EXPECT_EQ(replay.asked, tools ? "[r1|b|true|][r2|d|true|call_x f { \"k\": 1 }]"
                                          : "[r1|b|false|][r2|d|false|call_x f { \"k\": 1 }]");
            if (turn == 3) {
                EXPECT_EQ(ids, canonical) << "nothing was known";
                continue;
            }
            // Up to the header's first token as ever, then the marker, the ids and the end token.
            const size_t at = replay.lengths[static_cast<size_t>(turn) - 1];
            std::vector<int32_t> expected(canonical.begin(),
                                          canonical.begin() + static_cast<std::ptrdiff_t>(at));
            expected.push_back(tools ? info.think_open : info.think_close);
            expected.insert(expected.end(), known.begin(), known.end());
            const auto end = std::find(canonical.begin() + static_cast<std::ptrdiff_t>(at),
                                       canonical.end(), info.eos);
            expected.insert(expected.end(), end, canonical.end());
            EXPECT_EQ(ids, expected) << "turn " << turn;
            EXPECT_TRUE(std::equal(replay.prompt.begin(), replay.prompt.end(), ids.begin()));
            // Borders follow: the last user turn still ends right before the header.
            const Span<const Border> borders = prompt->borders();
            EXPECT_EQ(borders.size, plain->borders().size);
            EXPECT_EQ(borders[borders.size - 1].position, static_cast<int64_t>(ids.size()) - 1);
            EXPECT_EQ(ids.size() - static_cast<size_t>(borders[borders.size - 2].position), 2U);
        }
    }
}

TEST(Codec, Options_set_the_defaults) {
    const Ref<TextCodec> codec =
        make("text/small", {.thinking = false, .effort = 12, .efforts_json = R"({"low": 3})"});
    Ref<Prompt> prompt;
    ASSERT_TRUE(
        codec->render(R"({"messages":[{"role":"user","content":"x"}]})", prompt.out()).ok());
    EXPECT_FALSE(prompt->thinking());
    ASSERT_TRUE(codec
                    ->render(R"({"messages":[{"role":"user","content":"x"}],"thinking":true})",
                             prompt.out())
                    .ok());
    EXPECT_NE(prompt->text().view().find("Reasoning Effort: 12 "), std::string_view::npos);

    const Ref<TextCodec> specials = make("text/small", {.text_specials = true});
    ASSERT_TRUE(
        specials
            ->render(R"({"messages":[{"role":"user","content":"<｜User｜>"}],"thinking":false})",
                     prompt.out())
            .ok());
    EXPECT_EQ(prompt->ids().size, 5U);
}

TEST(Codec, Bad_options_and_files_are_refused) {
    const std::string json = read_file(golden_path("text/small/tokenizer.json"));
    const auto status = [&](const CodecOptions& options, const std::string& text) {
        TextCodec* codec = nullptr;
        Status result = make_codec(text, options, &codec);
        EXPECT_EQ(codec, nullptr);
        return result;
    };
    EXPECT_EQ(status({.effort = 0}, json).message().view(), "effort = 0 is out of range 1…100");
    EXPECT_EQ(status({.efforts_json = R"({"low":"x"})"}, json).code(), Code::invalid_argument);
    EXPECT_EQ(
        status({.image_id = 5}, json).message().view(),
        "tokenizer.json: '<｜deepseek_image｜>' has id 4144, config.json says image_token_id = 5");
    EXPECT_EQ(status({}, "{").code(), Code::invalid_argument);
}

TEST(Codec, Refuses_requests_with_a_message_that_names_the_field) {
    const Ref<TextCodec> codec = make("dsv41/tiny");
    Ref<Prompt> prompt;
    Status status = codec->render(R"({"messages":[{"role":"user"}]})", prompt.out());
    EXPECT_EQ(status.code(), Code::invalid_argument);
    EXPECT_EQ(status.message().view(),
              "messages[0].content: missing; expected a string or a list of parts");
    status =
        codec->render(R"({"messages":[{"role":"latest_reminder","content":"x"}]})", prompt.out());
    EXPECT_EQ(status.code(), Code::unsupported);
    EXPECT_FALSE(prompt);
    const std::string huge =
        R"({"messages":[{"role":"user","content":")" + std::string(33 << 20, 'x') + "\"}]}";
    status = codec->render(huge, prompt.out());
    EXPECT_EQ(status.code(), Code::invalid_argument);
    EXPECT_NE(status.message().view().find("at most 33554432 are read"), std::string_view::npos);
    ASSERT_TRUE(
        codec->render(R"({"messages":[{"role":"user","content":"x"}]})", prompt.out()).ok());
}

TEST(Codec, Encodes_and_decodes_by_flags) {
    const Ref<TextCodec> codec = make("text/small");
    Ref<TokenList> list;
    ASSERT_TRUE(codec->encode("a<think>b", 0, list.out()).ok());
    const size_t plain = list->ids().size;
    ASSERT_TRUE(codec->encode("a<think>b", kParseSpecials, list.out()).ok());
    EXPECT_LT(list->ids().size, plain);
    Ref<Blob> text;
    const int32_t ids[] = {67, 1, 68};
    ASSERT_TRUE(codec->decode(ids, 0, text.out()).ok());
    EXPECT_EQ(text->view().view(), "a<｜end▁of▁sentence｜>b");
    ASSERT_TRUE(codec->decode(ids, kSkipSpecials, text.out()).ok());
    EXPECT_EQ(text->view().view(), "ab");
    const int32_t wrong[] = {67, 4160};
    EXPECT_EQ(codec->decode(wrong, 0, text.out()).code(), Code::invalid_argument);
    EXPECT_EQ(codec->encode("\xFF", 0, list.out()).code(), Code::invalid_argument);
    EXPECT_EQ(codec->token_bytes(67).view(), "a");
    EXPECT_EQ(codec->token_bytes(9999).size, 0U);
    Ref<StreamDecoder> decoder;
    ASSERT_TRUE(codec->make_decoder(0, decoder.out()).ok());
    EXPECT_EQ(decoder->feed(ids).view(), "a<｜end▁of▁sentence｜>b");
    EXPECT_EQ(decoder->flush().view(), "");
}

TEST(Codec, Parses_a_reply_into_events) {
    const Ref<TextCodec> codec = make("text/tokenizer");
    const StrView stops[] = {"STOP"};
    ReplyParserConfig config;
    config.start = ReplyStart::reasoning;
    config.stops = stops;
    Ref<ReplyParser> parser;
    ASSERT_TRUE(codec->make_parser(config, parser.out()).ok());
    Collector events;
    const int32_t ids[] = {86, 128822, 67};  // t </think> a
    ASSERT_TRUE(parser->feed(ids, events).ok());
    EXPECT_FALSE(parser->stopped());
    ASSERT_TRUE(parser->feed_text(" STOP b", events).ok());
    EXPECT_TRUE(parser->stopped());
    ASSERT_TRUE(parser->finish(ReplyEnd::length, events).ok());
    EXPECT_EQ(events.text, "reasoning:t|content:a|content: |finish:stop|");
    EXPECT_EQ(parser->reasoning_tokens(), 2);

    config.tools_json = "{}";
    EXPECT_EQ(codec->make_parser(config, parser.out()).code(), Code::invalid_argument);
    config.tools_json = R"([{"type":"function","function":{"name":"f"}}])";
    config.start = ReplyStart::content;
    config.call_id_seed = 0;
    ASSERT_TRUE(codec->make_parser(config, parser.out()).ok());
    Collector calls;
    ASSERT_TRUE(
        parser->feed_text("<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"></｜DSML｜ invoke>", calls)
            .ok());
    EXPECT_EQ(calls.text, "call:f|arguments:{}|");
    EXPECT_EQ(calls.call_id.size(), 29U);
}

TEST(Codec, Parses_calls_of_tools_that_are_not_described) {
    const Ref<TextCodec> codec = make("text/small");
    const auto parse = [&](ReplyStart start, const char* tools, const char* text) {
        ReplyParserConfig config;
        config.start = start;
        config.tools_json = tools;
        Ref<ReplyParser> parser;
        EXPECT_TRUE(codec->make_parser(config, parser.out()).ok());
        Collector events;
        EXPECT_TRUE(parser->feed_text(text, events).ok());
        return events.text;
    };
    const char* call = "<｜DSML｜ invoke name=\"f\"></｜DSML｜ invoke>";
    EXPECT_EQ(parse(ReplyStart::content, "[]", call), "call:f|arguments:{}|");
    EXPECT_EQ(parse(ReplyStart::content, "", call), std::string("content:") + call + "|");
    EXPECT_EQ(parse(ReplyStart::calls, "[]", call), "call:f|arguments:{}|");
}

TEST(Codec, The_stop_matcher_hits_at_the_token_where_the_parser_stops) {
    const Ref<TextCodec> codec = make("text/tokenizer");
    for (const char* file : {"text", "calls", "malformed"}) {
        for (const Json& c : read_lines(std::string("text/replies/") + file + ".jsonl")) {
            for (const char* stop : {"STOP", "a", "\n\n", "c\n"}) {
                const StrView stops[] = {stop};
                ReplyParserConfig config;
                config.start =
                    str(c, "start") == "reasoning" ? ReplyStart::reasoning : ReplyStart::content;
                config.tools_json = R"([{"type":"function","function":{"name":"f"}}])";
                config.stops = stops;
                Ref<ReplyParser> parser;
                Ref<StopMatcher> matcher;
                ASSERT_TRUE(codec->make_parser(config, parser.out()).ok());
                ASSERT_TRUE(codec->make_stop(config, matcher.out()).ok());
                Collector events;
                for (const int32_t id : ids_of(at(c, "ids"))) {
                    const bool was_stopped = parser->stopped();
                    ASSERT_TRUE(parser->feed(Span<const int32_t>(&id, 1), events).ok());
                    EXPECT_EQ(matcher->feed(id), parser->stopped() && !was_stopped) << str(c, "id");
                }
            }
        }
    }
}

TEST(Codec, Without_stop_strings_the_matcher_never_hits) {
    const Ref<TextCodec> codec = make("text/small");
    Ref<StopMatcher> matcher;
    ASSERT_TRUE(codec->make_stop({}, matcher.out()).ok());
    for (int32_t id = 0; id < 300; ++id) {
        EXPECT_FALSE(matcher->feed(id));
    }
}

}  // namespace
}  // namespace tenon::dsv41
