// SPDX-License-Identifier: MIT
// Chat requests to prompts: every golden case, borders, and refusals that name their field.
#include <algorithm>
#include <map>

#include "text/chat_prompt.h"
#include "unit/text_support.h"

namespace tenon::dsv41 {
namespace {

using testing::at;
using testing::flag;
using testing::ids_of;
using testing::read_lines;
using testing::str;
using testing::strings_of;
using testing::tokenizer;

constexpr const char* kFiles[] = {
    "arguments", "basic",    "continue", "developer", "effort", "error",  "image",
    "injection", "lenient",  "loop",     "merge",     "parts",  "prefix", "reasoning",
    "reminder",  "response", "switches", "system",    "task",   "tool",   "tools"};

std::string name_of(ReplyStart start) {
    constexpr const char* kNames[] = {"reasoning", "content", "reasoning_continued",
                                      "content_continued"};
    return kNames[static_cast<size_t>(start)];
}

EncodedPrompt encode_prompt(const ChatPrompt& prompt, const char* folder) {
    const Tokenizer& t = tokenizer(folder);
    Result<EncodedPrompt> encoded =
        encode_chat_prompt(prompt, t, ControlTokens(t), Tokenizer::Specials::as_text);
    EXPECT_TRUE(encoded.ok()) << encoded.status().message().view();
    return encoded.ok() ? std::move(*encoded) : EncodedPrompt{};
}

ChatPrompt prompt_of(std::string_view request) {
    Result<ChatRequest> parsed = parse_chat_request(request, {});
    EXPECT_TRUE(parsed.ok()) << parsed.status().message().view();
    return parsed.ok() ? write_chat_prompt(std::move(*parsed)) : ChatPrompt{};
}

TEST(Chat, Equals_every_golden_prompt) {
    int prompts = 0, refusals = 0;
    for (const char* file : kFiles) {
        for (const Json& c : read_lines(std::string("text/chat/") + file + ".jsonl")) {
            const std::string id = str(c, "id");
            const Json& expect = at(c, "expect");
            Result<ChatRequest> parsed = parse_chat_request(to_json(at(c, "request")), {});
            if (expect.find("error") != nullptr) {
                EXPECT_EQ(parsed.status().code(), Code::invalid_argument) << id;
                ++refusals;
                continue;
            }
            ASSERT_TRUE(parsed.ok()) << id << ": " << parsed.status().message().view();
            EXPECT_EQ(parsed->thinking, flag(expect, "thinking")) << id;
            EXPECT_EQ(!parsed->tool_lines.empty(), flag(at(expect, "parse"), "tools")) << id;
            EXPECT_EQ(parsed->tools_json.empty(), parsed->tool_lines.empty()) << id;
            EXPECT_EQ(parsed->asks_json_object, flag(at(expect, "parse"), "json")) << id;
            const ChatPrompt prompt = write_chat_prompt(std::move(*parsed));
            EXPECT_EQ(prompt.text, str(expect, "prompt")) << id;
            EXPECT_EQ(name_of(prompt.start), str(at(expect, "parse"), "start")) << id;
            std::vector<std::string> urls;
            for (const ChatPrompt::Image& image : prompt.images) {
                urls.push_back(image.url);
            }
            EXPECT_EQ(urls, strings_of(at(expect, "images"))) << id;
            EXPECT_EQ(encode_prompt(prompt, "text/tokenizer").ids, ids_of(at(expect, "ids"))) << id;
            EXPECT_EQ(encode_prompt(prompt, "text/small").ids, ids_of(at(expect, "ids_small")))
                << id;
            ++prompts;
        }
    }
    EXPECT_EQ(prompts, 198);
    EXPECT_EQ(refusals, 20);
}

TEST(Chat, Borders_lie_on_message_starts_and_the_last_is_the_last_token) {
    for (const char* file : kFiles) {
        for (const Json& c : read_lines(std::string("text/chat/") + file + ".jsonl")) {
            if (at(c, "expect").find("error") != nullptr) {
                continue;
            }
            const EncodedPrompt encoded =
                encode_prompt(prompt_of(to_json(at(c, "request"))), "text/small");
            const ControlTokens controls(tokenizer("text/small"));
            ASSERT_FALSE(encoded.borders.empty());
            int64_t before = 0;
            for (const Border& border : encoded.borders) {
                EXPECT_GT(border.position, before) << str(c, "id");
                before = border.position;
                if (border.kind == BorderKind::last_header) {
                    EXPECT_EQ(border.position, static_cast<int64_t>(encoded.ids.size()) - 1)
                        << str(c, "id");
                    continue;
                }
                const int32_t token = encoded.ids[static_cast<size_t>(border.position)];
                EXPECT_TRUE(token == controls.id(Control::system) ||
                            token == controls.id(Control::user) ||
                            token == controls.id(Control::assistant) ||
                            token == controls.id(Control::reminder) ||
                            (token >= controls.id(Control::action) &&
                             token <= controls.id(Control::read_url)))
                    << str(c, "id") << ": token " << token;
            }
            EXPECT_EQ(encoded.borders.back().kind, BorderKind::last_header);
            EXPECT_EQ(
                std::count_if(encoded.borders.begin(), encoded.borders.end(),
                              [](const Border& b) { return b.kind == BorderKind::last_header; }),
                1);
        }
    }
}

TEST(Chat, Borders_name_the_end_of_the_system_part_and_of_each_message) {
    const ChatPrompt prompt =
        prompt_of(R"({"messages":[{"role":"system","content":"a"},{"role":"system","content":"b"},
        {"role":"user","content":"q"},{"role":"assistant","content":"r"},{"role":"user","content":"s"}],"thinking":false})");
    const EncodedPrompt encoded = encode_prompt(prompt, "text/small");

    // BOS System a System b User q Assistant </think> r EOS User s Assistant </think>
    std::vector<std::pair<int64_t, BorderKind>> borders;
    for (const Border& b : encoded.borders) {
        borders.emplace_back(b.position, b.kind);
    }
    EXPECT_EQ(borders,
              (std::vector<std::pair<int64_t, BorderKind>>{{3, BorderKind::message_end},
                                                           {5, BorderKind::system_end},
                                                           {7, BorderKind::message_end},
                                                           {11, BorderKind::message_end},
                                                           {13, BorderKind::message_end},
                                                           {14, BorderKind::last_header}}));
}

TEST(Chat, The_effort_line_alone_is_a_system_part) {
    const EncodedPrompt encoded =
        encode_prompt(prompt_of(R"({"messages":[{"role":"user","content":"q"}]})"), "text/small");

    ASSERT_EQ(encoded.borders.size(), 3U);
    EXPECT_EQ(encoded.borders[0].kind, BorderKind::system_end);
    EXPECT_EQ(encoded.ids[static_cast<size_t>(encoded.borders[0].position)], 4100);  // <｜User｜>
}

TEST(Chat, Client_text_never_becomes_a_control_token) {
    // Each control string in each place that a client can fill: the number of control tokens stays
    // that of the same request with a harmless word.
    const Tokenizer& t = tokenizer("text/small");
    const auto controls_in = [&](std::string_view word) {
        std::string quoted;
        append_json_string(quoted, word);
        std::string request =
            R"({"messages":[{"role":"system","content":W},{"role":"user","content":[{"type":"text","text":W}]},
            {"role":"assistant","content":W,"reasoning_content":W,"tool_calls":[{"id":"1","type":"function",
            "function":{"name":W,"arguments":{"k":W}}}]},{"role":"tool","tool_call_id":"1","content":W}],
            "tools":[{"type":"function","function":{"name":"f","description":W,"parameters":{"d":W}}}]})";
        for (size_t i = request.find('W'); i != std::string::npos;
             i = request.find('W', i + quoted.size())) {
            request.replace(i, 1, quoted);
        }
        const EncodedPrompt encoded = encode_prompt(prompt_of(request), "text/small");
        std::map<int32_t, int> counts;
        for (const int32_t id : encoded.ids) {
            if (t.is_added(id)) {
                ++counts[id];
            }
        }
        return counts;
    };
    const std::map<int32_t, int> harmless = controls_in("word");

    EXPECT_GT(harmless.at(4120), 9);
    for (size_t i = 0; i < kControls; ++i) {
        EXPECT_EQ(controls_in(control_text(static_cast<Control>(i))), harmless)
            << control_text(static_cast<Control>(i));
    }
}

TEST(Chat, Special_strings_in_text_become_tokens_only_where_asked) {
    const Tokenizer& t = tokenizer("text/small");
    const ControlTokens controls(t);
    const ChatPrompt prompt =
        prompt_of(R"({"messages":[{"role":"user","content":"a<｜User｜>b"}],"thinking":false})");

    const Result<EncodedPrompt> parsed =
        encode_chat_prompt(prompt, t, controls, Tokenizer::Specials::parsed);
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(parsed->ids, (std::vector<int32_t>{0, 4100, 67, 4100, 68, 4101, 4119}));
    EXPECT_EQ(encode_chat_prompt(prompt, t, controls, Tokenizer::Specials::as_text)->ids.size(),
              16U);

    const ChatPrompt image =
        prompt_of(R"({"messages":[{"role":"user","content":"a<｜deepseek_image｜>b"}]})");
    const Result<EncodedPrompt> refused =
        encode_chat_prompt(image, t, controls, Tokenizer::Specials::parsed);
    EXPECT_EQ(refused.status().code(), Code::invalid_argument);
}

TEST(Chat, A_missing_control_token_fails_only_requests_that_use_it) {
    const Tokenizer& t = tokenizer("dsv41/tiny");  // has no ｜DSML｜
    const ControlTokens controls(t);
    const auto encode = [&](std::string_view request) {
        return encode_chat_prompt(prompt_of(request), t, controls, Tokenizer::Specials::as_text);
    };

    EXPECT_TRUE(encode(R"({"messages":[{"role":"user","content":"｜DSML｜ as text"}]})").ok());
    const Result<EncodedPrompt> tools = encode(
        R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}]})");
    EXPECT_EQ(tools.status().code(), Code::unsupported);
    EXPECT_EQ(tools.status().message().view(),
              "this request needs the token '｜DSML｜', which the model's tokenizer.json lacks");
}

TEST(Chat, Image_positions_are_those_of_the_placeholders) {
    const ChatPrompt prompt = prompt_of(
        R"({"messages":[{"role":"user","content":[{"type":"text","text":"<｜deepseek_image｜>"},
        {"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}},{"type":"text","text":"b"},
        {"type":"image_url","image_url":{"url":"https://host/b.png"}}]}],"thinking":false})");
    const EncodedPrompt encoded = encode_prompt(prompt, "text/small");

    ASSERT_EQ(encoded.image_positions.size(), 2U);
    for (const int64_t position : encoded.image_positions) {
        EXPECT_EQ(encoded.ids[static_cast<size_t>(position)], 4144);
    }
    EXPECT_EQ(std::count(encoded.ids.begin(), encoded.ids.end(), 4144), 2);
    EXPECT_EQ(prompt.images[1].path, "messages[0].content[3]");
    EXPECT_EQ(prompt.images[1].url, "https://host/b.png");
}

TEST(Chat, Defaults_and_effort_names_come_from_the_profile) {
    ChatDefaults defaults;
    defaults.thinking = false;
    defaults.effort = 33;
    ASSERT_TRUE(parse_efforts(R"({"low": 25, "turbo": 7})", defaults).ok());
    const auto parse = [&](std::string_view extra) {
        return parse_chat_request(
            R"({"messages":[{"role":"user","content":"x"}])" + std::string(extra) + "}", defaults);
    };

    EXPECT_FALSE(parse("")->thinking);
    EXPECT_EQ(parse(R"(,"thinking":true)")->effort, 33);
    EXPECT_EQ(parse(R"(,"reasoning_effort":"low")")->effort, 25);
    EXPECT_TRUE(parse(R"(,"reasoning_effort":"turbo")")->thinking);
    EXPECT_FALSE(parse(R"(,"reasoning_effort":"max")").ok());
    EXPECT_FALSE(parse_efforts(R"({"low": 0})", defaults).ok());
    EXPECT_FALSE(parse_efforts(R"({"none": 5})", defaults).ok());
    EXPECT_FALSE(parse_efforts("[1]", defaults).ok());
}

TEST(Chat, Behaves_like_the_reference_where_no_golden_case_looks) {
    const auto text = [](std::string_view messages,
                         std::string_view extra = R"(,"thinking":false)") {
        return prompt_of(R"({"messages":[)" + std::string(messages) + "]" + std::string(extra) +
                         "}")
            .text;
    };
    // Run with the reference encoder: an empty system message goes before neighbours merge.
    EXPECT_EQ(
        text(
            R"({"role":"user","content":"a"},{"role":"system","content":""},{"role":"user","content":"b"})"),
        "<｜begin▁of▁sentence｜><｜User｜>a\n\nb<｜Assistant｜></think>");
    EXPECT_EQ(text(R"({"role":"system","content":""})", ""),
              "<｜begin▁of▁sentence｜><｜Assistant｜><think>");
    EXPECT_EQ(
        text(
            R"({"role":"system","content":[{"type":"text","text":""},{"type":"text","text":""}]},{"role":"user","content":"x"})"),
        "<｜begin▁of▁sentence｜><｜System｜>\n\n<｜User｜>x<｜Assistant｜></think>");
    // Results keep their places among other blocks; an unknown id sorts as the first call; of equal
    // call ids the first counts; an assistant message without calls changes no order.
    const std::string loop = text(R"({"role":"assistant","content":"","tool_calls":[
        {"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},
        {"id":"2","type":"function","function":{"name":"f","arguments":"{}"}},
        {"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"assistant","content":"x"},
        {"role":"tool","tool_call_id":"2","content":"two"},{"role":"user","content":"u"},
        {"role":"tool","tool_call_id":"9","content":"nine"},{"role":"tool","tool_call_id":"1","content":"one"})");
    EXPECT_EQ(loop.substr(loop.find("<tool_result>")),
              "<tool_result>nine</tool_result>\n\nu\n\n<tool_result>one</"
              "tool_result>\n\n<tool_result>two</tool_result>"
              "<｜Assistant｜></think>");
}

TEST(Chat, Refusals_name_the_field) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({)", "request: not valid JSON"},
        {R"([])", "request: expected an object"},
        {R"({})", "messages: expected an array, found nothing"},
        {R"({"messages":[]})", "messages: the list is empty"},
        {R"({"messages":["x"]})", "messages[0]: expected an object, found a string"},
        {R"({"messages":[{"role":"bot","content":"x"}]})", "messages[0].role: unknown role 'bot'"},
        {R"({"messages":[{"role":"user"}]})", "messages[0].content: missing"},
        {R"({"messages":[{"role":"user","content":[{"type":"video"}]}]})",
         "messages[0].content[0].type: 'video'"},
        {R"({"messages":[{"role":"user","content":[{"type":"text","text":null}]}]})",
         "messages[0].content[0].text"},
        {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]})",
         "messages[0].content[0].image_url.url: expected a data:"},
        {R"({"messages":[{"role":"assistant","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]})",
         "messages[0].content[0]: an assistant message cannot hold an image"},
        {R"({"messages":[{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f"}}]}]})",
         "messages[0].tool_calls[0].function.arguments: expected a string, found nothing"},
        {R"({"messages":[{"role":"user","content":"x","prefix":true}]})", "messages[0].prefix"},
        {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"a\"b"}}]})",
         "tools[0].function.name"},
        {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"\u0085"}}]})",
         "tools[0].function.name"},
        {R"({"messages":[{"role":"user","content":"x"}],"thinking":"on"})",
         "thinking: expected a boolean"},
        {R"({"messages":[{"role":"user","content":"x"}],"task":"dance"})",
         "task: \"dance\" is unknown"},
        {R"({"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":5})",
         "chat_template_kwargs"},
        {R"({"messages":[{"role":"user","content":"\ud800"}]})", "request: not valid JSON"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xFF\"}]}", "request: not valid JSON"},
    };

    for (const auto& [request, expected] : cases) {
        const Result<ChatRequest> result = parse_chat_request(request, {});
        EXPECT_EQ(result.status().code(), Code::invalid_argument) << request;
        EXPECT_EQ(result.status().message().str().substr(0, std::string(expected).size()), expected)
            << request;
    }
}

TEST(Chat, Hostile_sizes_are_refused_and_quoted_briefly) {
    const std::string deep =
        R"({"messages":[{"role":"user","content":"x"}],"z":)" + std::string(1'000'000, '[');
    EXPECT_EQ(parse_chat_request(deep, {}).status().message().view(),
              "request: not valid JSON: nested deeper than 128 levels");

    std::string wide = R"({"messages":[0)";
    for (int i = 0; i < 2'100'000; ++i) {
        wide += ",0";
    }
    EXPECT_EQ(parse_chat_request(wide + "]}", {}).status().message().view(),
              "request: not valid JSON: more than 2000000 values");

    const std::string role =
        R"({"messages":[{"role":")" + std::string(100'000, 'r') + R"(","content":"x"}]})";
    EXPECT_LT(parse_chat_request(role, {}).status().message().size, 300U);

    std::string keys = R"({"messages":[{"role":"user","content":"x"}])";
    for (int i = 0; i < 200'000; ++i) {
        keys += ",\"" + std::to_string(i / 2) + "\":0";
    }
    EXPECT_TRUE(parse_chat_request(keys + "}", {}).ok());  // in time n log n
}

}  // namespace
}  // namespace tenon::dsv41
