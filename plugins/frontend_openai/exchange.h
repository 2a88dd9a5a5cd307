// SPDX-License-Identifier: MIT
// One request and its answer as handlers see them; no handler touches a socket.
#pragma once

#include <string>
#include <string_view>

#include "api_error.h"
#include "framing.h"
#include "wire.h"

namespace tenon::http {

/// Thread: the connection's. Exactly one of `reply`, `fail`, `begin_stream` starts the answer.
class Exchange {
  public:
    Exchange(Wire& wire, const RequestHead& head, const Settings& settings, BodyBudget& bodies);

    const RequestHead& head() const { return head_; }
    const std::string& body() const { return body_; }
    /// Reads the body; its memory counts until `release_body`.
    Refusal take_body() { return read_body(wire_, head_, settings_, lease_, &body_); }
    /// The body is not needed any more; a stream may last for hours.
    void release_body() {
        std::string().swap(body_);
        lease_.give_back();
    }
    std::string_view rest() const { return rest_; }
    void set_rest(std::string_view rest) { rest_ = rest; }
    const std::string& request_id() const { return request_id_; }
    /// A valid key was given, or none is asked for.
    bool is_trusted() const { return is_trusted_; }
    void set_trusted(bool value) { is_trusted_ = value; }
    /// The key that let the client in; "" where none is asked for, whatever it sent.
    std::string_view caller_key() const { return caller_key_; }
    void set_caller_key(std::string_view key) { caller_key_ = key; }

    void reply(int status, std::string_view content_type, std::string_view body);
    void reply_json(std::string_view body) { reply(200, "application/json", body); }
    void fail(const ApiError& error);
    /// Answer of a CORS preflight, or of OPTIONS in general.
    void reply_options(std::string_view allow);

    /// 200 and a body of unknown length. False: the client is gone.
    bool begin_stream(std::string_view content_type);
    /// Sends one piece at once. False: the client is gone or reads nothing.
    bool send(std::string_view piece);
    bool end_stream();

    bool client_gone() const { return wire_.gone(); }
    /// A piece could not be sent because the client reads nothing; else it is gone.
    bool client_stalls() const { return wire_.stalled(); }
    /// The client went away before its answer was whole.
    void abandon() {
        close_after();
        status_ = status_ == 0 ? kClientGone : status_;
    }
    Host& host() { return wire_.host(); }
    int status() const { return status_; }  ///< 0: not answered yet
    /// The answer is complete and the connection may carry another request.
    bool keeps_alive() const { return keep_alive_ && is_whole_; }
    void close_after() { keep_alive_ = false; }

    static constexpr int kClientGone = 499;  ///< never sent; a label in logs and metrics

  private:
    std::string head_text(int status, std::string_view content_type) const;
    void append_cors(std::string* out) const;
    void finish_head(std::string* out) const;

    Wire& wire_;
    const RequestHead& head_;
    const Settings& settings_;
    BodyLease lease_;
    std::string body_;
    std::string_view rest_, caller_key_;
    std::string request_id_;
    std::string piece_;  ///< a chunk being framed; kept for its memory
    int status_ = 0;
    bool is_trusted_ = false;
    bool keep_alive_;
    bool is_whole_ = false;
    bool is_chunked_ = false;
};

/// `length` characters of [a-z0-9], not guessable.
std::string random_text(int length);

}  // namespace tenon::http
