// SPDX-License-Identifier: MIT
// A client that sends exactly the bytes it is told to, for what well-behaved clients never send.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace tenon::testing {

struct RawResponse {
    int status = 0;                             ///< 0: the connection ended without an answer
    std::map<std::string, std::string> fields;  ///< names in lower case
    std::string body;                           ///< chunks joined
    bool is_whole = false;
};

/// Thread: one. Every wait ends after 10 s.
class RawClient {
  public:
    explicit RawClient(int port);
    ~RawClient();
    RawClient(const RawClient&) = delete;
    RawClient& operator=(const RawClient&) = delete;

    /// False: the server has closed.
    bool send(std::string_view bytes);
    /// The next response; `method` HEAD has no body.
    RawResponse read(std::string_view method = "GET");
    /// What can be read within `for_ms`, as it comes.
    std::string read_bytes(int for_ms);
    /// Waits until `text` has come; false after 10 s or at the end of the connection.
    bool wait_for(std::string_view text);
    /// True if the server ends the connection within `for_ms`; what comes before is dropped.
    bool is_closed_within(int for_ms);
    void end_sending();
    /// Closes with a reset.
    void reset();
    void set_receive_buffer(int bytes);

  private:
    bool fill(int for_ms);
    bool line(std::string* out);
    bool take(size_t bytes, std::string* out);

    int fd_;
    std::string buffer_;
};

/// One request on a connection of its own.
RawResponse ask_once(int port, std::string_view bytes);
/// A well-formed request with JSON body; `extra` are more header lines with CRLF.
std::string post(std::string_view path, std::string_view body, std::string_view extra = "");
std::string get(std::string_view path, std::string_view extra = "");

}  // namespace tenon::testing
