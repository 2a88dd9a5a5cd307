// SPDX-License-Identifier: MIT
// Bodies that are no JSON, too much JSON, or JSON with a wrong field.
#include "protocol/frontend_rig.h"

namespace tenon::testing {

namespace {

struct BodyCase {
    const char* name;
    std::string body;
    int status;
    const char* param;  ///< "" = null
    const char* says;
};

std::ostream& operator<<(std::ostream& out, const BodyCase& c) {
    return out << c.name;
}

// A chat body with one more member.
std::string with(const std::string& member) {
    return R"({"messages":[{"role":"user","content":"hi"}],)" + member + "}";
}

std::string nested(int depth) {
    return with("\"x\":" + std::string(static_cast<size_t>(depth), '[') +
                std::string(static_cast<size_t>(depth), ']'));
}

std::vector<BodyCase> chat_cases() {
    return {
        {"empty_text", " ", 400, "", "not valid JSON"},
        {"cut", R"({"messages":[{"role")", 400, "", "not valid JSON"},
        {"garbage_behind", with("\"n\":1") + "x", 400, "", "not valid JSON"},
        {"two_texts", with("\"n\":1") + with("\"n\":1"), 400, "", "not valid JSON"},
        {"comment", "/* */" + with("\"n\":1"), 400, "", "not valid JSON"},
        {"single_quotes", "{'messages':[]}", 400, "", "not valid JSON"},
        {"array", "[1]", 400, "", "expected a JSON object"},
        {"string", "\"hi\"", 400, "", "expected a JSON object"},
        {"null", "null", 400, "", "expected a JSON object"},
        {"nan", with("\"temperature\":NaN"), 400, "", "not valid JSON"},
        {"infinity", with("\"temperature\":Infinity"), 400, "", "not valid JSON"},
        {"beyond_double", with("\"temperature\":1e400"), 400, "", "not valid JSON"},
        {"lone_high_surrogate", with(R"("user":"\ud800")"), 400, "", "surrogate"},
        {"lone_low_surrogate", with(R"("user":"\udc00")"), 400, "", "surrogate"},
        {"invalid_utf8", with("\"user\":\"\xff\""), 400, "", "UTF-8"},
        {"overlong_utf8", with("\"user\":\"\xc0\xaf\""), 400, "", "UTF-8"},
        {"utf8_surrogate", with("\"user\":\"\xed\xa0\x80\""), 400, "", "UTF-8"},
        {"raw_newline_in_string", with("\"user\":\"a\nb\""), 400, "", "not valid JSON"},
        {"too_deep", nested(200), 400, "", "deeper than 128"},
        {"far_too_deep", nested(500'000), 400, "", "deeper than 128"},
        {"duplicate_key", with(R"("n":1,"n":2)"), 400, "n", "twice"},
        {"duplicate_inner_key",
         R"({"messages":[{"role":"user","content":"a"},{"role":"user","role":"system"}]})", 400,
         "messages[1].role", "twice"},
        {"model_type", with("\"model\":7"), 400, "model", "expected a string"},
        {"unknown_model", with("\"model\":\"gpt\""), 404, "model", "not served here"},
        {"messages_missing", "{}", 400, "messages", "messages"},
        {"messages_type", R"({"messages":"hi"})", 400, "messages", "messages"},
        {"role_missing", R"({"messages":[{"content":"x"}]})", 400, "messages[0].role", "missing"},
        {"temperature_type", with("\"temperature\":\"hot\""), 400, "temperature", "a number"},
        {"temperature_negative", with("\"temperature\":-0.1"), 400, "temperature", "out of range"},
        {"temperature_high", with("\"temperature\":101"), 400, "temperature", "out of range"},
        {"temperature_boolean", with("\"temperature\":true"), 400, "temperature", "a number"},
        {"top_p_zero", with("\"top_p\":0"), 400, "top_p", "out of range"},
        {"top_p_high", with("\"top_p\":1.01"), 400, "top_p", "out of range"},
        {"min_p_one", with("\"min_p\":1"), 400, "min_p", "out of range"},
        {"top_k_fraction", with("\"top_k\":1.5"), 400, "top_k", "an integer"},
        {"presence_range", with("\"presence_penalty\":2.1"), 400, "presence_penalty", "range"},
        {"frequency_range", with("\"frequency_penalty\":-2.1"), 400, "frequency_penalty", "range"},
        {"repetition_zero", with("\"repetition_penalty\":0"), 400, "repetition_penalty", "range"},
        {"seed_text", with("\"seed\":\"1\""), 400, "seed", "integer"},
        {"seed_fraction", with("\"seed\":1.5"), 400, "seed", "integer"},
        {"max_tokens_zero", with("\"max_tokens\":0"), 400, "max_tokens", "out of range"},
        {"max_tokens_negative", with("\"max_tokens\":-1"), 400, "max_tokens", "out of range"},
        {"max_tokens_huge", with("\"max_tokens\":18446744073709551615"), 400, "max_tokens",
         "range"},
        {"max_completion_type", with("\"max_completion_tokens\":\"9\""), 400,
         "max_completion_tokens", "an integer"},
        {"n_zero", with("\"n\":0"), 400, "n", "out of range"},
        {"n_large", with("\"n\":9"), 400, "n", "out of range"},
        {"stop_number", with("\"stop\":7"), 400, "stop", "a string or a list"},
        {"stop_empty", with("\"stop\":\"\""), 400, "stop", "stop string"},
        {"stop_inner_type", with("\"stop\":[\"a\",1]"), 400, "stop[1]", "a string"},
        {"stop_ids_range", with("\"stop_token_ids\":[300]"), 400, "stop_token_ids[0]", "300"},
        {"stream_type", with("\"stream\":\"yes\""), 400, "stream", "a boolean"},
        {"stream_options_alone", with(R"("stream_options":{"include_usage":true})"), 400,
         "stream_options", "stream"},
        {"stream_options_type", with(R"("stream":true,"stream_options":1)"), 400, "stream_options",
         "an object"},
        {"include_usage_type", with(R"("stream":true,"stream_options":{"include_usage":1})"), 400,
         "stream_options.include_usage", "a boolean"},
        {"bias_type", with("\"logit_bias\":[1]"), 400, "logit_bias", "an object"},
        {"bias_key", with(R"("logit_bias":{"a":1})"), 400, "logit_bias", "token id"},
        {"bias_key_range", with(R"("logit_bias":{"300":1})"), 400, "logit_bias", "token id"},
        {"bias_value", with(R"("logit_bias":{"5":101})"), 400, "logit_bias.5", "range"},
        {"bias_null", with(R"("logit_bias":{"5":null})"), 400, "logit_bias.5", "null"},
        {"logprobs_type", with("\"logprobs\":5"), 400, "logprobs", "a boolean"},
        {"top_logprobs_alone", with("\"top_logprobs\":5"), 400, "top_logprobs", "logprobs"},
        {"top_logprobs_range", with("\"logprobs\":true,\"top_logprobs\":21"), 400, "top_logprobs",
         "range"},
        {"priority_word", with("\"priority\":\"urgent\""), 400, "priority", "foreground"},
        {"draft_type", with("\"draft\":1"), 400, "draft", "a boolean"},
        {"json_object", with(R"("response_format":{"type":"json_object"})"), 400, "response_format",
         "structured"},
        {"json_schema", with(R"("response_format":{"type":"json_schema","json_schema":{}})"), 400,
         "response_format", "structured"},
        {"response_format_type", with("\"response_format\":\"text\""), 400, "response_format",
         "an object"},
        {"guided_json", with("\"guided_json\":{}"), 400, "guided_json", "structured"},
        {"guided_regex", with("\"guided_regex\":\"a\""), 400, "guided_regex", "structured"},
        {"guided_choice", with("\"guided_choice\":[\"a\"]"), 400, "guided_choice", "structured"},
        {"guided_grammar", with("\"guided_grammar\":\"a\""), 400, "guided_grammar", "structured"},
        {"structured_outputs", with("\"structured_outputs\":{}"), 400, "structured_outputs",
         "structured"},
        {"thinking_budget", with("\"thinking_budget\":100"), 400, "thinking_budget", "reasoning"},
        {"tool_choice_required", with("\"tool_choice\":\"required\""), 400, "tool_choice", "force"},
        {"tool_choice_named", with(R"("tool_choice":{"type":"function","function":{"name":"f"}})"),
         400, "tool_choice", "force"},
        {"tool_choice_word", with("\"tool_choice\":\"maybe\""), 400, "tool_choice", "'maybe'"},
        {"image",
         R"({"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url"}]}]})",
         400, "messages[0].content[1]", "text only"},
        {"audio", with("\"modalities\":[\"text\",\"audio\"]"), 400, "modalities", "text only"},
        {"loop_guard", with("\"loop_guard\":true"), 400, "loop_guard", "loop guard"},
        {"functions", with("\"functions\":[]"), 400, "functions", "tools"},
    };
}

std::vector<BodyCase> completion_cases() {
    return {
        {"prompt_missing", "{}", 400, "prompt", "missing"},
        {"prompt_number", R"({"prompt":7})", 400, "prompt", "a string or a list"},
        {"prompt_empty", R"({"prompt":""})", 400, "prompt", "empty"},
        {"prompt_empty_list", R"({"prompt":[]})", 400, "prompt", "empty"},
        {"prompts", R"({"prompt":["a","b"]})", 400, "prompt", "2 prompts"},
        {"id_lists", R"({"prompt":[[1],[2]]})", 400, "prompt", "2 prompts"},
        {"id_range", R"({"prompt":[1,300]})", 400, "prompt[1]", "300"},
        {"id_negative", R"({"prompt":[-1]})", 400, "prompt[0]", "-1"},
        {"id_fraction", R"({"prompt":[1.0]})", 400, "prompt[0]", "token id"},
        {"id_mixed", R"({"prompt":[1,"a"]})", 400, "prompt[1]", "token id"},
        {"too_long", R"({"prompt":")" + std::string(5000, 'a') + "\"}", 400, "", "does not fit"},
        {"logprobs_boolean", R"({"prompt":"a","logprobs":true})", 400, "logprobs", "an integer"},
        {"logprobs_range", R"({"prompt":"a","logprobs":21})", 400, "logprobs", "range"},
        {"suffix", R"({"prompt":"a","suffix":"b"})", 400, "suffix", "gaps"},
        {"echo", R"({"prompt":"a","echo":true})", 400, "echo", "repeated"},
        {"best_of", R"({"prompt":"a","best_of":2})", 400, "best_of", "ranked"},
    };
}

void expect_refused(const char* path, const BodyCase& c) {
    FrontendRig rig;

    const RawResponse r = ask_once(rig.port, post(path, c.body));

    ASSERT_EQ(r.status, c.status) << r.body;
    const Json error = Json::parse(r.body).at("error");
    EXPECT_NE(error.at("message").get<std::string>().find(c.says), std::string::npos) << r.body;
    EXPECT_EQ(error.at("param").is_null() ? "" : error.at("param").get<std::string>(), c.param);
    EXPECT_EQ(error.at("type"), "invalid_request_error");
    EXPECT_TRUE(rig.engine.requests().empty());
    EXPECT_EQ(r.fields.at("connection"), "keep-alive");
}

class MalformedChat : public ::testing::TestWithParam<BodyCase> {};
TEST_P(MalformedChat, Is_refused_naming_the_field) {
    expect_refused("/v1/chat/completions", GetParam());
}
INSTANTIATE_TEST_SUITE_P(Cases, MalformedChat, ::testing::ValuesIn(chat_cases()),
                         [](const auto& param) { return std::string(param.param.name); });

class MalformedCompletion : public ::testing::TestWithParam<BodyCase> {};
TEST_P(MalformedCompletion, Is_refused_naming_the_field) {
    expect_refused("/v1/completions", GetParam());
}
INSTANTIATE_TEST_SUITE_P(Cases, MalformedCompletion, ::testing::ValuesIn(completion_cases()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(JsonLimits, Context_error_has_openais_code) {
    FrontendRig rig;

    const RawResponse r = rig.complete({{"prompt", std::string(5000, 'a')}});

    EXPECT_EQ(Json::parse(r.body)["error"]["code"], "context_length_exceeded");
}

TEST(JsonLimits, Object_with_too_many_keys_is_refused) {
    FrontendRig rig;
    std::string body = "{";
    for (int i = 0; i < 9000; ++i) {
        body += "\"k" + std::to_string(i) + "\":0,";
    }
    body += "\"prompt\":\"a\"}";

    const RawResponse r = ask_once(rig.port, post("/v1/completions", body));

    EXPECT_EQ(r.status, 400);
    EXPECT_NE(r.body.find("keys"), std::string::npos) << r.body;
}

TEST(JsonLimits, Duplicate_key_is_found_among_many) {
    FrontendRig rig;
    std::string body = "{";
    for (int i = 0; i < 1000; ++i) {
        body += "\"k" + std::to_string(i) + "\":0,";
    }
    body += "\"k500\":1}";

    const RawResponse r = ask_once(rig.port, post("/v1/completions", body));

    EXPECT_EQ(r.status, 400);
    EXPECT_NE(r.body.find("k500: the key occurs twice"), std::string::npos) << r.body;
}

TEST(JsonLimits, Unknown_fields_and_nulls_are_accepted) {
    FrontendRig rig;
    Json body = chat_body();
    for (const char* key : {"user", "metadata", "store", "service_tier", "something_else"}) {
        body[key] = "x";
    }
    for (const char* key : {"temperature", "stop", "seed", "max_tokens", "response_format", "tools",
                            "guided_json", "logit_bias", "stream", "n"}) {
        body[key] = nullptr;
    }

    EXPECT_EQ(rig.chat(body).status, 200);
}

}  // namespace

}  // namespace tenon::testing
