// SPDX-License-Identifier: MIT
// HTTP messages that two readers could understand differently, or that are made to hurt.
#include "protocol/frontend_rig.h"

namespace tenon::testing {

namespace {

struct Case {
    const char* name;
    std::string bytes;
    int status;
    const char* says;  ///< part of error.message
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.name;
}

const std::string kStart = "POST /v1/chat/completions HTTP/1.1\r\n";
const std::string kHost = "Host: t\r\n";

std::vector<Case> cases() {
    const std::string many(101, 'x');
    std::string fields;
    for (int i = 0; i < 101; ++i) {
        fields += "X-" + std::to_string(i) + ": 1\r\n";
    }
    return {
        {"negative_length", kStart + kHost + "Content-Length: -5\r\n\r\n", 400, "Content-Length"},
        {"signed_length", kStart + kHost + "Content-Length: +5\r\n\r\nabcde", 400,
         "Content-Length"},
        {"hex_length", kStart + kHost + "Content-Length: 0x5\r\n\r\nabcde", 400, "Content-Length"},
        {"empty_length", kStart + kHost + "Content-Length:\r\n\r\n", 400, "Content-Length"},
        {"list_of_lengths", kStart + kHost + "Content-Length: 5, 5\r\n\r\nabcde", 400,
         "Content-Length"},
        {"two_lengths", kStart + kHost + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
         400, "more than once"},
        {"huge_length", kStart + kHost + "Content-Length: 99999999999999999999\r\n\r\n", 413,
         "Content-Length"},
        {"length_and_chunks",
         kStart + kHost + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
         "exclude each other"},
        {"unknown_coding", kStart + kHost + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501,
         "Transfer-Encoding"},
        {"two_codings",
         kStart + kHost + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501,
         "Transfer-Encoding"},
        {"chunks_in_http_1_0",
         "POST /v1/chat/completions HTTP/1.0\r\nTransfer-Encoding: "
         "chunked\r\n\r\n0\r\n\r\n",
         400, "HTTP/1.0"},
        {"chunk_size_not_hex", kStart + kHost + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400,
         "hexadecimal"},
        {"negative_chunk_size", kStart + kHost + "Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400,
         "hexadecimal"},
        {"chunk_size_overflow",
         kStart + kHost + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", 400,
         "hexadecimal"},
        {"chunk_longer_than_size",
         kStart + kHost + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}garbage\r\n0\r\n\r\n", 400,
         "longer than its size"},
        {"chunk_line_with_bare_lf",
         kStart + kHost + "Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n", 400, "LF"},
        {"chunk_too_large", kStart + kHost + "Transfer-Encoding: chunked\r\n\r\n7fffffff\r\n", 413,
         "max_body"},
        {"endless_chunk_extension",
         kStart + kHost + "Transfer-Encoding: chunked\r\n\r\n2;" + std::string(400, 'e') + "\r\n",
         400, "too long"},
        {"no_host", kStart + "Content-Length: 2\r\n\r\n{}", 400, "Host"},
        {"two_hosts", kStart + kHost + kHost + "Content-Length: 2\r\n\r\n{}", 400, "Host"},
        {"no_colon", kStart + kHost + "Nonsense\r\n\r\n", 400, "no colon"},
        {"blank_before_colon", kStart + kHost + "Content-Length : 2\r\n\r\n{}", 400, "header name"},
        {"empty_name", kStart + kHost + ": value\r\n\r\n", 400, "header name"},
        {"folded_field", kStart + kHost + "X-A: 1\r\n folded\r\n\r\n", 400, "folded"},
        {"control_in_value", kStart + kHost + "X-A: a\x01z\r\n\r\n", 400, "control"},
        {"nul_in_value", kStart + kHost + std::string("X-A: a\0z\r\n\r\n", 12), 400, "control"},
        {"bare_cr_in_value", kStart + kHost + "X-A: a\rb\r\n\r\n", 400, "bare CR"},
        {"lf_line_ends", "GET /health HTTP/1.1\nHost: t\n\n", 400, "LF"},
        {"no_version", "GET /health\r\n\r\n", 400, "request line"},
        {"http_0_9_word", "GET /health FTP/1.1\r\nHost: t\r\n\r\n", 400, "HTTP/1.1"},
        {"http_2", "GET /health HTTP/2.0\r\nHost: t\r\n\r\n", 505, "HTTP/1.0"},
        {"lower_case_version", "GET /health http/1.1\r\nHost: t\r\n\r\n", 400, "HTTP/1.1"},
        {"odd_method", "G(T /health HTTP/1.1\r\nHost: t\r\n\r\n", 400, "method"},
        {"long_method", many + " /health HTTP/1.1\r\nHost: t\r\n\r\n", 400, "method"},
        {"two_blanks", "GET  /health HTTP/1.1\r\nHost: t\r\n\r\n", 400, "target"},
        {"relative_target", "GET health HTTP/1.1\r\nHost: t\r\n\r\n", 400, "'/'"},
        {"bad_escape", "GET /he%zzlth HTTP/1.1\r\nHost: t\r\n\r\n", 400, "percent"},
        {"nul_escape", "GET /health%00 HTTP/1.1\r\nHost: t\r\n\r\n", 400, "percent"},
        {"cut_escape", "GET /health%4 HTTP/1.1\r\nHost: t\r\n\r\n", 400, "percent"},
        {"long_target", "GET /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: t\r\n\r\n", 414,
         "target"},
        {"large_header", kStart + kHost + "X-A: " + std::string(40'000, 'a') + "\r\n\r\n", 431,
         "header"},
        {"many_fields", kStart + kHost + fields + "\r\n", 431, "header"},
        {"tls_hello", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", 12), 400,
         "TLS"},
        {"binary", std::string("\x00\x01\x02\x03\r\n\r\n", 8), 400, "request line"},
        {"empty_lines", "\r\n\r\n\r\n\r\n", 400, "empty lines"},
        {"unknown_expect", kStart + kHost + "Expect: 200-maybe\r\nContent-Length: 2\r\n\r\n{}", 417,
         "Expect"},
        {"compressed_body",
         kStart + kHost + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415,
         "Content-Encoding"},
        {"no_body", kStart + kHost + "\r\n", 400, "no body"},
        {"body_without_length", kStart + kHost + "\r\n" + chat_body().dump(), 400, "no body"},
        {"unknown_path", get("/v2/nothing"), 404, "/v2/nothing"},
        {"wrong_method", get("/v1/chat/completions"), 405, "POST"},
        {"wrong_method_on_get", post("/health", "{}"), 405, "GET"},
    };
}

class MalformedHttp : public ::testing::TestWithParam<Case> {};

TEST_P(MalformedHttp, Is_refused_with_the_stated_status_and_reason) {
    const Case& c = GetParam();
    FrontendRig rig;

    const RawResponse r = ask_once(rig.port, c.bytes);

    ASSERT_EQ(r.status, c.status) << r.body;
    const Json error = Json::parse(r.body).at("error");
    EXPECT_NE(error.at("message").get<std::string>().find(c.says), std::string::npos) << r.body;
    EXPECT_EQ(error.size(), 4U);
    EXPECT_TRUE(error.contains("type") && error.contains("param") && error.contains("code"));
    EXPECT_EQ(r.fields.at("content-type"), "application/json");
    EXPECT_TRUE(rig.engine.requests().empty());
    EXPECT_EQ(ask_once(rig.port, get("/health")).status, 200);
}

INSTANTIATE_TEST_SUITE_P(Cases, MalformedHttp, ::testing::ValuesIn(cases()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(Framing, Second_request_after_a_bad_one_is_never_read) {
    FrontendRig rig;
    RawClient client(rig.port);

    client.send(kStart + kHost +
                "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" +
                get("/health"));

    EXPECT_EQ(client.read().status, 400);
    EXPECT_EQ(client.read().status, 0);
}

TEST(Framing, Body_that_ends_early_is_refused_with_the_count) {
    FrontendRig rig;
    RawClient client(rig.port);

    client.send(kStart + kHost + "Content-Length: 100\r\n\r\n{\"model\"");
    client.end_sending();

    const RawResponse r = client.read();
    EXPECT_EQ(r.status, 400);
    EXPECT_NE(r.body.find("after 8 bytes"), std::string::npos) << r.body;
}

TEST(Framing, Chunked_body_with_extension_and_trailer_is_read) {
    FrontendRig rig;
    const std::string body = chat_body("chunked").dump();
    char size[16];
    std::snprintf(size, sizeof size, "%zx", body.size());

    const RawResponse r =
        ask_once(rig.port, kStart + kHost + "Transfer-Encoding: chunked\r\n\r\n" + size +
                               ";a=b\r\n" + body + "\r\n0\r\nX-Trailer: 1\r\n\r\n");

    EXPECT_EQ(r.status, 200) << r.body;
    EXPECT_NE(r.body.find("chunked"), std::string::npos);
}

TEST(Framing, Pipelined_requests_are_answered_in_order) {
    FrontendRig rig;
    RawClient client(rig.port);

    client.send(post("/v1/chat/completions", chat_body("one").dump()) + get("/v1/models") +
                post("/v1/chat/completions", chat_body("two").dump()));

    EXPECT_NE(client.read().body.find("one"), std::string::npos);
    EXPECT_NE(client.read().body.find("\"list\""), std::string::npos);
    EXPECT_NE(client.read().body.find("two"), std::string::npos);
}

TEST(Framing, Too_large_body_is_refused_without_asking_for_it) {
    http::Settings settings;
    settings.max_body = 1024;
    FrontendRig rig(settings);
    RawClient client(rig.port);

    client.send(kStart + kHost + "Expect: 100-continue\r\nContent-Length: 1025\r\n\r\n");

    const std::string first = client.read_bytes(200);
    EXPECT_EQ(first.rfind("HTTP/1.1 413", 0), 0U) << first;
}

TEST(Framing, Expected_continue_is_sent_before_the_body) {
    FrontendRig rig;
    RawClient client(rig.port);
    const std::string body = chat_body().dump();

    client.send(kStart + kHost + "Expect: 100-continue\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n");
    ASSERT_TRUE(client.wait_for("100 Continue"));
    client.send(body);

    EXPECT_EQ(client.read().status, 200);
}

TEST(Framing, Refused_upload_still_gets_its_answer) {
    http::Settings settings;
    settings.max_body = 1024;
    FrontendRig rig(settings);
    RawClient client(rig.port);

    client.send(kStart + kHost + "Content-Length: 4000000\r\n\r\n");
    client.send(std::string(4'000'000, ' '));

    EXPECT_EQ(client.read().status, 413);
}

TEST(Framing, Http_1_0_gets_a_stream_that_ends_with_the_connection) {
    FrontendRig rig;
    Json body = chat_body("old");
    body["stream"] = true;
    const std::string text = body.dump();

    const RawResponse r =
        ask_once(rig.port, "POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " +
                               std::to_string(text.size()) + "\r\n\r\n" + text);

    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.fields.count("transfer-encoding"), 0U);
    EXPECT_NE(r.body.find("data: [DONE]\n\n"), std::string::npos);
}

TEST(Framing, Absolute_target_and_query_are_taken_apart) {
    FrontendRig rig;

    EXPECT_EQ(ask_once(rig.port, get("http://example/health?x=1")).status, 200);
    EXPECT_EQ(ask_once(rig.port, get("/%68ealth/")).status, 200);
}

}  // namespace

}  // namespace tenon::testing
