// SPDX-License-Identifier: MIT
// The client of `tenon chat URL` against a server that answers with given bytes.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "host/cli/http_client.h"

namespace tenon::cli {
namespace {

/// Takes one connection, reads the request, and sends `pieces` one by one.
class OneAnswer {
  public:
    explicit OneAnswer(std::vector<std::string> pieces) {
        fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ::bind(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at);
        ::listen(fd_, 1);
        socklen_t size = sizeof at;
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size);
        url_ = "http://127.0.0.1:" + std::to_string(ntohs(at.sin_port));
        thread_ = std::thread([this, pieces = std::move(pieces)] { answer(pieces); });
    }
    ~OneAnswer() {
        thread_.join();
        ::close(fd_);
    }
    const std::string& url() const { return url_; }
    const std::string& request() const { return request_; }

  private:
    void answer(const std::vector<std::string>& pieces) {
        const int client = ::accept(fd_, nullptr, nullptr);
        char buffer[4096];
        while (request_.find("BODY") == std::string::npos) {
            const ssize_t n = ::recv(client, buffer, sizeof buffer, 0);
            if (n <= 0) {
                break;
            }
            request_.append(buffer, static_cast<size_t>(n));
        }
        for (const std::string& piece : pieces) {
            ::send(client, piece.data(), piece.size(), MSG_NOSIGNAL);
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        ::close(client);
    }

    int fd_ = -1;
    std::string url_, request_;
    std::thread thread_;
};

struct Answer {
    Status status;
    int code = 0;
    std::vector<std::string> lines;
    std::string request;
};

Answer ask(std::vector<std::string> pieces, const std::string& suffix = "") {
    OneAnswer server(std::move(pieces));
    Answer out;
    auto url = HttpUrl::parse(server.url() + suffix);
    EXPECT_TRUE(url.ok());
    HttpPost post;
    out.status = post.send(*url, "/v1/x", "BODY", "secret");
    out.code = post.status();
    std::string line;
    while (out.status.ok() && post.line(&line)) {
        out.lines.push_back(line);
    }
    out.request = server.request();
    return out;
}

TEST(HttpClient, Reads_a_body_of_stated_length) {
    const Answer a =
        ask({"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\none\n", "two\r\nbehind the end"});

    ASSERT_TRUE(a.status.ok());
    EXPECT_EQ(a.code, 200);
    EXPECT_EQ(a.lines, (std::vector<std::string>{"one", "two"}));
    EXPECT_NE(a.request.find("POST /v1/x HTTP/1.1\r\n"), std::string::npos);
    EXPECT_NE(a.request.find("Authorization: Bearer secret\r\n"), std::string::npos);
    EXPECT_NE(a.request.find("Content-Length: 4\r\n"), std::string::npos);
}

TEST(HttpClient, Joins_lines_that_chunks_cut) {
    const Answer a = ask({"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", "7\r\ndata: h",
                          "\r\n", "C;x=1\r\nello\ndata: t\r\n", "3\r\nwo\n\r\n0\r\n\r\n"});

    EXPECT_EQ(a.lines, (std::vector<std::string>{"data: hello", "data: two"}));
}

TEST(HttpClient, Without_a_length_the_body_ends_with_the_connection) {
    EXPECT_EQ(ask({"HTTP/1.0 503 Busy\r\n\r\na\nb"}).lines, (std::vector<std::string>{"a", "b"}));
}

TEST(HttpClient, Broken_answers_are_errors) {
    EXPECT_EQ(ask({}).status.code(), Code::io);
    EXPECT_EQ(ask({"SSH-2.0-OpenSSH\r\n"}).status.code(), Code::invalid_argument);
    EXPECT_TRUE(ask({"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}).lines.empty());
}

TEST(HttpClient, A_base_URL_with_v1_means_the_same_as_without) {
    const Answer a = ask({"HTTP/1.1 200 OK\r\n\r\n"}, "/v1/");
    EXPECT_NE(a.request.find("POST /v1/x HTTP/1.1\r\n"), std::string::npos) << a.request;
    const Answer b = ask({"HTTP/1.1 200 OK\r\n\r\n"}, "/tenon");
    EXPECT_NE(b.request.find("POST /tenon/v1/x HTTP/1.1\r\n"), std::string::npos) << b.request;
}

TEST(HttpClient, URLs_are_taken_apart_or_refused) {
    EXPECT_EQ(HttpUrl::parse("http://h")->port, "80");
    EXPECT_EQ(HttpUrl::parse("http://[::1]:8888")->host, "::1");
    EXPECT_EQ(HttpUrl::parse("http://[::1]:8888")->port, "8888");
    for (const char* url : {"https://h", "h:80", "http://", "http://h:", "http://h:x", "ftp://h"}) {
        EXPECT_EQ(HttpUrl::parse(url).status().code(), Code::invalid_argument) << url;
    }
    HttpPost post;
    const Status status = post.send(*HttpUrl::parse("http://127.0.0.1:1"), "/", "", "");
    EXPECT_EQ(status.code(), Code::io);
    EXPECT_NE(status.message().str().find("cannot connect"), std::string::npos);
}

}  // namespace
}  // namespace tenon::cli
