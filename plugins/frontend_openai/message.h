// SPDX-License-Identifier: MIT
// One HTTP request as read and checked, and the writer of its answer.
#pragma once

#include <map>
#include <string>

#include "api_error.h"
#include "settings.h"
#include "wire.h"

namespace tenon::http {

struct Request {
    std::string method, target, path;
    bool http11 = true;
    std::map<std::string, std::string> fields;  ///< names in lower case
    std::string body;
    bool keep_alive = true;

    const std::string* field(const std::string& name) const {
        const auto it = fields.find(name);
        return it == fields.end() ? nullptr : &it->second;
    }
};

/// How reading went: a request, the end of the connection, or a refusal after which it closes.
enum class ReadState { request, ended, refused };

/// Reads head and framing of the next request, not its body. All framing that two readers could
/// understand differently is refused (both lengths, odd chunk sizes, control characters, no Host).
ReadState read_head(Wire& wire, const Settings& settings, bool reserved, Request* out,
                    ApiError* why);
/// Reads the body that the head announced; answers `Expect: 100-continue` first.
ReadState read_body(Wire& wire, const Settings& settings, Request* request, ApiError* why);

/// Writes one answer. Thread: the connection's.
class Answer {
  public:
    Answer(Wire& wire, const Request& request, const Settings& settings)
        : wire_(wire), request_(request), settings_(settings) {}

    void json(int status, const std::string& body) { send(status, "application/json", body); }
    void error(const ApiError& error);
    void send(int status, const std::string& type, const std::string& body,
              const std::string& extra = "");
    /// Begins a stream of server-sent events.
    bool begin_events();
    /// One piece of a stream, already with its "data: " and blank line.
    bool piece(const std::string& text);
    void end_events();
    bool begun() const { return begun_; }
    bool keeps_alive() const { return keep_alive_ && request_.keep_alive; }
    void close_after() { keep_alive_ = false; }
    Wire& wire() { return wire_; }

  private:
    std::string head(int status, const std::string& type, const std::string& extra) const;

    Wire& wire_;
    const Request& request_;
    const Settings& settings_;
    bool begun_ = false;
    bool keep_alive_ = true;
};

}  // namespace tenon::http
