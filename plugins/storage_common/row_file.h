// SPDX-License-Identifier: MIT
// An open table file: descriptor, O_DIRECT where the filesystem allows it, optionally a mapping.
#pragma once

#include "tenon/base.h"

namespace tenon::storage {

/// How a table's bytes are to be reached.
enum class Access : uint8_t { direct, buffered, mapped };

/// Owns the descriptor and the mapping. Thread: opened by one, then read only.
class RowFile {
  public:
    /// Opens for reading. `direct` falls back to buffered where the filesystem refuses O_DIRECT;
    /// `refusal` then says why.
    ///
    /// errors  io: path, errno text; invalid_argument: not a regular file
    static Result<RowFile> open(const std::string& path, Access access, std::string* refusal);

    RowFile() = default;
    RowFile(RowFile&& other) noexcept;
    RowFile& operator=(RowFile&& other) noexcept;
    RowFile(const RowFile&) = delete;
    RowFile& operator=(const RowFile&) = delete;
    ~RowFile();

    int fd() const { return fd_; }
    bool direct() const { return direct_; }
    uint64_t bytes() const { return bytes_; }              ///< when it was opened
    const std::byte* mapping() const { return mapping_; }  ///< null unless Access::mapped

    /// Index among a ring's registered files, or -1; set and used by the ring's thread.
    int registered = -1;

  private:
    void close() noexcept;
    Status map(const std::string& path);

    int fd_ = -1;
    bool direct_ = false;
    uint64_t bytes_ = 0;
    std::byte* mapping_ = nullptr;
};

/// "Input/output error (EIO)" for an errno value.
std::string errno_text(int number);

}  // namespace tenon::storage
