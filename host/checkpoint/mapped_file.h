// SPDX-License-Identifier: MIT
// A read-only mapping of a whole file.
#pragma once

#include <string>

#include "host/checkpoint/file_identity.h"

namespace tenon {

/// Owns the mapping; bytes stay valid as long as the object. Movable, not copyable.
class MappedFile {
  public:
    /// errors  not_found: no such file; io: cannot be opened or mapped (path and reason)
    static Result<MappedFile> open(const std::string& path);

    MappedFile() = default;
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    ~MappedFile();

    const std::string& path() const { return path_; }
    const uint8_t* data() const { return data_; }
    uint64_t size() const { return identity_.size; }
    /// Of the file when it was mapped.
    const FileIdentity& identity() const { return identity_; }

  private:
    std::string path_;
    const uint8_t* data_ = nullptr;
    FileIdentity identity_;
};

}  // namespace tenon
