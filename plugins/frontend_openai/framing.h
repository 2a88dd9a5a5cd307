// SPDX-License-Identifier: MIT
// Where one HTTP/1.x message begins and ends. Everything that two hops could read differently
// (lengths, encodings, line ends, folded fields) is refused here, before anyone looks at the
// content.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "api_error.h"
#include "settings.h"
#include "wire.h"

namespace tenon::http {

struct RequestHead {
    std::string method;
    std::string path;                                         ///< percent-decoded, without query
    std::string query;                                        ///< as written
    int minor = 1;                                            ///< HTTP/1.minor
    std::vector<std::pair<std::string, std::string>> fields;  ///< names in lower case
    bool is_chunked = false;
    int64_t content_length = -1;  ///< -1: none
    bool expects_continue = false;
    bool keep_alive = true;

    /// The first field of that (lower-case) name, "" if absent.
    std::string_view field(std::string_view name) const;
    bool has_body() const { return is_chunked || content_length > 0; }
};

/// How reading a head ended.
struct HeadResult {
    ReadEnd end = ReadEnd::ok;
    Refusal refusal;  ///< with end == ok: the message is refused, the connection ends
};

/// Reads request line and fields. The caller has armed the deadline.
HeadResult read_head(Wire& wire, RequestHead* out);

/// Checks request line and fields (lines without CRLF). Separate for tests.
Refusal parse_head(const std::vector<std::string>& lines, RequestHead* out);

/// Bytes of all request bodies in memory, against a budget. Thread: any.
class BodyBudget {
  public:
    explicit BodyBudget(int64_t limit) : limit_(limit) {}
    bool take(int64_t bytes);
    void give(int64_t bytes) { used_.fetch_sub(bytes); }

  private:
    const int64_t limit_;
    std::atomic<int64_t> used_{0};
};

/// A body's share of the budget, returned at the end.
class BodyLease {
  public:
    explicit BodyLease(BodyBudget& budget) : budget_(budget) {}
    BodyLease(const BodyLease&) = delete;
    BodyLease& operator=(const BodyLease&) = delete;
    ~BodyLease() { give_back(); }
    /// Makes the share at least `bytes`.
    bool grow_to(int64_t bytes);
    void give_back() {
        budget_.give(held_);
        held_ = 0;
    }

  private:
    BodyBudget& budget_;
    int64_t held_ = 0;
};

/// Reads the whole body. A refusal leaves the connection without a border to go on from.
Refusal read_body(Wire& wire, const RequestHead& head, const Settings& settings, BodyLease& lease,
                  std::string* out);

}  // namespace tenon::http
