// SPDX-License-Identifier: MIT
// The rules of the reply parser one by one: repairs, stop strings, and properties that hold for any
// reply.
#include "unit/text_reply_support.h"

namespace tenon::dsv41 {
namespace {

using namespace testing;  // NOLINT: the helpers of this test

MachineConfig with_tools(MachineStart start = MachineStart::content) {
    MachineConfig config;
    config.start = start;
    config.tools = *ToolTable::parse(kTools);
    return config;
}

std::string call_text(const std::string& name, const std::string& parameters) {
    return "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"" + name + "\">\n" + parameters +
           "</｜DSML｜ invoke>\n</｜DSML｜ calls>";
}

std::string parameter(const std::string& name, const std::string& attribute,
                      const std::string& value) {
    return "<｜DSML｜ parameter name=\"" + name + "\"" + attribute + ">" + value +
           "</｜DSML｜ parameter>\n";
}

/// Arguments of the only call.
std::string arguments_of(const std::string& name, const std::string& parameters) {
    const Message m = parse_text(with_tools(), call_text(name, parameters), ReplyEnd::eos);
    EXPECT_EQ(m.calls.size(), 1U);
    const std::string arguments = m.calls.empty() ? "" : m.calls[0].second;
    EXPECT_TRUE(is_json(arguments)) << arguments;
    return arguments;
}

TEST(ReplyRepair, A_value_that_is_no_json_becomes_a_string) {
    for (const auto& [value, wanted] :
         std::vector<std::pair<std::string, std::string>>{{"", "\"\""},
                                                          {"True", "\"True\""},
                                                          {"NaN", "\"NaN\""},
                                                          {"1 2", "\"1 2\""},
                                                          {"{\"a\":1}x", "\"{\\\"a\\\":1}x\""},
                                                          {" 7 ", " 7 "},
                                                          {"1e999", "1e999"},
                                                          {"\n[1]\n", "\n[1]\n"}}) {
        EXPECT_EQ(arguments_of("f", parameter("v", " string=\"false\"", value)),
                  "{\"v\": " + wanted + "}")
            << value;
        EXPECT_EQ(arguments_of("f", parameter("v", "", value)), "{\"v\": " + wanted + "}") << value;
        EXPECT_EQ(arguments_of("f", parameter("v", " string=\"maybe\"", value)),
                  "{\"v\": " + wanted + "}")
            << value;
    }
}

TEST(ReplyRepair, A_lone_wrapper_parameter_is_unwrapped) {
    const std::string object = R"({"city":"A","days":2})";
    const std::string unwrapped = R"({"city": "A", "days": 2})";

    EXPECT_EQ(arguments_of("get_weather", parameter("arguments", " string=\"true\"", object)),
              unwrapped);
    EXPECT_EQ(arguments_of("get_weather", parameter("input", " string=\"false\"", object)),
              unwrapped);
    EXPECT_EQ(arguments_of("get_weather", parameter("input", "", R"("{\"city\": \"A\"}")")),
              R"({"city": "A"})");
    // Not the only parameter, a key that the tool does not know, no object, no properties, an
    // unknown tool.
    EXPECT_EQ(
        arguments_of("get_weather", parameter("input", "", object) + parameter("days", "", "1")),
        R"({"input": {"city":"A","days":2}, "days": 1})");
    EXPECT_EQ(
        arguments_of("get_weather", parameter("days", "", "1") + parameter("input", "", object)),
        R"({"days": 1, "input": {"city":"A","days":2}})");
    EXPECT_EQ(arguments_of("get_weather", parameter("input", "", R"({"town":"A"})")),
              R"({"input": {"town":"A"}})");
    EXPECT_EQ(arguments_of("get_weather", parameter("input", "", "[1]")), R"({"input": [1]})");
    EXPECT_EQ(arguments_of("f", parameter("input", "", object)),
              R"({"input": {"city":"A","days":2}})");
    EXPECT_EQ(arguments_of("nope", parameter("input", "", object)),
              R"({"input": {"city":"A","days":2}})");
    EXPECT_EQ(arguments_of("get_weather", parameter("inputs", "", object)),
              R"({"inputs": {"city":"A","days":2}})");
}

TEST(ReplyRepair, A_wrapper_that_the_limit_cuts_goes_out_as_it_stands) {
    const std::string open =
        "<｜DSML｜ calls><｜DSML｜ invoke name=\"get_weather\"><｜DSML｜ parameter name=\"";
    const auto cut_at = [&](const std::string& rest) {
        return parse_text(with_tools(), open + rest, ReplyEnd::length).calls.at(0).second;
    };
    EXPECT_EQ(cut_at("inp"), "{\"inp");
    EXPECT_EQ(cut_at("input\""), "{\"input\": ");
    EXPECT_EQ(cut_at("input\" string=\"true\">{\"ci"), "{\"input\": \"{\\\"ci");
    EXPECT_EQ(cut_at("input\" string=\"false\">{\"ci</"), "{\"input\": {\"ci</");
    EXPECT_EQ(cut_at("input\" string=\"true\">{}</｜DSML｜ parameter>"), "{\"input\": \"{}\"");
}

TEST(ReplyRepair, A_tool_that_has_the_wrapper_name_itself_is_left_alone) {
    MachineConfig config;
    config.tools = *ToolTable::parse(
        R"([{"type":"function","function":{"name":"t","parameters":{"properties":{"input":{},"city":{}}}}}])");
    const Message m = parse_text(
        std::move(config), call_text("t", parameter("input", "", R"({"city":1})")), ReplyEnd::eos);
    EXPECT_EQ(m.calls.at(0).second, R"({"input": {"city":1}})");
}

TEST(ReplyRepair, Parameter_names_are_escaped) {
    EXPECT_EQ(arguments_of("f", parameter("a \\ b\n", "", "1")), R"({"a \\ b\n": 1})");
}

TEST(ReplyRepair, A_mention_of_the_block_is_given_back) {
    const std::string mention =
        "Use <｜DSML｜ calls> and </｜DSML｜ calls>, then <｜DSML｜ invoke> tags.\n";
    Message m =
        parse_text(with_tools(MachineStart::reasoning), mention + "</think>ok", ReplyEnd::eos);
    EXPECT_EQ(m, (Message{mention.substr(0, mention.size() - 1), "ok", "stop", {}}));
    m = parse_text(with_tools(), mention, ReplyEnd::eos);
    EXPECT_EQ(m, (Message{"", mention, "stop", {}}));
    // A call behind a mention is still a call.
    m = parse_text(with_tools(), mention + call_text("now", ""), ReplyEnd::eos);
    EXPECT_EQ(m, (Message{"",
                          mention.substr(0, mention.find("<｜DSML｜ invoke>")),
                          "tool_calls",
                          {{"now", "{}"}}}));
}

TEST(Reply, Unclosed_tags_lose_nothing_else) {
    EXPECT_EQ(arguments_of("f", "<｜DSML｜ parameter name=\"a\"</｜DSML｜ parameter>\n" +
                                    parameter("b", "", "1")),
              R"({"a": "", "b": 1})");
}

TEST(Reply, Drops_an_incomplete_character_at_the_end_only) {
    ReplyReader reader = reader_of({});
    std::vector<ParsedEvent> events;
    reader.feed_text("a\xF0\x9F", events);
    reader.feed_text("\x98\x80 b\xFF c\xE2\x82", events);
    reader.finish(ReplyEnd::length, events);

    EXPECT_EQ(add_up(events).content, "a😀 b\xEF\xBF\xBD c");
}

TEST(Reply, Counts_tokens_in_reasoning) {
    ReplyReader reader = reader_of(with_tools(MachineStart::reasoning));
    std::vector<ParsedEvent> events;
    reader.feed(std::vector<int32_t>{86, 86, 128822, 67, 67, 67}, events);  // t t </think> a a a

    EXPECT_EQ(reader.reasoning_tokens(), 3);
}

TEST(Reply, Call_ids_are_repeatable_and_differ) {
    const auto ids = [](uint64_t seed) {
        MachineConfig config = with_tools();
        config.call_id_seed = seed;
        ReplyReader reader = reader_of(std::move(config));
        std::vector<ParsedEvent> events;
        reader.feed_text(
            "<｜DSML｜ calls><｜DSML｜ invoke name=\"a\"></｜DSML｜ invoke><｜DSML｜ invoke "
            "name=\"b\">",
            events);
        std::vector<std::string> found;
        for (const ParsedEvent& e : events) {
            if (e.kind == ReplyEventKind::call) {
                found.push_back(e.id);
                EXPECT_EQ(e.id.substr(0, 5), "call_");
                EXPECT_EQ(e.id.size(), 29U);
                EXPECT_TRUE(std::all_of(e.id.begin() + 5, e.id.end(), [](char c) {
                    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                           (c >= 'a' && c <= 'z');
                }));
            }
        }
        return found;
    };
    const std::vector<std::string> first = ids(1), again = ids(1), other = ids(2);

    ASSERT_EQ(first.size(), 2U);
    EXPECT_EQ(first, again);
    EXPECT_NE(first[0], first[1]);
    EXPECT_NE(first[0], other[0]);
}

std::string stopped_content(std::vector<std::string> stops, const std::string& text,
                            const std::vector<std::string>& pieces) {
    MachineConfig config = with_tools();
    config.stops = std::move(stops);
    const Message whole = parse_text(config, text, ReplyEnd::eos);
    EXPECT_EQ(parse_pieces(config, pieces, ReplyEnd::eos), whole);
    EXPECT_EQ(whole.finish, "stop");
    return whole.content;
}

TEST(StopStrings, End_the_content_before_the_first_match) {
    Random random(9);
    const auto check = [&](std::vector<std::string> stops, const std::string& text) {
        return stopped_content(std::move(stops), text, cut(text, random, 3));
    };
    EXPECT_EQ(check({"STOP"}, "aSTOSTOPb"), "aSTO");
    EXPECT_EQ(check({"aab"}, "aaaab"), "aa");
    EXPECT_EQ(check({"abcd", "bc"}, "xabcd"), "xa");  // "bc" is complete first
    EXPECT_EQ(check({"bc", "abc"}, "xabcd"), "x");    // both end here: the longer one
    EXPECT_EQ(check({""}, "abc"), "abc");
    EXPECT_EQ(check({"\n\n"}, "a\nb\n\nc"), "a\nb");
    EXPECT_EQ(check({"\n"}, "\n\nabc"), "abc");  // dropped newlines are no content
    EXPECT_EQ(check({"日本"}, "x日日本y"), "x日");
    EXPECT_EQ(check({"<end>"}, "a<en<end>"), "a<en");
    EXPECT_EQ(check({"x </"}, "ax </b"), "a");
    EXPECT_EQ(check({"never"}, "neve"), "neve");
    EXPECT_EQ(check({"ab"}, "a</think>bc"), "");  // content reads "abc"
}

TEST(StopStrings, Do_not_match_in_reasoning_or_calls) {
    MachineConfig config = with_tools(MachineStart::reasoning);
    config.stops = {"Oslo", "STOP"};
    const Message m = parse_text(
        config,
        "STOP</think>c" + call_text("get_weather", parameter("city", " string=\"true\"", "Oslo")),
        ReplyEnd::eos);
    EXPECT_EQ(m, (Message{"STOP", "c", "tool_calls", {{"get_weather", R"({"city": "Oslo"})"}}}));
}

TEST(StopStrings, Are_exact_over_token_borders) {
    const Tokenizer& t = tokenizer("text/tokenizer");
    const std::string text = "The answer is forty-two, said the machine. END of it";
    const std::vector<int32_t> ids = encode(t, text);
    for (size_t begin = 0; begin < text.size(); ++begin) {
        for (const size_t length : {1U, 3U, 9U}) {
            const std::string stop = text.substr(begin, length);
            MachineConfig config;
            config.stops = {stop};
            EXPECT_EQ(parse_ids(config, ids, ReplyEnd::eos, 1).content,
                      text.substr(0, text.find(stop)))
                << stop;
        }
    }
}

/// Text of fragments that replies are made of, valid or not.
std::string random_reply(Random& random) {
    static const std::vector<std::string> kFragments = {
        "a",
        " ",
        "\n",
        "\n\n",
        "<",
        "</",
        "<think>",
        "</think>",
        "ok",
        "\r\n",
        "<｜DSML｜ calls>\n",
        "<｜DSML｜ calls>",
        "</｜DSML｜ calls>",
        "</｜DSML｜tool_calls>",
        "<｜DSML｜ invoke name=\"f\">\n",
        "<｜DSML｜ invoke name=\"get_weather\">",
        "</｜DSML｜ invoke>\n",
        "<｜DSML｜ parameter name=\"city\" string=\"true\">",
        "<｜DSML｜ parameter name=\"input\">",
        "<｜DSML｜ parameter name=\"k\" string=\"false\">",
        "</｜DSML｜ parameter>\n",
        "\"",
        "1",
        "{\"city\": 1}",
        "\\",
        "｜",
        "｜DSML｜",
        "<｜DSML｜",
        "</｜DSML｜",
        "é",
        "😀",
        ">",
        "invoke name=\"",
        "parameter name=\"",
        "STOP",
        "ST",
        "<｜User｜>",
        "<｜end▁of▁sentence"};
    std::string text;
    for (size_t i = 1 + random.below(20); i > 0; --i) {
        text += kFragments[random.below(kFragments.size())];
    }
    return text;
}

TEST(Reply, Any_split_of_any_text_gives_the_same_message) {
    Random random(21);
    for (int round = 0; round < 4000; ++round) {
        const std::string text = random_reply(random);
        MachineConfig config = random.below(5) == 0 ? MachineConfig{} : with_tools();
        config.start = static_cast<MachineStart>(random.below(5));
        config.parallel_tool_calls = random.below(4) != 0;
        if (random.below(3) == 0) {
            config.stops = {"STOP", "a\n"};
        }
        const ReplyEnd end = random.below(2) == 0 ? ReplyEnd::eos : ReplyEnd::length;
        const Message whole = parse_text(config, text, end);
        EXPECT_EQ(parse_pieces(config, cut(text, random, 1), end), whole) << text;
        EXPECT_EQ(parse_pieces(config, cut(text, random, 9), end), whole) << text;
        // As ids, with markers as their tokens.
        const std::vector<int32_t> ids =
            encode(tokenizer("text/tokenizer"), text, Tokenizer::Specials::parsed);
        EXPECT_EQ(parse_ids(config, ids, end, 1), whole) << text;
        EXPECT_EQ(parse_ids(config, ids, end, 5), whole) << text;
    }
}

TEST(Reply, Any_ids_are_taken) {
    Random random(5);
    for (int round = 0; round < 300; ++round) {
        std::vector<int32_t> ids;
        for (size_t i = 0; i < 60; ++i) {
            ids.push_back(random.below(3) == 0 ? 128'821 + static_cast<int32_t>(random.below(5))
                                               : static_cast<int32_t>(random.below(140'000)) - 100);
        }
        const Message whole =
            parse_ids(with_tools(MachineStart::reasoning), ids, ReplyEnd::length, 60);
        EXPECT_EQ(parse_ids(with_tools(MachineStart::reasoning), ids, ReplyEnd::length, 1), whole);
    }
}

}  // namespace
}  // namespace tenon::dsv41
