// SPDX-License-Identifier: MIT
// Opening of table files.
#include "plugins/storage_common/row_file.h"

#include "plugins/storage_common/row_plan.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tenon::storage {
namespace {

Status open_error(const std::string& path, int number) {
    const char* hint = number == EMFILE ? "; raise the limit on open files (LimitNOFILE)" : "";
    return error(Code::io, "{}: cannot open: {}{}", path, errno_text(number), hint);
}

/// Some filesystems accept the flag and refuse the read, so one block is read.
bool direct_read_works(int fd, uint64_t file_bytes) {
    if (file_bytes == 0) {
        return true;
    }
    struct Free {
        void operator()(void* p) const { std::free(p); }
    };
    const std::unique_ptr<void, Free> block(std::aligned_alloc(kBlockBytes, kBlockBytes));
    return block != nullptr && (::pread(fd, block.get(), kBlockBytes, 0) >= 0 || errno != EINVAL);
}

}  // namespace

std::string errno_text(int number) {
    const char* name = strerrorname_np(number);
    return format("{} ({})",
                  strerrordesc_np(number) == nullptr ? "unknown error" : strerrordesc_np(number),
                  name == nullptr ? std::to_string(number).c_str() : name);
}

Result<RowFile> RowFile::open(const std::string& path, Access access, std::string* refusal) {
    RowFile file;
    // Without O_NONBLOCK a named pipe would block here for ever; regular files ignore it.
    constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    if (access == Access::direct) {
        file.fd_ = ::open(path.c_str(), kFlags | O_DIRECT);
        file.direct_ = file.fd_ >= 0;
        if (file.fd_ < 0 && errno != EINVAL) {
            return open_error(path, errno);
        }
    }
    if (file.fd_ < 0) {
        file.fd_ = ::open(path.c_str(), kFlags);
        if (file.fd_ < 0) {
            return open_error(path, errno);
        }
    }
    struct stat info {};
    if (::fstat(file.fd_, &info) != 0) {
        return error(Code::io, "{}: cannot stat: {}", path, errno_text(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return error(Code::invalid_argument, "{}: not a regular file", path);
    }
    file.bytes_ = static_cast<uint64_t>(info.st_size);
    if (file.direct_ && !direct_read_works(file.fd_, file.bytes_)) {
        const int flags = ::fcntl(file.fd_, F_GETFL);
        if (flags < 0 || ::fcntl(file.fd_, F_SETFL, flags & ~O_DIRECT) != 0) {
            return error(Code::io, "{}: cannot leave O_DIRECT: {}", path, errno_text(errno));
        }
        file.direct_ = false;
    }
    if (access == Access::direct && !file.direct_ && refusal != nullptr) {
        *refusal = "the filesystem refuses O_DIRECT";
    }
    if (access == Access::mapped) {
        TENON_TRY(file.map(path));
    }
    return Result<RowFile>(std::move(file));
}

Status RowFile::map(const std::string& path) {
    if (bytes_ == 0) {
        return {};
    }
    void* at = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd_, 0);
    if (at == MAP_FAILED) {
        return error(Code::io, "{}: cannot map {} bytes: {}", path, bytes_, errno_text(errno));
    }
    mapping_ = static_cast<std::byte*>(at);
    // Rows are scattered: reading around a fault would mostly fetch bytes that nobody asked for.
    static_cast<void>(::madvise(at, bytes_, MADV_RANDOM));
    return {};
}

RowFile::RowFile(RowFile&& other) noexcept {
    *this = std::move(other);
}

RowFile& RowFile::operator=(RowFile&& other) noexcept {
    if (this != &other) {
        close();
        fd_ = std::exchange(other.fd_, -1);
        direct_ = other.direct_;
        bytes_ = other.bytes_;
        mapping_ = std::exchange(other.mapping_, nullptr);
        registered = std::exchange(other.registered, -1);
    }
    return *this;
}

RowFile::~RowFile() {
    close();
}

void RowFile::close() noexcept {
    if (mapping_ != nullptr) {
        ::munmap(std::exchange(mapping_, nullptr), bytes_);
    }
    if (fd_ >= 0) {
        ::close(std::exchange(fd_, -1));
    }
}

}  // namespace tenon::storage
