// SPDX-License-Identifier: MIT
// Bytes of one connection: buffered reads under a deadline, whole writes, and whether the client is
// still there.
#pragma once

#include <Poco/Net/StreamSocket.h>

#include <string>
#include <string_view>

#include "watch.h"

namespace tenon::http {

enum class ReadEnd {
    ok,
    closed,   ///< the peer ended its side (or was reset)
    expired,  ///< the deadline passed
    too_long,
};

/// Thread: the connection's.
class Wire {
  public:
    Wire(Poco::Net::StreamSocket& socket, Deadline& deadline, Host& host, int64_t write_stall_us);

    /// Waits until at least one byte can be read. The caller arms the deadline.
    ReadEnd wait_for_bytes();
    /// Takes at most `limit` bytes that are there, waiting for the first.
    ReadEnd read_some(char* to, int64_t limit, int64_t* got);
    /// Appends one line without its CRLF; a bare LF or CR is left in the line for the caller to
    /// see.
    ReadEnd read_line(std::string* line, int64_t limit);
    bool has_buffered() const { return begin_ < end_; }

    /// Writes everything. False: the peer is gone, or took nothing for `write_stall_us`.
    bool write(std::string_view bytes);
    /// The last write failed because the peer took nothing.
    bool stalled() const { return stalled_; }
    /// The peer closed, half-closed or reset the connection.
    bool gone() const;
    Deadline& deadline() { return deadline_; }
    Host& host() { return host_; }

    /// Ends our side, reads on until the peer has ended its side or `for_us` has passed: an answer
    /// that leaves while the peer still writes would be lost to a reset.
    void linger(int64_t for_us);

  private:
    ReadEnd fill();

    Poco::Net::StreamSocket& socket_;
    Deadline& deadline_;
    Host& host_;
    const int64_t write_stall_us_;
    bool stalled_ = false;
    size_t begin_ = 0, end_ = 0;
    char buffer_[8192];
};

}  // namespace tenon::http
