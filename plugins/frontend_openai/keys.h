// SPDX-License-Identifier: MIT
// API keys from a file: `label: key` lines, read again when the file changes.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "tenon/base.h"

namespace tenon::http {

/// Thread: any.
class Keys {
  public:
    explicit Keys(std::string path) : path_(std::move(path)) {}

    bool required() const { return !path_.empty(); }
    /// errors  io: cannot be read; invalid_argument: others may read it, or a line is malformed
    Status load();
    /// Constant time in the key's bytes. Reads the file again if it changed; a bad new file keeps
    /// the old keys.
    bool allows(const std::string& key);

  private:
    Status read(std::vector<std::string>* out, int64_t* stamp) const;

    const std::string path_;
    std::mutex mutex_;  // guards keys_, stamp_
    std::vector<std::string> keys_;
    int64_t stamp_ = 0;
};

}  // namespace tenon::http
