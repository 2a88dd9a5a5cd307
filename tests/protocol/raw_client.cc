// SPDX-License-Identifier: MIT
// Plain sockets and a small response reader.
#include "protocol/raw_client.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>

namespace tenon::testing {

namespace {
constexpr int kPatienceMs = 10'000;
}

RawClient::RawClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        ::close(fd_);
        fd_ = -1;
    }
}

RawClient::~RawClient() {
    if (fd_ >= 0) {
        ::close(fd_);
    }
}

bool RawClient::send(std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (n <= 0) {
            return false;
        }
        bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
}

bool RawClient::fill(int for_ms) {
    pollfd p{fd_, POLLIN, 0};
    if (fd_ < 0 || ::poll(&p, 1, for_ms) <= 0) {
        return false;
    }
    char bytes[16384];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) {
        return false;
    }
    buffer_.append(bytes, static_cast<size_t>(n));
    return true;
}

bool RawClient::line(std::string* out) {
    for (;;) {
        const size_t end = buffer_.find("\r\n");
        if (end != std::string::npos) {
            *out = buffer_.substr(0, end);
            buffer_.erase(0, end + 2);
            return true;
        }
        if (!fill(kPatienceMs)) {
            return false;
        }
    }
}

bool RawClient::take(size_t bytes, std::string* out) {
    while (buffer_.size() < bytes) {
        if (!fill(kPatienceMs)) {
            return false;
        }
    }
    out->append(buffer_, 0, bytes);
    buffer_.erase(0, bytes);
    return true;
}

RawResponse RawClient::read(std::string_view method) {
    RawResponse r;
    std::string text;
    if (!line(&text) || text.rfind("HTTP/1.1 ", 0) != 0) {
        return r;
    }
    r.status = std::atoi(text.c_str() + 9);
    while (line(&text) && !text.empty()) {
        const size_t colon = text.find(':');
        std::string name = text.substr(0, colon);
        std::transform(name.begin(), name.end(), name.begin(),
                       [](char c) { return static_cast<char>(std::tolower(c)); });
        r.fields[name] = text.substr(std::min(colon + 2, text.size()));
    }
    if (r.status == 100) {
        return read(method);
    }
    if (method == "HEAD" || r.status == 204) {
        r.is_whole = true;
    } else if (r.fields.count("content-length") > 0) {
        r.is_whole = take(std::stoul(r.fields["content-length"]), &r.body);
    } else if (r.fields.count("transfer-encoding") > 0) {
        while (line(&text)) {
            const size_t size = std::strtoul(text.c_str(), nullptr, 16);
            std::string end;
            if (!take(size, &r.body) || !line(&end)) {
                break;
            }
            if (size == 0) {
                r.is_whole = true;
                break;
            }
        }
    } else {
        while (fill(kPatienceMs)) {
        }
        r.body.swap(buffer_);
        r.is_whole = true;
    }
    return r;
}

std::string RawClient::read_bytes(int for_ms) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(for_ms);
    while (std::chrono::steady_clock::now() < until) {
        fill(10);
    }
    std::string out;
    out.swap(buffer_);
    return out;
}

bool RawClient::wait_for(std::string_view text) {
    while (buffer_.find(text) == std::string::npos) {
        if (!fill(kPatienceMs)) {
            return false;
        }
    }
    return true;
}

bool RawClient::is_closed_within(int for_ms) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(for_ms);
    while (std::chrono::steady_clock::now() < until) {
        pollfd p{fd_, POLLIN, 0};
        if (::poll(&p, 1, 20) > 0) {
            char bytes[4096];
            if (::recv(fd_, bytes, sizeof bytes, 0) <= 0) {
                return true;
            }
        }
    }
    return false;
}

void RawClient::end_sending() {
    ::shutdown(fd_, SHUT_WR);
}

void RawClient::reset() {
    const linger now = {1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    ::close(fd_);
    fd_ = -1;
}

void RawClient::set_receive_buffer(int bytes) {
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

RawResponse ask_once(int port, std::string_view bytes) {
    RawClient client(port);
    client.send(bytes);
    return client.read(bytes.substr(0, bytes.find(' ')));
}

std::string post(std::string_view path, std::string_view body, std::string_view extra) {
    std::string out = "POST ";
    out.append(path).append(" HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n");
    out.append(extra).append("Content-Length: ").append(std::to_string(body.size()));
    return out.append("\r\n\r\n").append(body);
}

std::string get(std::string_view path, std::string_view extra) {
    std::string out = "GET ";
    return out.append(path).append(" HTTP/1.1\r\nHost: t\r\n").append(extra).append("\r\n");
}

}  // namespace tenon::testing
