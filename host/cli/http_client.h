// SPDX-License-Identifier: MIT
// A small HTTP/1.1 client for `tenon chat URL`: one POST, its answer line by line. The host links
// no HTTP library; TLS is not spoken.
#pragma once

#include <string>

#include "tenon/base.h"

namespace tenon::cli {

/// "http://host:port/prefix" taken apart.
struct HttpUrl {
    std::string host, port = "80", prefix;
    /// errors  invalid_argument: not of that form, or https
    static Result<HttpUrl> parse(const std::string& url);
};

/// One request and its answer. Thread: one.
class HttpPost {
  public:
    HttpPost() = default;
    ~HttpPost();
    HttpPost(const HttpPost&) = delete;
    HttpPost& operator=(const HttpPost&) = delete;

    /// Sends and reads the answer's head. `bearer` "" = no Authorization.
    /// errors  io: cannot connect, or broken; invalid_argument: an answer that is not HTTP
    Status send(const HttpUrl& url, const std::string& path, const std::string& body,
                const std::string& bearer);
    int status() const { return status_; }
    /// Next line of the body without its end; false at the end of the body or of the connection.
    bool line(std::string* out);
    /// The rest of the body, at most `most` bytes.
    std::string rest(size_t most);

  private:
    bool fill();
    bool raw_line(std::string* out);
    bool more_body();

    int fd_ = -1;
    int status_ = 0;
    bool chunked_ = false;
    bool ended_ = false;
    int64_t left_ = -1;  // bytes of the body or of the current chunk; -1: until the end
    std::string raw_;    // received, not taken yet
    std::string body_;   // decoded, not taken yet
};

}  // namespace tenon::cli
