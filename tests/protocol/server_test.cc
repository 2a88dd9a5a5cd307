// SPDX-License-Identifier: MIT
// Connections: keys, limits, deadlines, clients that vanish or stand still, the orderly end.
#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <future>
#include <thread>

#include "fakes/fake_host.h"
#include "plugins/frontend_openai/auth.h"
#include "protocol/frontend_rig.h"

namespace tenon::testing {

namespace {

using Clock = std::chrono::steady_clock;

int64_t ms_since(Clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

http::Settings quick() {
    http::Settings s;
    s.timing.head_us = 300'000;
    s.timing.reserved_head_us = 200'000;
    s.timing.body_grace_us = 300'000;
    s.timing.write_stall_us = 500'000;
    s.timing.poll_us = 20'000;
    s.timing.linger_us = 200'000;
    s.timing.shutdown_grace_us = 400'000;
    return s;
}

std::string stream_request() {
    Json body = chat_body();
    body["stream"] = true;
    return post("/v1/chat/completions", body.dump());
}

void write_file(const std::filesystem::path& file, const std::string& text, mode_t mode = 0600) {
    {
        std::ofstream out(file);
        out << text;
    }
    ::chmod(file.c_str(), mode);
}

// ---- keys --------------------------------------------------------------------------------------

TEST(Keys, Are_asked_for_where_they_protect_something) {
    TempDir dir;
    write_file(dir.path() / "keys", "# comment\n\nalice: secret-one\nbob:secret-two\n");
    http::Settings settings = quick();
    settings.api_key_file = dir.path() / "keys";
    FrontendRig rig(settings);

    const RawResponse none = rig.chat(chat_body());
    EXPECT_EQ(none.status, 401);
    EXPECT_EQ(none.fields.at("www-authenticate").rfind("Bearer", 0), 0U);
    EXPECT_EQ(Json::parse(none.body)["error"]["code"], "invalid_api_key");
    EXPECT_EQ(rig.chat(chat_body(), "Authorization: Bearer secret-one\r\n").status, 200);
    EXPECT_EQ(rig.chat(chat_body(), "Authorization: bearer secret-two\r\n").status, 200);
    EXPECT_EQ(rig.chat(chat_body(), "X-Api-Key: secret-two\r\n").status, 200);
    for (const char* wrong : {"secret-on", "secret-onee", "Secret-one", "", "alice"}) {
        EXPECT_EQ(rig.chat(chat_body(), format("Authorization: Bearer {}\r\n", wrong)).status, 401);
    }
    EXPECT_EQ(rig.chat(chat_body(), "Authorization: Basic secret-one\r\n").status, 401);
    for (const char* path : {"/v1/models", "/metrics", "/slots"}) {
        EXPECT_EQ(ask_once(rig.port, get(path)).status, 401) << path;
    }
    const RawResponse health = ask_once(rig.port, get("/health"));
    EXPECT_EQ(health.body, R"({"status":"ok"})");
    EXPECT_NE(ask_once(rig.port, get("/health", "X-Api-Key: secret-one\r\n")).body.find("streams"),
              std::string::npos);
}

TEST(Keys, Give_each_caller_its_own_prefixes) {
    TempDir dir;
    write_file(dir.path() / "keys", "alice: secret-one\nbob: secret-two\n");
    http::Settings settings = quick();
    settings.api_key_file = dir.path() / "keys";
    FrontendRig rig(settings);
    const auto salt_of = [&](const char* key, const char* wish) {
        Json body = chat_body();
        if (*wish != '\0') {
            body["cache_salt"] = wish;
        }
        EXPECT_EQ(rig.chat(body, format("Authorization: Bearer {}\r\n", key)).status, 200);
        return rig.engine.last_request().cache_salt;
    };

    const uint64_t alice = salt_of("secret-one", "");
    const uint64_t bob = salt_of("secret-two", "");
    EXPECT_NE(alice, 0U);
    EXPECT_NE(alice, bob);
    EXPECT_EQ(salt_of("secret-one", ""), alice);
    EXPECT_NE(salt_of("secret-one", "tenant 1"), alice);
    EXPECT_NE(salt_of("secret-one", "tenant 1"), salt_of("secret-two", "tenant 1"));
    const RawResponse completion = ask_once(
        rig.port, post("/v1/completions", R"({"prompt":"x"})", "X-Api-Key: secret-two\r\n"));
    EXPECT_EQ(completion.status, 200);
    EXPECT_EQ(rig.engine.last_request().cache_salt, bob);
}

TEST(Keys, That_nobody_asked_for_separate_nobody) {
    FrontendRig rig(quick());

    EXPECT_EQ(rig.chat(chat_body(), "Authorization: Bearer unused\r\n").status, 200);
    EXPECT_EQ(rig.engine.last_request().cache_salt, 0U);
    Json body = chat_body();
    body["cache_salt"] = 5;
    EXPECT_EQ(rig.chat(body).status, 400);
    body["cache_salt"] = std::string(1025, 'x');
    EXPECT_EQ(Json::parse(rig.chat(body).body)["error"]["param"], "cache_salt");
}

TEST(Keys, Body_is_not_read_without_one) {
    TempDir dir;
    write_file(dir.path() / "keys", "a: secret\n");
    http::Settings settings = quick();
    settings.api_key_file = dir.path() / "keys";
    FrontendRig rig(settings);
    RawClient client(rig.port);

    client.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nExpect: "
        "100-continue\r\n"
        "Content-Length: 1000\r\n\r\n");

    EXPECT_EQ(client.read_bytes(150).rfind("HTTP/1.1 401", 0), 0U);
}

TEST(Keys, Changed_file_is_read_and_a_bad_one_keeps_the_old_keys) {
    TempDir dir;
    const auto file = dir.path() / "keys";
    write_file(file, "a: first\n");
    http::Settings settings = quick();
    settings.api_key_file = file;
    FrontendRig rig(settings);
    const auto accepts = [&](const char* key) {
        return ask_once(rig.port, get("/v1/models", format("X-Api-Key: {}\r\n", key))).status ==
               200;
    };
    ASSERT_TRUE(accepts("first"));

    write_file(file, "a: second-key\n");
    EXPECT_TRUE(FrontendRig::eventually([&] { return accepts("second-key"); }));
    EXPECT_FALSE(accepts("first"));

    write_file(file, "nonsense\n");
    EXPECT_TRUE(FrontendRig::eventually([&] {
        return accepts("second-key") && rig.host.logged(LogLevel::error, "keeping the old keys");
    }));
    EXPECT_FALSE(rig.host.logged(LogLevel::debug, "nonsense"));
}

TEST(Keys, File_whose_read_does_not_end_holds_up_one_caller) {
    TempDir dir;
    const std::string file = dir.path() / "keys";
    write_file(file, "a: first\n");
    fakes::FakeHost host;
    http::KeyStore keys(host, file);
    ASSERT_TRUE(keys.load().ok());
    // A pipe that nobody writes: opening it waits as a dead file system does.
    std::filesystem::remove(file);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    host.advance(2'000'000);
    const auto ask = [&] { return keys.accepts("first"); };
    std::future<bool> callers[] = {std::async(std::launch::async, ask),
                                   std::async(std::launch::async, ask)};
    const auto is_back = [](std::future<bool>& f) {
        return f.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    };

    EXPECT_TRUE(
        FrontendRig::eventually([&] { return is_back(callers[0]) || is_back(callers[1]); }));

    EXPECT_FALSE(is_back(callers[0]) && is_back(callers[1]));
    host.advance(2'000'000);  // time to look again, if nobody were
    std::future<bool> third = std::async(std::launch::async, ask);
    EXPECT_TRUE(FrontendRig::eventually([&] { return is_back(third); }));
    const int pipe = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(pipe, 0);
    ::close(pipe);
    EXPECT_TRUE(callers[0].get());
    EXPECT_TRUE(callers[1].get());
    EXPECT_TRUE(third.get());
    EXPECT_EQ(host.count_lines("keeping the old keys"), 1);
}

TEST(Keys, File_that_others_can_read_is_refused_at_start) {
    TempDir dir;
    for (const auto& [text, mode, says] :
         {std::tuple{"a: b\n", 0640, "chmod 600"}, std::tuple{"a: b\n", 0604, "chmod 600"},
          std::tuple{"", 0600, "no keys"}, std::tuple{"lonely\n", 0600, "keys:1"},
          std::tuple{"a: x\na: y\n", 0600, "label occurs twice"},
          std::tuple{"a: x\nb: x\n", 0600, "key occurs twice"},
          std::tuple{"a: with blank\n", 0600, "keys:1"}}) {
        write_file(dir.path() / "keys", text, static_cast<mode_t>(mode));
        http::Settings settings = quick();
        settings.bind = "127.0.0.1:0";
        settings.api_key_file = dir.path() / "keys";
        TestHost host;
        FakeEngine engine;
        auto made = http::make_frontend(host, engine, settings);
        TENON_EXPECT_ERROR((*made)->start(), Code::invalid_argument, says);
    }
    http::Settings settings = quick();
    settings.api_key_file = dir.path() / "missing";
    TestHost host;
    FakeEngine engine;
    auto made = http::make_frontend(host, engine, settings);
    TENON_EXPECT_ERROR((*made)->start(), Code::not_found, "missing");
}

TEST(Keys, Metrics_can_be_open) {
    TempDir dir;
    write_file(dir.path() / "keys", "a: secret\n");
    http::Settings settings = quick();
    settings.api_key_file = dir.path() / "keys";
    settings.metrics_open = true;
    FrontendRig rig(settings);
    EXPECT_EQ(ask_once(rig.port, get("/metrics")).status, 200);
}

// ---- CORS --------------------------------------------------------------------------------------

TEST(Cors, Preflight_of_an_allowed_origin_is_answered_without_key) {
    TempDir dir;
    write_file(dir.path() / "keys", "a: secret\n");
    http::Settings settings = quick();
    settings.api_key_file = dir.path() / "keys";
    settings.cors_origins = {"https://app.example"};
    FrontendRig rig(settings);
    const auto preflight = [&](const char* origin) {
        return ask_once(rig.port,
                        format("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: t\r\nOrigin: {}\r\n"
                               "Access-Control-Request-Method: POST\r\n\r\n",
                               origin));
    };

    const RawResponse good = preflight("https://app.example");
    EXPECT_EQ(good.status, 204);
    EXPECT_EQ(good.fields.at("access-control-allow-origin"), "https://app.example");
    EXPECT_NE(good.fields.at("access-control-allow-methods").find("POST"), std::string::npos);
    EXPECT_NE(good.fields.at("access-control-allow-headers").find("Authorization"),
              std::string::npos);
    EXPECT_EQ(preflight("https://evil.example").fields.count("access-control-allow-origin"), 0U);
    const RawResponse refused = rig.chat(chat_body(), "Origin: https://app.example\r\n");
    EXPECT_EQ(refused.status, 401);
    EXPECT_EQ(refused.fields.at("access-control-allow-origin"), "https://app.example");
}

TEST(Cors, Is_off_by_default) {
    FrontendRig rig(quick());
    const RawResponse r = ask_once(rig.port, get("/health", "Origin: https://app.example\r\n"));
    EXPECT_EQ(r.fields.count("access-control-allow-origin"), 0U);
}

// ---- slow and vanished clients -----------------------------------------------------------------

TEST(SlowClient, Header_in_drops_ends_at_the_total_deadline) {
    FrontendRig rig(quick());
    RawClient client(rig.port);

    std::string answer;
    for (int i = 0; i < 100 && answer.empty(); ++i) {
        client.send(i == 0 ? "GET /health HTTP/1.1\r\nX-A: " : "a");
        answer = client.read_bytes(20);
    }

    EXPECT_EQ(answer.rfind("HTTP/1.1 408", 0), 0U) << answer;
}

TEST(SlowClient, Body_in_drops_ends_at_the_total_deadline) {
    FrontendRig rig(quick());
    RawClient client(rig.port);
    client.send(
        "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: "
        "5000\r\n\r\n");

    std::string answer;
    for (int i = 0; i < 100 && answer.empty(); ++i) {
        client.send("a");
        answer = client.read_bytes(20);
    }

    EXPECT_EQ(answer.rfind("HTTP/1.1 408", 0), 0U) << answer;
}

TEST(SlowClient, Silent_connection_is_closed) {
    FrontendRig rig(quick());
    RawClient client(rig.port);
    EXPECT_TRUE(client.is_closed_within(2000));
}

TEST(SlowClient, Idle_connection_is_closed_after_keepalive) {
    http::Settings settings = quick();
    settings.keepalive_us = 200'000;
    FrontendRig rig(settings);
    RawClient client(rig.port);
    client.send(get("/health"));
    ASSERT_EQ(client.read().status, 200);
    EXPECT_FALSE(client.is_closed_within(60));
    EXPECT_TRUE(client.is_closed_within(2000));
}

TEST(SlowClient, That_reads_nothing_stops_taking_events_and_is_dropped) {
    FrontendRig rig(quick());
    rig.engine.answer_with(Script().pieces(200'000, 0, std::string(200, 'x')).finish("stop"));
    RawClient client(rig.port);
    client.set_receive_buffer(4096);
    client.send(stream_request());

    // Kernel buffers take some hundred kB of the 40 MB; then nothing more is asked of the engine.
    ASSERT_TRUE(FrontendRig::eventually([&] { return rig.engine.open_sinks() == 1; }));
    EXPECT_TRUE(FrontendRig::eventually([&] { return rig.engine.open_sinks() == 0; }));
    EXPECT_LT(rig.engine.events_taken(), 20'000);
    EXPECT_EQ(rig.engine.cancelled(), 1);
    EXPECT_EQ(rig.engine.last_cancel(), CancelReason::slow_client);
}

TEST(VanishedClient, Cancels_its_stream) {
    FrontendRig rig(quick());
    rig.engine.answer_with(Script().content("first").wait(30'000'000).finish("stop"));
    const auto vanish = [&](auto how) {
        RawClient client(rig.port);
        client.send(stream_request());
        ASSERT_TRUE(client.wait_for("first"));
        how(client);
        EXPECT_TRUE(FrontendRig::eventually([&] { return rig.engine.open_sinks() == 0; }));
        EXPECT_EQ(rig.engine.last_cancel(), CancelReason::client_gone);
    };
    vanish([](RawClient& c) { c.reset(); });
    vanish([](RawClient& c) { c.end_sending(); });  // half-closing counts as leaving
    EXPECT_EQ(rig.engine.cancelled(), 2);
}

TEST(VanishedClient, Cancels_its_whole_reply) {
    FrontendRig rig(quick());
    rig.engine.answer_with(Script().wait(30'000'000).finish("stop"));
    {
        RawClient client(rig.port);
        client.send(post("/v1/chat/completions", chat_body().dump()));
        ASSERT_TRUE(FrontendRig::eventually([&] { return rig.engine.open_sinks() == 1; }));
    }
    EXPECT_TRUE(FrontendRig::eventually([&] { return rig.engine.open_sinks() == 0; }));
    EXPECT_EQ(rig.engine.last_cancel(), CancelReason::client_gone);
}

// ---- many connections --------------------------------------------------------------------------

TEST(Overload, Health_answers_beyond_max_connections_and_the_rest_gets_503) {
    http::Settings settings = quick();
    settings.max_connections = 4;
    settings.timing.head_us = 20'000'000;
    FrontendRig rig(settings);
    rig.engine.answer_with(Script().content("first").wait(30'000'000).finish("stop"));
    std::vector<std::unique_ptr<RawClient>> busy;
    for (int i = 0; i < 4; ++i) {
        busy.push_back(std::make_unique<RawClient>(rig.port));
        busy.back()->send(stream_request());
        ASSERT_TRUE(busy.back()->wait_for("first"));
    }

    const auto start = Clock::now();
    EXPECT_EQ(ask_once(rig.port, get("/health")).status, 200);
    EXPECT_EQ(ask_once(rig.port, get("/metrics")).status, 200);
    EXPECT_LT(ms_since(start), 20000) << "the replies last 30 s";
    const RawResponse refused = rig.chat(chat_body());
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.fields.count("retry-after"), 1U);
    EXPECT_EQ(refused.fields.at("connection"), "close");
}

TEST(Overload, Idle_connection_gives_way_to_a_new_one) {
    http::Settings settings = quick();
    settings.max_connections = 4;
    settings.keepalive_us = 60'000'000;
    FrontendRig rig(settings);
    std::vector<std::unique_ptr<RawClient>> idle;
    for (int i = 0; i < 3; ++i) {
        idle.push_back(std::make_unique<RawClient>(rig.port));
        idle.back()->send(get("/health"));
        ASSERT_EQ(idle.back()->read().status, 200);
    }
    idle.push_back(std::make_unique<RawClient>(rig.port));
    idle.back()->send(stream_request());
    ASSERT_TRUE(idle.back()->wait_for("[DONE]"));

    EXPECT_EQ(rig.chat(chat_body()).status, 200);
    EXPECT_EQ(rig.chat(chat_body()).status, 200);
}

TEST(Overload, Burst_of_connections_is_served_completely) {
    FrontendRig rig(quick());
    constexpr int kClients = 64;
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    for (int i = 0; i < kClients; ++i) {
        threads.emplace_back([&] {
            RawClient client(rig.port);
            client.send(stream_request());
            good += client.wait_for("[DONE]");
        });
    }
    for (std::thread& t : threads) {
        t.join();
    }
    EXPECT_EQ(good.load(), kClients);
}

TEST(Overload, Bodies_beyond_the_memory_budget_are_put_off) {
    http::Settings settings = quick();
    settings.max_body = 1 << 20;
    settings.timing.body_grace_us = 20'000'000;
    FrontendRig rig(settings);
    std::vector<std::unique_ptr<RawClient>> holders;
    const std::string almost(static_cast<size_t>(settings.max_body) - 2, ' ');
    for (int64_t i = 0; i < http::kBodiesInMemory; ++i) {
        holders.push_back(std::make_unique<RawClient>(rig.port));
        holders.back()->send(
            format("POST /v1/completions HTTP/1.1\r\nHost: "
                   "t\r\nContent-Length: {}\r\n\r\n{}",
                   settings.max_body, almost));
    }

    EXPECT_TRUE(FrontendRig::eventually([&] {
        const RawResponse r = rig.chat(chat_body());
        return r.status == 503 && r.body.find("busy") != std::string::npos;
    }));
    holders.clear();
    EXPECT_TRUE(FrontendRig::eventually([&] { return rig.chat(chat_body()).status == 200; }));
}

// ---- start and end -----------------------------------------------------------------------------

TEST(Lifecycle, Address_in_use_is_named) {
    FrontendRig rig(quick());
    http::Settings settings = quick();
    settings.bind = format("127.0.0.1:{}", rig.port);
    auto second = http::make_frontend(rig.host, rig.engine, settings);
    TENON_EXPECT_ERROR((*second)->start(), Code::invalid_argument, settings.bind);
    TENON_EXPECT_ERROR((*second)->start(), Code::invalid_argument, "another server");
    EXPECT_EQ((*second)->url().str(), "");
}

TEST(Lifecycle, Address_that_does_not_exist_is_named) {
    for (const char* bind : {"192.0.2.1:0", "no-such-host.invalid:1", "127.0.0.1:99999"}) {
        TestHost host;
        FakeEngine engine;
        http::Settings settings = quick();
        settings.bind = bind;
        auto made = http::make_frontend(host, engine, settings);
        TENON_EXPECT_ERROR((*made)->start(), Code::invalid_argument, bind);
    }
}

TEST(Lifecycle, Drain_lets_streams_end_and_refuses_new_connections) {
    FrontendRig rig(quick());
    rig.engine.answer_with(Script().content("first").wait(400'000).content("last").finish("stop"));
    RawClient client(rig.port);
    client.send(stream_request());
    ASSERT_TRUE(client.wait_for("first"));

    TENON_EXPECT_OK(rig.frontend->drain(rig.host.now_us() + 5'000'000));

    EXPECT_TRUE(client.wait_for("last"));
    EXPECT_TRUE(client.wait_for("[DONE]"));
    EXPECT_EQ(rig.engine.cancelled(), 0);
    EXPECT_EQ(ask_once(rig.port, get("/health")).status, 0);
}

TEST(Lifecycle, Drain_ends_what_is_left_with_an_error_event) {
    FrontendRig rig(quick());
    rig.engine.answer_with(Script().content("first").wait(30'000'000).finish("stop"));
    RawClient client(rig.port);
    client.send(stream_request());
    ASSERT_TRUE(client.wait_for("first"));
    const auto start = Clock::now();

    TENON_EXPECT_OK(rig.frontend->drain(rig.host.now_us() + 100'000));

    EXPECT_LT(ms_since(start), 20000) << "the reply alone lasts 30 s";
    EXPECT_TRUE(client.wait_for("\"code\":\"shutdown\""));
    EXPECT_TRUE(client.wait_for("[DONE]"));
    EXPECT_EQ(rig.engine.last_cancel(), CancelReason::shutdown);
    EXPECT_EQ(rig.engine.open_sinks(), 0);
}

TEST(Lifecycle, Idle_connections_do_not_hold_up_a_drain) {
    FrontendRig rig(quick());
    RawClient used(rig.port), fresh(rig.port);
    used.send(get("/health"));
    ASSERT_EQ(used.read().status, 200);
    const auto start = Clock::now();

    TENON_EXPECT_OK(rig.frontend->drain(rig.host.now_us() + 10'000'000));

    EXPECT_LT(ms_since(start), 8000) << "the deadline is 10 s";
    TENON_EXPECT_OK(rig.frontend->drain(0));
}

TEST(Lifecycle, Port_is_free_again_after_drain) {
    http::Settings settings = quick();
    int port = 0;
    {
        FrontendRig rig(settings);
        port = rig.port;
        ASSERT_EQ(ask_once(port, get("/health")).status, 200);
        TENON_EXPECT_OK(rig.frontend->drain(0));
    }
    settings.bind = format("127.0.0.1:{}", port);
    TestHost host;
    FakeEngine engine;
    auto made = http::make_frontend(host, engine, settings);
    TENON_EXPECT_OK((*made)->start());
}

TEST(Lifecycle, Release_with_running_streams_leaves_nothing_behind) {
    const int64_t threads = thread_count();
    const size_t descriptors = open_descriptors().size();
    {
        FrontendRig rig(quick());
        rig.engine.answer_with(Script().content("first").wait(30'000'000).finish("stop"));
        std::vector<std::unique_ptr<RawClient>> clients;
        for (int i = 0; i < 8; ++i) {
            clients.push_back(std::make_unique<RawClient>(rig.port));
            clients.back()->send(stream_request());
            ASSERT_TRUE(clients.back()->wait_for("first"));
        }
        rig.frontend.reset();
        EXPECT_EQ(rig.engine.open_sinks(), 0);
    }
    EXPECT_EQ(thread_count(), threads);
    EXPECT_EQ(open_descriptors().size(), descriptors);
}

}  // namespace

}  // namespace tenon::testing
