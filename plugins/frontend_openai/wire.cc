// SPDX-License-Identifier: MIT
// Reads and writes through Poco's socket, so that plain and TLS connections are one case.
#include "wire.h"

#include <Poco/Exception.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace tenon::http {

namespace {
constexpr int64_t kLingerBytes = 64 << 20;
}  // namespace

Wire::Wire(Poco::Net::StreamSocket& socket, Deadline& deadline, Host& host, int64_t write_stall_us)
    : socket_(socket), deadline_(deadline), host_(host), write_stall_us_(write_stall_us) {}

ReadEnd Wire::fill() {
    int got = 0;
    try {
        got = socket_.receiveBytes(buffer_, sizeof buffer_);
    } catch (const Poco::Exception&) {
        got = 0;  // reset, TLS failure: the peer is of no more use
    }
    if (got <= 0) {
        return deadline_.fired() ? ReadEnd::expired : ReadEnd::closed;
    }
    begin_ = 0;
    end_ = static_cast<size_t>(got);
    return ReadEnd::ok;
}

ReadEnd Wire::wait_for_bytes() {
    return has_buffered() ? ReadEnd::ok : fill();
}

ReadEnd Wire::read_some(char* to, int64_t limit, int64_t* got) {
    *got = 0;
    if (const ReadEnd end = wait_for_bytes(); end != ReadEnd::ok) {
        return end;
    }
    const size_t n = std::min(end_ - begin_, static_cast<size_t>(limit));
    std::memcpy(to, buffer_ + begin_, n);
    begin_ += n;
    *got = static_cast<int64_t>(n);
    return ReadEnd::ok;
}

ReadEnd Wire::read_line(std::string* line, int64_t limit) {
    for (;;) {
        if (const ReadEnd end = wait_for_bytes(); end != ReadEnd::ok) {
            return end;
        }
        const char* from = buffer_ + begin_;
        const void* newline = std::memchr(from, '\n', end_ - begin_);
        const size_t n = newline == nullptr
                             ? end_ - begin_
                             : static_cast<size_t>(static_cast<const char*>(newline) - from) + 1;
        if (static_cast<int64_t>(line->size() + n) > limit) {
            return ReadEnd::too_long;
        }
        line->append(from, n);
        begin_ += n;
        if (newline != nullptr) {
            if (line->size() >= 2 && (*line)[line->size() - 2] == '\r') {
                line->resize(line->size() - 2);
            }
            return ReadEnd::ok;
        }
    }
}

bool Wire::write(std::string_view bytes) {
    // The clock runs per write that makes progress: a slow reader is fine, a standing one is not.
    while (!bytes.empty()) {
        deadline_.arm(host_.now_us() + write_stall_us_, Deadline::Closes::both);
        int sent = 0;
        try {
            const int n = static_cast<int>(std::min<size_t>(bytes.size(), 64 * 1024));
            sent = socket_.sendBytes(bytes.data(), n, MSG_NOSIGNAL);
        } catch (const Poco::Exception&) {
            sent = 0;
        }
        stalled_ = !deadline_.disarm();
        if (stalled_ || sent <= 0) {
            return false;
        }
        bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
}

bool Wire::gone() const {
    // POLLRDHUP sees the end of the peer's side even behind unread bytes.
    pollfd p{socket_.impl()->sockfd(), POLLRDHUP, 0};
    return ::poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

void Wire::linger(int64_t for_us) {
    try {
        socket_.shutdownSend();
    } catch (const Poco::Exception&) {
        return;
    }
    if (!deadline_.arm(host_.now_us() + for_us)) {
        return;
    }
    int64_t read = 0;
    while (read < kLingerBytes && fill() == ReadEnd::ok) {
        read += static_cast<int64_t>(end_ - begin_);
        begin_ = end_;
    }
}

}  // namespace tenon::http
