// SPDX-License-Identifier: MIT
// Which file a path or descriptor names, and in which state: what was checked must be what is read.
#pragma once

#include <sys/stat.h>

#include <string>

#include "tenon/base.h"

namespace tenon {

struct FileIdentity {
    uint64_t device = 0, inode = 0, size = 0;
    int64_t written_s = 0, written_ns = 0;  ///< st_mtim

    FileIdentity() = default;
    explicit FileIdentity(const struct stat& st)
        : device(st.st_dev),
          inode(st.st_ino),
          size(static_cast<uint64_t>(st.st_size)),
          written_s(st.st_mtim.tv_sec),
          written_ns(st.st_mtim.tv_nsec) {}
    bool operator==(const FileIdentity&) const = default;
    bool same_file(const FileIdentity& other) const {
        return device == other.device && inode == other.inode;
    }
};

/// `found` is `expected`. errors  io: replaced, or of another size or time (path, both, what to do)
Status check_identity(const std::string& path, const FileIdentity& found,
                      const FileIdentity& expected);

}  // namespace tenon
