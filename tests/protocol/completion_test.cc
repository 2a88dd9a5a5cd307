// SPDX-License-Identifier: MIT
// Text completions, tokenize and detokenize, and the routes that only inform.
#include "protocol/frontend_rig.h"

namespace tenon::testing {

namespace {

TEST(Completion, Text_prompt_is_encoded_with_its_control_tokens) {
    FrontendRig rig;

    const RawResponse r = rig.complete({{"prompt", "<bos>ab"}, {"max_tokens", 5}});

    ASSERT_EQ(r.status, 200) << r.body;
    const Json j = Json::parse(r.body);
    EXPECT_EQ(j["object"], "text_completion");
    EXPECT_EQ(j["choices"][0]["text"], "ab");
    EXPECT_EQ(j["choices"][0]["finish_reason"], "stop");
    const SubmittedRequest request = rig.engine.last_request();
    EXPECT_EQ(request.tokens, (std::vector<int32_t>{256, 'a', 'b'}));
    EXPECT_EQ(request.flags, kDraftsAllowed | kRawText);
    EXPECT_EQ(request.max_new_tokens, 5);
}

TEST(Completion, Ids_and_lists_of_one_prompt_are_taken) {
    FrontendRig rig;
    const std::vector<int32_t> ids = {104, 105};

    for (const Json& prompt : {Json::parse("[104,105]"), Json::parse("[[104,105]]"),
                               Json::parse("\"hi\""), Json::parse("[\"hi\"]")}) {
        ASSERT_EQ(rig.complete({{"prompt", prompt}}).status, 200) << prompt;
        EXPECT_EQ(rig.engine.last_request().tokens, ids) << prompt;
    }
}

TEST(Completion, Streamed_chunks_carry_text) {
    FrontendRig rig;
    rig.engine.answer_with(Script().content("a").wait(20'000).content("b").finish("length"));

    const RawResponse r =
        rig.complete({{"prompt", "x"}, {"stream", true}, {"return_token_ids", true}});

    const std::vector<Json> events = events_of(r.body);
    ASSERT_EQ(events.size(), 3U) << r.body;
    EXPECT_EQ(events[0]["object"], "text_completion");
    EXPECT_EQ(events[0]["choices"][0]["text"], "a");
    EXPECT_EQ(events[0]["choices"][0]["prompt_token_ids"], Json::array({'x'}));
    EXPECT_EQ(events[1]["choices"][0]["text"], "b");
    EXPECT_EQ(events[2]["choices"][0]["text"], "");
    EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "length");
}

TEST(Completion, Logprobs_have_the_older_shape) {
    FrontendRig rig;
    const std::vector<SinkLogprob> rows = {{'h', -0.5F}, {'H', -1.5F}, {'i', -0.25F}, {'I', -2}};
    rig.engine.answer_with(Script().tokens({'h', 'i'}, rows, 1).content("hi").finish("stop"));

    const Json j = Json::parse(rig.complete({{"prompt", "x"}, {"logprobs", 1}}).body);

    const Json& logprobs = j["choices"][0]["logprobs"];
    EXPECT_EQ(logprobs["tokens"], (Json::array({"h", "i"})));
    EXPECT_EQ(logprobs["token_logprobs"], Json::array({-0.5, -0.25}));
    EXPECT_EQ(logprobs["top_logprobs"][0], (Json{{"H", -1.5}}));
    EXPECT_EQ(logprobs["text_offset"], Json::array({0, 1}));
}

TEST(Tokenize, Text_is_ordinary_unless_asked) {
    FrontendRig rig;

    for (const char* path : {"/tokenize", "/v1/tokenize"}) {
        const Json plain = Json::parse(ask_once(rig.port, post(path, R"({"text":"<bos>"})")).body);
        EXPECT_EQ(plain["count"], 5);
        EXPECT_EQ(plain["max_model_len"], 4096);
    }
    const Json special = Json::parse(
        ask_once(rig.port, post("/tokenize", R"({"prompt":"<bos>","parse_special":true})")).body);
    EXPECT_EQ(special["tokens"], Json::array({256}));
}

TEST(Tokenize, Messages_are_rendered) {
    FrontendRig rig;
    const Json j = Json::parse(ask_once(rig.port, post("/tokenize", chat_body("ab").dump())).body);
    EXPECT_EQ(j["tokens"], Json::array({256, 'a', 'b'}));
}

TEST(Tokenize, Wrong_bodies_are_named) {
    FrontendRig rig;
    for (const char* body :
         {"{}", R"({"text":1})", R"({"text":"a","prompt":"b"})", R"({"messages":1})"}) {
        EXPECT_EQ(ask_once(rig.port, post("/tokenize", body)).status, 400) << body;
    }
    for (const char* body : {"{}", R"({"tokens":"a"})", R"({"tokens":[300]})",
                             R"({"tokens":[299]})", R"({"tokens":[1.5]})"}) {
        EXPECT_EQ(ask_once(rig.port, post("/detokenize", body)).status, 400) << body;
    }
}

TEST(Detokenize, Specials_are_kept_unless_skipped) {
    FrontendRig rig;
    const Json kept =
        Json::parse(ask_once(rig.port, post("/detokenize", R"({"tokens":[256,97,34]})")).body);
    EXPECT_EQ(kept["prompt"], "<bos>a\"");
    const Json skipped =
        Json::parse(ask_once(rig.port, post("/v1/detokenize",
                                            R"({"tokens":[256,97],"skip_special_tokens":true})"))
                        .body);
    EXPECT_EQ(skipped["text"], "a");
}

TEST(Info, Models_lists_the_served_one_with_its_context) {
    FrontendRig rig;

    const Json j = Json::parse(ask_once(rig.port, get("/v1/models")).body);
    ASSERT_EQ(j["data"].size(), 1U);
    EXPECT_EQ(j["data"][0]["id"], "fake");
    EXPECT_EQ(j["data"][0]["max_model_len"], 4096);

    EXPECT_EQ(Json::parse(ask_once(rig.port, get("/v1/models/fake-alias")).body)["root"], "fake");
    EXPECT_EQ(ask_once(rig.port, get("/v1/models/other")).status, 404);
}

TEST(Info, Health_tells_a_stall) {
    FrontendRig rig;
    EXPECT_EQ(Json::parse(ask_once(rig.port, get("/health")).body)["status"], "ok");
    rig.engine.set_running(1, 61'000'000);
    const RawResponse stalled = ask_once(rig.port, get("/health"));
    EXPECT_EQ(stalled.status, 503);
    EXPECT_EQ(Json::parse(stalled.body)["status"], "stalled");
    rig.engine.set_running(0, 61'000'000);  // nothing to do is no stall
    EXPECT_EQ(ask_once(rig.port, get("/health")).status, 200);
}

TEST(Info, Slots_and_metrics_are_given) {
    FrontendRig rig;
    const Json slots = Json::parse(ask_once(rig.port, get("/slots")).body);
    ASSERT_EQ(slots.size(), 2U);
    EXPECT_EQ(slots[0]["state"], "decoding");
    EXPECT_EQ(slots[0]["request"], 11);
    EXPECT_EQ(slots[0]["reply"], 1);
    EXPECT_EQ(slots[0]["priority"], "background");
    EXPECT_EQ(slots[0]["max_tokens"], 64);
    EXPECT_EQ(slots[0]["cached_tokens"], 80);
    EXPECT_EQ(slots[0]["queue_seconds"], 0.25);
    EXPECT_EQ(slots[0]["prefill_seconds"], 0.5);
    EXPECT_EQ(slots[0]["decode_seconds"], 2.0);
    EXPECT_EQ(slots[0]["rounds"], 5);
    EXPECT_EQ(slots[0]["drafted"], 9);
    EXPECT_EQ(slots[0]["accepted"], 7);
    EXPECT_EQ(slots[1]["state"], "free");

    const RawResponse metrics = ask_once(rig.port, get("/metrics"));
    EXPECT_NE(metrics.body.find("http_requests_total{route=slots,status=200} 1"), std::string::npos)
        << metrics.body;
}

TEST(Info, Head_has_no_body) {
    FrontendRig rig;
    RawClient client(rig.port);
    client.send("HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n");
    const RawResponse r = client.read("HEAD");
    EXPECT_EQ(r.status, 200);
    EXPECT_GT(std::stoi(r.fields.at("content-length")), 10);
    client.send(get("/v1/models"));
    EXPECT_EQ(client.read().status, 200);
}

}  // namespace

}  // namespace tenon::testing
