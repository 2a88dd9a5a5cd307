// SPDX-License-Identifier: MIT
// API keys from a file that may change while the server runs.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tenon/host.h"

namespace tenon::http {

struct ApiKey {
    std::string label;
    std::string key;
};

/// Lines "label: key"; blank lines and lines that start with '#' are skipped.
/// errors  invalid_argument: a line of another form, an empty or doubled label or key (names the
/// line)
Result<std::vector<ApiKey>> parse_keys(std::string_view text, std::string_view file);

/// Compares in a time that depends on the length of `given` only.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

/// The keys of one file, re-read when it changes. Thread: any.
class KeyStore {
  public:
    /// No file: every client is let in.
    explicit KeyStore(Host& host, std::string file);

    /// First reading. errors  not_found, io: no such file; invalid_argument: mode wider than 0600,
    /// a malformed line, no key at all
    Status load();
    bool asks_for_key() const { return !file_.empty(); }
    /// True if `key` is one of the keys. A changed file is read first, by one caller; others go by
    /// the old keys meanwhile, also if the read never ends. If it cannot be used, the old keys stay
    /// and the log says why.
    bool accepts(std::string_view key);

  private:
    using Keys = std::shared_ptr<const std::vector<ApiKey>>;
    Result<std::vector<ApiKey>> read(struct stat* info) const;
    Keys current();
    void check();

    Host& host_;
    const std::string file_;
    std::mutex mutex_;  // guards everything below; never held while the file is read
    // Shared, because a request compares against the list it took while another one replaces it.
    Keys keys_;
    struct stat seen_ = {};
    int64_t checked_us_ = 0;
    bool checking_ = false;  ///< somebody looks at the file
};

}  // namespace tenon::http
