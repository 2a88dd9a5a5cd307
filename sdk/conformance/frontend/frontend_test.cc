// SPDX-License-Identifier: MIT
// Rules of front ends: they listen, say where, refuse while the engine is not ready, and end
// without leaving threads, sockets or memory behind.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tenon/engine.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {
namespace {

/// Text functions of a model that is still loading.
class NoText final : public Implements<NoText, TextCodec> {
  public:
    TextInfo info() noexcept override { return {}; }
    Status render(StrView, Prompt**) noexcept override { return none(); }
    Status encode(StrView, uint32_t, TokenList**) noexcept override { return none(); }
    Status decode(Span<const int32_t>, uint32_t, Blob**) noexcept override { return none(); }
    Status make_parser(const ReplyParserConfig&, ReplyParser**) noexcept override { return none(); }
    Status make_stop(const ReplyParserConfig&, StopMatcher**) noexcept override { return none(); }
    Status make_decoder(uint32_t, StreamDecoder**) noexcept override { return none(); }
    StrView token_bytes(int32_t) noexcept override { return {}; }

  private:
    static Status none() { return Status(Code::unavailable, "the model is loading"); }
};

/// An engine in a state of the test's choice that refuses every request.
class LoadingEngine final : public Implements<LoadingEngine, Engine> {
  public:
    EngineInfo info() noexcept override {
        EngineInfo info;
        info.slots = 1;
        info.context_tokens = 1024;
        info.served_name = "conformance";
        info.version = "0";
        return info;
    }
    TextCodec& text() noexcept override { return *text_; }
    Status submit(const RequestDesc&, ReplySink**) noexcept override {
        ++submitted;
        return Status(Code::unavailable, "not ready");
    }
    void stats(EngineStats* out) noexcept override {
        *out = EngineStats{};
        out->state = state;
    }
    uint64_t cache_salt(StrView, StrView) noexcept override { return 0; }
    Status render(StrView request_json, uint64_t, Prompt** out) noexcept override {
        return text_->render(request_json, out);
    }
    int32_t retry_after_s() noexcept override { return 1; }

    std::atomic<int> submitted = 0;
    std::atomic<EngineState> state = EngineState::loading;

  private:
    Ref<NoText> text_{new NoText};
};

bool has_option(const Component& component, const std::string& key) {
    for (const OptionSpec& option : component.options) {
        if (std::string(option.key) == key) {
            return true;
        }
    }
    return false;
}

class FrontendRules : public ::testing::TestWithParam<const Component*> {
  protected:
    void SetUp() override { host_.provide(Engine::kFacet, engine_.get()); }

    Status drain(Created<Frontend>& frontend, int64_t within_us = 1'000'000) {
        return frontend->drain(host_.now_us() + within_us);
    }

    /// Created with the given address, port 0 if the front end has an option `bind`.
    Result<Created<Frontend>> make(const std::string& address = "127.0.0.1:0") {
        OptionSet options(*GetParam());
        if (has_option(*GetParam(), "bind")) {
            options.set("bind", address);
        }
        return Created<Frontend>::make(*GetParam(), host_, options);
    }

    TestHost host_;
    Ref<LoadingEngine> engine_{new LoadingEngine};
};

TENON_INSTANTIATE_FOR_KIND(FrontendRules, PluginKind::frontend);

/// Port of "http://127.0.0.1:8888" or "https://…"; 0 if the text is no such URL.
int port_of(const std::string& url) {
    const size_t colon = url.rfind(':');
    return url.rfind("http", 0) == 0 && colon != std::string::npos
               ? std::atoi(url.c_str() + colon + 1)
               : 0;
}

/// A connection to that port of this machine; -1 if refused.
int connect_to(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    timeval limit{5, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
        ::close(fd);
        return -1;
    }
    return fd;
}

/// First line of the answer to a GET; "" if there is none within 5 s.
std::string status_line(int port, const std::string& path) {
    const int fd = connect_to(port);
    if (fd < 0) {
        return "";
    }
    const std::string request =
        "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    std::string answer;
    if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
        static_cast<ssize_t>(request.size())) {
        char part[512];
        ssize_t n = 0;
        while (answer.find("\r\n") == std::string::npos && (n = ::recv(fd, part, 512, 0)) > 0) {
            answer.append(part, static_cast<size_t>(n));
        }
    }
    ::close(fd);
    return answer.substr(0, answer.find("\r\n"));
}

TEST_P(FrontendRules, Without_an_engine_it_is_not_created) {
    TestHost empty;
    OptionSet options(*GetParam());
    const auto made = Created<Frontend>::make(*GetParam(), empty, options);

    ASSERT_FALSE(made.ok());
    EXPECT_NE(made.status().message().str().find(Engine::kFacet), std::string::npos)
        << made.status().message().view();
}

TEST_P(FrontendRules, Says_where_it_listens_and_refuses_while_the_engine_loads) {
    auto frontend = make();
    ASSERT_TRUE(frontend.ok()) << frontend.status().message().view();
    TENON_ASSERT_OK((*frontend)->start());
    const std::string url = (*frontend)->url().str();
    if (url.empty()) {
        GTEST_SKIP() << "mounted in another front end";
    }
    const int port = port_of(url);
    ASSERT_GT(port, 0) << url;
    if (url.rfind("https", 0) != 0) {
        const std::string line = status_line(port, "/health");
        EXPECT_EQ(line.rfind("HTTP/1.1 503", 0), 0u) << "GET /health while loading: " << line;
    }
    EXPECT_EQ(engine_->submitted, 0);
    TENON_EXPECT_OK(drain(*frontend));
    EXPECT_EQ(connect_to(port), -1) << "accepts after drain";
}

TEST_P(FrontendRules, Health_follows_the_engine) {
    auto frontend = make();
    ASSERT_TRUE(frontend.ok()) << frontend.status().message().view();
    TENON_ASSERT_OK((*frontend)->start());
    const std::string url = (*frontend)->url().str();
    if (url.empty() || url.rfind("https", 0) == 0) {
        GTEST_SKIP() << "nothing to ask over plain HTTP";
    }
    const std::pair<EngineState, const char*> states[] = {{EngineState::ready, "HTTP/1.1 200"},
                                                          {EngineState::draining, "HTTP/1.1 503"},
                                                          {EngineState::ready, "HTTP/1.1 200"},
                                                          {EngineState::failed, "HTTP/1.1 503"}};
    for (const auto& [state, expected] : states) {
        engine_->state = state;
        const std::string line = status_line(port_of(url), "/health");
        EXPECT_EQ(line.rfind(expected, 0), 0u)
            << "state " << static_cast<uint32_t>(state) << ": " << line;
    }
    TENON_EXPECT_OK(drain(*frontend));
}

TEST_P(FrontendRules, Serves_on_beside_clients_that_say_nothing_or_nonsense) {
    auto frontend = make();
    ASSERT_TRUE(frontend.ok()) << frontend.status().message().view();
    TENON_ASSERT_OK((*frontend)->start());
    const std::string url = (*frontend)->url().str();
    if (url.empty() || url.rfind("https", 0) == 0) {
        GTEST_SKIP() << "nothing to ask over plain HTTP";
    }
    engine_->state = EngineState::ready;
    std::vector<int> clients;
    std::vector<std::string> texts(8);  // silent ones
    texts.insert(texts.end(), {std::string("\0\xff\r\n\r\n", 6), "GET /hea",
                               "POST /health HTTP/1.1\r\nContent-Length: -1\r\n\r\n"});
    for (const std::string& text : texts) {
        clients.push_back(connect_to(port_of(url)));
        ASSERT_GE(clients.back(), 0);
        ASSERT_EQ(::send(clients.back(), text.data(), text.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(text.size()));
        const std::string line = status_line(port_of(url), "/health");
        EXPECT_EQ(line.rfind("HTTP/1.1 200", 0), 0u) << "after '" << text << "': " << line;
    }
    EXPECT_EQ(engine_->submitted, 0);
    TENON_EXPECT_OK(drain(*frontend));
    for (const int fd : clients) {
        ::close(fd);
    }
}

TEST_P(FrontendRules, Is_released_without_a_drain_and_without_a_start) {
    int port = 0;
    const int64_t threads = thread_count();
    {
        auto unused = make();
        ASSERT_TRUE(unused.ok()) << unused.status().message().view();
        auto frontend = make();
        ASSERT_TRUE(frontend.ok()) << frontend.status().message().view();
        TENON_ASSERT_OK((*frontend)->start());
        port = port_of((*frontend)->url().str());
    }
    EXPECT_EQ(thread_count(), threads);
    if (port != 0) {
        EXPECT_EQ(connect_to(port), -1) << "accepts after release";
    }
}

TEST_P(FrontendRules, An_address_in_use_is_an_error_that_names_it) {
    auto first = make();
    ASSERT_TRUE(first.ok()) << first.status().message().view();
    TENON_ASSERT_OK((*first)->start());
    const std::string url = (*first)->url().str();
    if (url.empty() || !has_option(*GetParam(), "bind")) {
        GTEST_SKIP() << "no address of its own";
    }
    const std::string address = "127.0.0.1:" + std::to_string(port_of(url));
    auto second = make(address);
    ASSERT_TRUE(second.ok()) << second.status().message().view();

    TENON_EXPECT_ERROR((*second)->start(), Code::invalid_argument, std::to_string(port_of(url)));
    TENON_EXPECT_OK(drain(*second));
    TENON_EXPECT_OK(drain(*first));
}

TEST_P(FrontendRules, Drains_in_time_beside_a_client_that_says_nothing) {
    auto frontend = make();
    ASSERT_TRUE(frontend.ok()) << frontend.status().message().view();
    TENON_ASSERT_OK((*frontend)->start());
    const std::string url = (*frontend)->url().str();
    if (url.empty()) {
        GTEST_SKIP() << "mounted in another front end";
    }
    const int silent = connect_to(port_of(url));
    ASSERT_GE(silent, 0);
    if (url.rfind("https", 0) != 0) {
        status_line(port_of(url), "/health");  // once it is answered, the silent one is accepted
    }
    const auto begin = std::chrono::steady_clock::now();
    TENON_EXPECT_OK(drain(*frontend, 500'000));
    const auto took = std::chrono::steady_clock::now() - begin;
    // The deadline of 0.5 s and what closing costs; a front end that waits for the client to be
    // late with its header takes longer.
    EXPECT_LT(took, std::chrono::seconds(8));
    ::close(silent);
}

TEST_P(FrontendRules, Leaves_no_threads_and_no_descriptors) {
    {  // what a first run keeps for good (locale, resolver) is not a leak
        auto warm = make();
        ASSERT_TRUE(warm.ok()) << warm.status().message().view();
        TENON_ASSERT_OK((*warm)->start());
        TENON_ASSERT_OK(drain(*warm));
    }
    const int64_t threads = thread_count();
    const size_t descriptors = open_descriptors().size();
    for (int i = 0; i < 3; ++i) {
        auto frontend = make();
        ASSERT_TRUE(frontend.ok()) << frontend.status().message().view();
        TENON_ASSERT_OK((*frontend)->start());
        const std::string url = (*frontend)->url().str();
        if (!url.empty() && url.rfind("https", 0) != 0) {
            status_line(port_of(url), "/health");
        }
        TENON_ASSERT_OK(drain(*frontend));
    }
    EXPECT_EQ(thread_count(), threads);
    EXPECT_EQ(open_descriptors().size(), descriptors)
        << ::testing::PrintToString(open_descriptors());
}

}  // namespace
}  // namespace tenon::testing
