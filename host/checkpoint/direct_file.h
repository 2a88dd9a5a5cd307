// SPDX-License-Identifier: MIT
// Reads ranges of a large file past the page cache.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "host/checkpoint/file_identity.h"

namespace tenon {

/// One file, open for reading with O_DIRECT; buffered where the file system refuses that (tmpfs,
/// some overlays and network file systems). Any range may be read; blocks go straight into the
/// caller's memory where offset and address are the same modulo `kBlock`, else through a copy. Any
/// thread, several at once.
class DirectFile {
  public:
    static constexpr uint64_t kBlock = 4096;

    /// errors  not_found: no such file; io: cannot be opened (path and reason)
    static Result<std::unique_ptr<DirectFile>> open(const std::string& path);
    ~DirectFile();
    DirectFile(const DirectFile&) = delete;
    DirectFile& operator=(const DirectFile&) = delete;

    /// Copies bytes [offset, offset + bytes) of the file to `dst`. errors  io: the device's, or the
    /// file ends before (path, byte and reason)
    Status read(uint64_t offset, uint64_t bytes, void* dst);

    /// Of the open file now. errors  io
    Result<FileIdentity> identity() const;

    /// false: the file system refused O_DIRECT, at `open` or at the first read.
    bool direct() const { return direct_.load(std::memory_order_relaxed); }

  private:
    DirectFile(std::string path, int fd, bool direct)
        : path_(std::move(path)), fd_(fd), direct_(direct) {}
    void stop_direct();

    const std::string path_;
    const int fd_;
    std::atomic<bool> direct_;  // goes from true to false once; a late reader only aligns in vain
};

}  // namespace tenon
