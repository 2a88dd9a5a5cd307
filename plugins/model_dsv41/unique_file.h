// SPDX-License-Identifier: MIT
// A file descriptor that closes itself, with whole reads and writes at offsets.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "tenon/base.h"

namespace tenon::dsv41 {

class UniqueFile {
  public:
    UniqueFile() = default;
    explicit UniqueFile(int fd) : fd_(fd) {}
    UniqueFile(UniqueFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    UniqueFile& operator=(UniqueFile&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    UniqueFile(const UniqueFile&) = delete;
    UniqueFile& operator=(const UniqueFile&) = delete;
    ~UniqueFile() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }
    static bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }
    bool valid() const { return fd_ >= 0; }
    int fd() const { return fd_; }

    Result<int64_t> size() const {
        struct stat info = {};
        if (::fstat(fd_, &info) != 0) {
            return error(Code::io, "fstat: {}", std::strerror(errno));
        }
        return static_cast<int64_t>(info.st_size);
    }
    Status read_at(uint64_t offset, void* dst, size_t bytes) const {
        auto* at = static_cast<char*>(dst);
        while (bytes > 0) {
            const ssize_t n = ::pread(fd_, at, bytes, static_cast<off_t>(offset));
            if (n < 0 && errno == EINTR) {
                continue;
            }
            if (n <= 0) {
                return error(Code::io, "reading {} bytes at {}: {}", bytes, offset,
                             n == 0 ? "end of file" : std::strerror(errno));
            }
            at += n;
            offset += static_cast<uint64_t>(n);
            bytes -= static_cast<size_t>(n);
        }
        return {};
    }
    Status write_at(uint64_t offset, const void* src, size_t bytes) const {
        const auto* at = static_cast<const char*>(src);
        while (bytes > 0) {
            const ssize_t n = ::pwrite(fd_, at, bytes, static_cast<off_t>(offset));
            if (n < 0 && errno == EINTR) {
                continue;
            }
            if (n <= 0) {
                return error(Code::io, "writing {} bytes at {}: {}", bytes, offset,
                             std::strerror(errno));
            }
            at += n;
            offset += static_cast<uint64_t>(n);
            bytes -= static_cast<size_t>(n);
        }
        return {};
    }
    Status flush() const {
        return ::fsync(fd_) == 0 ? Status() : error(Code::io, "fsync: {}", std::strerror(errno));
    }

  private:
    int fd_ = -1;
};

}  // namespace tenon::dsv41
