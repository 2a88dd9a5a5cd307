// SPDX-License-Identifier: MIT
// Blocking sockets; bodies by length, in chunks, or until the connection closes.
#include "host/cli/http_client.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tenon::cli {
namespace {

constexpr size_t kMaxLine = 16 << 20;
constexpr int kAnswerSeconds = 600;  // a long prompt on a slow machine

std::string lower(std::string text) {
    for (char& c : text) {
        c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    }
    return text;
}

}  // namespace

Result<HttpUrl> HttpUrl::parse(const std::string& url) {
    constexpr std::string_view kScheme = "http://";
    if (url.rfind("https://", 0) == 0) {
        return error(Code::invalid_argument,
                     "{}: TLS is not spoken here; use http:// on the machine "
                     "itself or through a tunnel",
                     url);
    }
    if (url.rfind(kScheme, 0) != 0) {
        return error(Code::invalid_argument, "{}: expected http://host:port", url);
    }
    HttpUrl out;
    std::string rest = url.substr(kScheme.size());
    const size_t slash = rest.find('/');
    if (slash != std::string::npos) {
        out.prefix = rest.substr(slash);
        rest.resize(slash);
    }
    while (!out.prefix.empty() && out.prefix.back() == '/') {
        out.prefix.pop_back();
    }
    // Servers print their base URL with /v1; paths bring it along.
    if (out.prefix.size() >= 3 && out.prefix.compare(out.prefix.size() - 3, 3, "/v1") == 0) {
        out.prefix.resize(out.prefix.size() - 3);
    }
    const size_t bracket = rest.rfind(']');  // [::1]:8888
    const size_t colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
    if (colon != std::string::npos) {
        out.port = rest.substr(colon + 1);
        rest.resize(colon);
    }
    out.host = bracket == std::string::npos ? rest : rest.substr(1, bracket - 1);
    const bool digits =
        !out.port.empty() && out.port.find_first_not_of("0123456789") == std::string::npos;
    if (out.host.empty() || !digits) {
        return error(Code::invalid_argument, "{}: expected http://host:port", url);
    }
    // getaddrinfo takes a larger number for its low 16 bits: another server's port.
    if (out.port.size() > 5 || std::stoi(out.port) < 1 || std::stoi(out.port) > 65535) {
        return error(Code::invalid_argument, "{}: port {} is out of range 1…65535", url, out.port);
    }
    return out;
}

HttpPost::~HttpPost() {
    if (fd_ >= 0) {
        ::close(fd_);
    }
}

Status HttpPost::send(const HttpUrl& url, const std::string& path, const std::string& body,
                      const std::string& bearer) {
    const std::string place = url.host + ":" + url.port;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int code = ::getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found)) {
        return error(Code::io, "{}: {}", place, ::gai_strerror(code));
    }
    int why = 0;
    for (addrinfo* a = found; a != nullptr && fd_ < 0; a = a->ai_next) {
        fd_ = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd_ >= 0 && ::connect(fd_, a->ai_addr, a->ai_addrlen) != 0) {
            why = errno;
            ::close(fd_);
            fd_ = -1;
        }
    }
    ::freeaddrinfo(found);
    if (fd_ < 0) {
        return error(Code::io, "{}: cannot connect: {}; is `tenon serve` running?", place,
                     std::strerror(why));
    }
    const timeval limit{kAnswerSeconds, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    std::string text = format(
        "POST {}{} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n"
        "Content-Length: {}\r\nConnection: close\r\n",
        url.prefix, path, place, body.size());
    text += bearer.empty() ? "\r\n" : format("Authorization: Bearer {}\r\n\r\n", bearer);
    text += body;
    for (size_t at = 0; at < text.size();) {
        const ssize_t n = ::send(fd_, text.data() + at, text.size() - at, MSG_NOSIGNAL);
        if (n <= 0) {
            break;  // the server may have answered early, e.g. 413
        }
        at += static_cast<size_t>(n);
    }
    std::string line;
    if (!raw_line(&line)) {
        return error(Code::io, "{}: closed the connection without an answer", place);
    }
    if (line.rfind("HTTP/1.", 0) != 0 || line.size() < 12) {
        return error(Code::invalid_argument, "{}: answers, but not in HTTP: {}", place,
                     line.substr(0, 80));
    }
    status_ = std::atoi(line.c_str() + 9);
    while (raw_line(&line) && !line.empty()) {
        const std::string field = lower(line);
        if (field.rfind("transfer-encoding:", 0) == 0) {
            chunked_ = field.find("chunked") != std::string::npos;
        } else if (field.rfind("content-length:", 0) == 0) {
            left_ = std::atoll(field.c_str() + 15);
        }
    }
    left_ = chunked_ ? 0 : left_;
    return {};
}

bool HttpPost::fill() {
    char piece[16384];
    const ssize_t n = ::recv(fd_, piece, sizeof piece, 0);
    if (n <= 0) {
        return false;
    }
    raw_.append(piece, static_cast<size_t>(n));
    return true;
}

bool HttpPost::raw_line(std::string* out) {
    while (true) {
        const size_t end = raw_.find('\n');
        if (end != std::string::npos) {
            *out = raw_.substr(0, end);
            raw_.erase(0, end + 1);
            if (!out->empty() && out->back() == '\r') {
                out->pop_back();
            }
            return true;
        }
        if (raw_.size() > kMaxLine || !fill()) {
            return false;
        }
    }
}

/// Moves received bytes of the body into body_; false at its end.
bool HttpPost::more_body() {
    if (ended_) {
        return false;
    }
    if (chunked_ && left_ == 0) {
        std::string line;
        // The end of the chunk before leaves an empty line.
        if (!raw_line(&line) || (line.empty() && !raw_line(&line))) {
            ended_ = true;
            return false;
        }
        left_ = std::strtoll(line.c_str(), nullptr, 16);
    }
    if (left_ == 0 || (raw_.empty() && !fill())) {
        ended_ = true;
        return false;
    }
    const size_t n = left_ < 0 ? raw_.size() : std::min(raw_.size(), static_cast<size_t>(left_));
    body_.append(raw_, 0, n);
    raw_.erase(0, n);
    left_ = left_ < 0 ? left_ : left_ - static_cast<int64_t>(n);
    return true;
}

bool HttpPost::line(std::string* out) {
    while (true) {
        const size_t end = body_.find('\n');
        if (end != std::string::npos) {
            *out = body_.substr(0, end);
            body_.erase(0, end + 1);
            if (!out->empty() && out->back() == '\r') {
                out->pop_back();
            }
            return true;
        }
        if (body_.size() > kMaxLine) {
            return false;
        }
        if (!more_body()) {
            *out = std::move(body_);
            body_.clear();
            return !out->empty();
        }
    }
}

std::string HttpPost::rest(size_t most) {
    while (body_.size() < most && more_body()) {
    }
    return body_.substr(0, most);
}

}  // namespace tenon::cli
