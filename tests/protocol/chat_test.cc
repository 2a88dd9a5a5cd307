// SPDX-License-Identifier: MIT
// Chat completions: what reaches the engine, and what a client gets back, whole and streamed.
#include "protocol/frontend_rig.h"

namespace tenon::testing {

namespace {

Json streamed(Json body) {
    body["stream"] = true;
    return body;
}

TEST(Chat, Whole_reply_has_openais_shape) {
    FrontendRig rig;
    rig.engine.answer_with(Script()
                               .reasoning("Let me ")
                               .reasoning("think.")
                               .content("An")
                               .content("swer \xE2\x9C\x93")
                               .finish("stop"));

    const RawResponse r = rig.chat(chat_body("hello"));

    ASSERT_EQ(r.status, 200) << r.body;
    const Json j = Json::parse(r.body);
    EXPECT_EQ(j["object"], "chat.completion");
    EXPECT_EQ(j["model"], "fake");
    EXPECT_EQ(j["id"].get<std::string>().rfind("chatcmpl-", 0), 0U);
    const Json& choice = j["choices"][0];
    EXPECT_EQ(choice["index"], 0);
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_TRUE(choice["logprobs"].is_null());
    EXPECT_EQ(choice["message"]["role"], "assistant");
    EXPECT_EQ(choice["message"]["content"], "Answer \xE2\x9C\x93");
    EXPECT_EQ(choice["message"]["reasoning_content"], "Let me think.");
    EXPECT_FALSE(choice["message"].contains("tool_calls"));
    // "<bos>hello" is 6 tokens; the fake counts an event as a token and half the prompt as cached.
    EXPECT_EQ(j["usage"]["prompt_tokens"], 6);
    EXPECT_EQ(j["usage"]["completion_tokens"], 4);
    EXPECT_EQ(j["usage"]["total_tokens"], 10);
    EXPECT_EQ(j["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    EXPECT_EQ(j["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
    EXPECT_EQ(j["timings"]["token_sha"], "ab0000000000");
    EXPECT_EQ(j["timings"]["decode_tokens_per_s"], 2000.0);
    EXPECT_EQ(j["timings"]["prefill_ms"], 1.0);
}

TEST(Chat, Streamed_reply_begins_with_the_role_and_ends_with_done) {
    FrontendRig rig;
    rig.engine.answer_with(
        Script().reasoning("hm").wait(30'000).content("a\"\\\n").wait(30'000).content("b").finish(
            "length"));

    const RawResponse r = rig.chat(streamed(chat_body()));

    ASSERT_EQ(r.status, 200);
    EXPECT_EQ(r.fields.at("content-type"), "text/event-stream; charset=utf-8");
    EXPECT_TRUE(r.is_whole);
    const std::vector<Json> events = events_of(r.body);
    ASSERT_EQ(events.size(), 5U) << r.body;
    EXPECT_EQ(events[0]["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
    EXPECT_EQ(events[1]["choices"][0]["delta"], (Json{{"reasoning_content", "hm"}}));
    EXPECT_EQ(events[2]["choices"][0]["delta"], (Json{{"content", "a\"\\\n"}}));
    EXPECT_EQ(events[3]["choices"][0]["delta"], (Json{{"content", "b"}}));
    EXPECT_EQ(events[4]["choices"][0]["delta"], Json::object());
    EXPECT_EQ(events[4]["choices"][0]["finish_reason"], "length");
    EXPECT_TRUE(events[4].contains("timings"));
    for (const Json& event : events) {
        EXPECT_EQ(event["object"], "chat.completion.chunk");
        EXPECT_EQ(event["id"], events[0]["id"]);
        EXPECT_FALSE(event.contains("usage"));
    }
    EXPECT_EQ(r.body.substr(r.body.size() - 14), "data: [DONE]\n\n");
}

TEST(Chat, Usage_chunk_comes_last_when_asked_for) {
    FrontendRig rig;
    Json body = streamed(chat_body("hello"));
    body["stream_options"] = {{"include_usage", true}};

    const std::vector<Json> events = events_of(rig.chat(body).body);

    ASSERT_GE(events.size(), 3U);
    EXPECT_TRUE(events[0]["usage"].is_null());
    EXPECT_EQ(events.back()["choices"], Json::array());
    EXPECT_EQ(events.back()["usage"]["prompt_tokens"], 6);
}

Script tool_script() {
    return Script()
        .reasoning("r")
        .content("Looking.")
        .call(0, "call_a", "get_weather")
        .wait(20'000)
        .arguments(0, "{\"city\":")
        .wait(20'000)
        .arguments(0, " \"Os\\\"lo\"}")
        .call(1, "call_b", "now")
        .arguments(1, "{}")
        .finish("tool_calls");
}

TEST(Chat, Tool_calls_are_collected) {
    FrontendRig rig;
    rig.engine.answer_with(tool_script());
    Json body = chat_body();
    body["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", "now"}}}}});

    const Json j = Json::parse(rig.chat(body).body);

    const Json& message = j["choices"][0]["message"];
    EXPECT_EQ(j["choices"][0]["finish_reason"], "tool_calls");
    EXPECT_EQ(message["content"], "Looking.");
    ASSERT_EQ(message["tool_calls"].size(), 2U);
    EXPECT_EQ(message["tool_calls"][0]["id"], "call_a");
    EXPECT_EQ(message["tool_calls"][0]["type"], "function");
    EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Os\\\"lo\"}");
    EXPECT_EQ(message["tool_calls"][1]["function"]["name"], "now");
    EXPECT_EQ(rig.engine.last_request().tools_json, body["tools"].dump());
}

TEST(Chat, Content_is_null_beside_calls_only) {
    FrontendRig rig;
    rig.engine.answer_with(Script().call(0, "c", "f").arguments(0, "{}").finish("tool_calls"));
    EXPECT_TRUE(
        Json::parse(rig.chat(chat_body()).body)["choices"][0]["message"]["content"].is_null());

    rig.engine.answer_with(Script().reasoning("all of it").finish("length"));
    EXPECT_EQ(Json::parse(rig.chat(chat_body()).body)["choices"][0]["message"]["content"], "");
}

TEST(Chat, Streamed_tool_calls_give_name_first_then_argument_pieces) {
    FrontendRig rig;
    rig.engine.answer_with(tool_script());

    const std::vector<Json> events = events_of(rig.chat(streamed(chat_body())).body);

    std::string arguments[2];
    std::vector<std::string> names;
    for (const Json& event : events) {
        const Json& delta = event["choices"][0]["delta"];
        if (!delta.contains("tool_calls")) {
            continue;
        }
        const Json& call = delta["tool_calls"][0];
        if (call.contains("id")) {
            names.push_back(call["function"]["name"]);
            EXPECT_EQ(call["function"]["arguments"], "");
            EXPECT_EQ(call["index"], names.size() - 1);
        }
        arguments[call["index"].get<size_t>()] += call["function"]["arguments"].get<std::string>();
    }
    EXPECT_EQ(names, (std::vector<std::string>{"get_weather", "now"}));
    EXPECT_EQ(arguments[0], "{\"city\": \"Os\\\"lo\"}");
    EXPECT_EQ(arguments[1], "{}");
    EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "tool_calls");
}

TEST(Chat, Fields_reach_the_engine) {
    FrontendRig rig;
    Json body = chat_body();
    body.update({{"temperature", 0.25},
                 {"top_p", 0.5},
                 {"top_k", -1},
                 {"min_p", 0.125},
                 {"presence_penalty", -1},
                 {"frequency_penalty", 1.5},
                 {"repetition_penalty", 1.25},
                 {"seed", -3},
                 {"stop", Json::array({"END", "\n\n"})},
                 {"stop_token_ids", Json::array({7, 8})},
                 {"logit_bias", {{"5", -100}, {"6", 2.5}}},
                 {"logprobs", true},
                 {"top_logprobs", 3},
                 {"max_tokens", 10},
                 {"max_completion_tokens", 20},
                 {"n", 2},
                 {"ignore_eos", true},
                 {"return_token_ids", true},
                 {"draft", false},
                 {"priority", "background"},
                 {"reasoning_effort", "high"}});

    ASSERT_EQ(rig.chat(body).status, 200);

    const SubmittedRequest r = rig.engine.last_request();
    EXPECT_EQ(r.sampling.temperature, 0.25F);
    EXPECT_EQ(r.sampling.top_p, 0.5F);
    EXPECT_EQ(r.sampling.top_k, 0);
    EXPECT_EQ(r.sampling.min_p, 0.125F);
    EXPECT_EQ(r.sampling.presence, -1.0F);
    EXPECT_EQ(r.sampling.frequency, 1.5F);
    EXPECT_EQ(r.sampling.repetition, 1.25F);
    EXPECT_TRUE(r.sampling.seed_set);
    EXPECT_EQ(r.sampling.seed, static_cast<uint64_t>(-3));
    EXPECT_EQ(r.sampling.logprobs, 3);
    EXPECT_EQ(r.stops, (std::vector<std::string>{"END", "\n\n"}));
    EXPECT_EQ(r.stop_ids, (std::vector<int32_t>{7, 8}));
    ASSERT_EQ(r.bias.size(), 2U);
    EXPECT_EQ(r.bias[1].token, 6);
    EXPECT_EQ(r.bias[1].add, 2.5F);
    EXPECT_EQ(r.max_new_tokens, 20);
    EXPECT_EQ(r.replies, 2);
    EXPECT_EQ(r.flags, kIgnoreEos | kReturnIds);
    EXPECT_EQ(r.priority, Priority::background);
    EXPECT_EQ(r.start, ReplyStart::reasoning);
    EXPECT_TRUE(r.thinking);
    EXPECT_EQ(r.label, "openai chat");
}

TEST(Chat, Silent_fields_take_the_profiles_values) {
    FrontendRig rig;

    ASSERT_EQ(rig.chat(chat_body()).status, 200);

    const SubmittedRequest r = rig.engine.last_request();
    EXPECT_EQ(r.sampling.temperature, 0.5F);
    EXPECT_EQ(r.sampling.top_p, 0.9F);
    EXPECT_EQ(r.sampling.top_k, 20);
    EXPECT_FALSE(r.sampling.seed_set);
    EXPECT_EQ(r.sampling.logprobs, -1);
    EXPECT_EQ(r.max_new_tokens, 0);
    EXPECT_EQ(r.flags, kDraftsAllowed);
}

TEST(Chat, Several_replies_keep_their_index) {
    FrontendRig rig;
    rig.engine.answer_with(
        Script().content("b", 1).content("a", 0).finish("stop", 0).content("B", 1).finish("length",
                                                                                          1));
    Json body = chat_body();
    body["n"] = 2;

    const Json whole = Json::parse(rig.chat(body).body);
    EXPECT_EQ(whole["choices"][0]["message"]["content"], "a");
    EXPECT_EQ(whole["choices"][1]["message"]["content"], "bB");
    EXPECT_EQ(whole["choices"][1]["finish_reason"], "length");

    std::string text[2];
    int roles = 0;
    for (const Json& event : events_of(rig.chat(streamed(body)).body)) {
        const Json& choice = event["choices"][0];
        text[choice["index"].get<size_t>()] += choice["delta"].value("content", "");
        roles += choice["delta"].contains("role");
    }
    EXPECT_EQ(text[0], "a");
    EXPECT_EQ(text[1], "bB");
    EXPECT_EQ(roles, 2);
}

TEST(Chat, Token_ids_and_logprobs_come_with_their_text) {
    FrontendRig rig;
    const std::vector<SinkLogprob> rows = {{'h', -0.5F},  {'h', -0.5F},  {'H', -1.5F},
                                           {'i', -0.25F}, {'i', -0.25F}, {0xE2, -1e30F}};
    rig.engine.answer_with(Script().tokens({'h', 'i'}, rows, 2).content("hi").finish("stop"));
    Json body = chat_body("x");
    body.update({{"logprobs", true}, {"top_logprobs", 2}, {"return_token_ids", true}});

    const Json whole = Json::parse(rig.chat(body).body);
    const Json& choice = whole["choices"][0];
    EXPECT_EQ(choice["token_ids"], Json::array({'h', 'i'}));
    EXPECT_EQ(whole["prompt_token_ids"], Json::array({256, 'x'}));
    const Json& content = choice["logprobs"]["content"];
    ASSERT_EQ(content.size(), 2U);
    EXPECT_EQ(content[0]["token"], "h");
    EXPECT_EQ(content[0]["bytes"], Json::array({'h'}));
    EXPECT_EQ(content[0]["logprob"], -0.5);
    EXPECT_EQ(content[0]["top_logprobs"][1]["token"], "H");
    EXPECT_EQ(content[1]["top_logprobs"][1]["token"], "\xEF\xBF\xBD");
    EXPECT_EQ(content[1]["top_logprobs"][1]["bytes"], Json::array({0xE2}));
    EXPECT_EQ(content[1]["top_logprobs"][1]["logprob"], -9999.0);

    const std::vector<Json> events = events_of(rig.chat(streamed(body)).body);
    ASSERT_EQ(events.size(), 3U);
    EXPECT_EQ(events[0]["prompt_token_ids"], Json::array({256, 'x'}));
    EXPECT_EQ(events[1]["choices"][0]["token_ids"], Json::array({'h', 'i'}));
    EXPECT_EQ(events[1]["choices"][0]["logprobs"]["content"], content);
    EXPECT_EQ(events[1]["choices"][0]["delta"]["content"], "hi");
}

TEST(Chat, Model_output_that_is_not_utf8_stays_valid_json) {
    FrontendRig rig;
    rig.engine.answer_with(Script().content("ok \xFF\xE2\x82 end").finish("stop"));

    const Json j = Json::parse(rig.chat(chat_body()).body);

    EXPECT_EQ(j["choices"][0]["message"]["content"], "ok \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD end");
}

TEST(Chat, Alias_is_served_and_echoed) {
    FrontendRig rig;
    Json body = chat_body();
    body["model"] = "fake-alias";

    EXPECT_EQ(Json::parse(rig.chat(body).body)["model"], "fake-alias");
}

TEST(Chat, Any_model_is_served_if_the_profile_says_so) {
    http::Settings settings;
    settings.accept_any_model = true;
    FrontendRig rig(settings);
    Json body = chat_body();
    body["model"] = "gpt-\"4\"";

    EXPECT_EQ(Json::parse(rig.chat(body).body)["model"], "gpt-\"4\"");
}

TEST(ChatErrors, Pitfall_18_Refusals_of_the_engine_come_before_any_200) {
    FrontendRig rig;
    rig.engine.refuse_with(Code::unavailable, "queue full: 8 requests wait");
    RawResponse r = rig.chat(streamed(chat_body()));
    EXPECT_EQ(r.status, 429);
    EXPECT_EQ(r.fields.at("retry-after"), "7");
    EXPECT_EQ(Json::parse(r.body)["error"]["code"], "queue_full");

    rig.engine.refuse_with(Code::unavailable, "memory is short");
    r = rig.chat(chat_body());
    EXPECT_EQ(r.status, 503);
    EXPECT_EQ(r.fields.at("retry-after"), "7");

    rig.engine.refuse_with(Code::invalid_argument, "top_p: 3 is out of range");
    r = rig.chat(chat_body());
    EXPECT_EQ(r.status, 400);
    EXPECT_EQ(Json::parse(r.body)["error"]["param"], "top_p");

    rig.engine.refuse_with(Code::does_not_fit, "the prompt has 9000 tokens, the context 8192");
    r = rig.chat(chat_body());
    EXPECT_EQ(r.status, 400);
    EXPECT_EQ(Json::parse(r.body)["error"]["code"], "context_length_exceeded");

    rig.engine.refuse_with(Code::internal, "broken");
    EXPECT_EQ(rig.chat(chat_body()).status, 500);

    rig.engine.accept_again();
    EXPECT_EQ(rig.chat(chat_body()).status, 200);
}

TEST(ChatErrors, Loading_and_draining_are_503_with_retry_after) {
    FrontendRig rig;
    for (const auto& [state, code] :
         {std::pair{EngineState::loading, "loading"}, std::pair{EngineState::draining, "draining"},
          std::pair{EngineState::failed, "engine_failed"}}) {
        rig.engine.set_state(state);
        const RawResponse r = rig.chat(chat_body());
        EXPECT_EQ(r.status, 503);
        EXPECT_EQ(r.fields.at("retry-after"), "7");
        EXPECT_EQ(Json::parse(r.body)["error"]["code"], code);
        EXPECT_EQ(ask_once(rig.port, get("/v1/models")).status, 503);
        EXPECT_EQ(ask_once(rig.port, get("/health")).status, 503);
        EXPECT_EQ(ask_once(rig.port, get("/metrics")).status, 200);
    }
}

TEST(ChatErrors, Error_after_the_200_is_an_event_and_done) {
    FrontendRig rig;
    rig.engine.answer_with(
        Script().content("half").wait(20'000).fail(Code::peer, "peer_lost", "a rank is gone"));

    const RawResponse r = rig.chat(streamed(chat_body()));

    EXPECT_EQ(r.status, 200);
    EXPECT_TRUE(r.is_whole);
    const std::vector<Json> events = events_of(r.body);
    ASSERT_EQ(events.size(), 3U) << r.body;
    EXPECT_EQ(events[1]["choices"][0]["delta"]["content"], "half");
    EXPECT_EQ(events[2]["error"]["code"], "peer_lost");
    EXPECT_EQ(events[2]["error"]["type"], "server_error");
    EXPECT_EQ(r.body.substr(r.body.size() - 14), "data: [DONE]\n\n");
}

TEST(ChatErrors, Error_of_a_whole_reply_has_its_status) {
    FrontendRig rig;
    for (const auto& [code, status] :
         {std::pair{Code::peer, 503}, std::pair{Code::deadline, 503}, std::pair{Code::io, 503},
          std::pair{Code::internal, 500}, std::pair{Code::unavailable, 503}}) {
        rig.engine.answer_with(Script().content("half").fail(code, "kind", "why"));
        const RawResponse r = rig.chat(chat_body());
        EXPECT_EQ(r.status, status);
        EXPECT_EQ(Json::parse(r.body)["error"]["code"], "kind");
    }
}

TEST(ChatErrors, Unset_code_of_a_failed_reply_is_an_internal_error) {
    FrontendRig rig;
    rig.engine.answer_with(Script().fail(Code::ok, "", "no code"));
    EXPECT_EQ(rig.chat(chat_body()).status, 500);
}

TEST(Chat, Comments_keep_a_silent_stream_open) {
    http::Settings settings;
    settings.keepalive_us = 100'000;
    settings.timing.poll_us = 20'000;
    FrontendRig rig(settings);
    rig.engine.answer_with(Script().wait(450'000).content("late").finish("stop"));

    const RawResponse r = rig.chat(streamed(chat_body()));

    size_t comments = 0;
    for (size_t at = 0; (at = r.body.find(": keepalive\n\n", at)) != std::string::npos; ++at) {
        ++comments;
    }
    // One each 100 ms of the 450 ms; a busy machine may miss some.
    EXPECT_GE(comments, 2U);
    EXPECT_LE(comments, 4U);
    EXPECT_LT(r.body.find(": keepalive"), r.body.find("data:"));
    EXPECT_NE(r.body.find("late"), std::string::npos);
}

}  // namespace

}  // namespace tenon::testing
