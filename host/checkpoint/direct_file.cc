// SPDX-License-Identifier: MIT
// O_DIRECT wants offset, length and address in whole blocks: what is not so goes through a buffer
// of the call's own.
#include "host/checkpoint/direct_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tenon {
namespace {

constexpr uint64_t kBounce = 2ull << 20;  // large enough for a disk's rate, small enough for malloc
constexpr uint64_t kLongest = 1ull << 30;  // of one pread, below Linux's limit of 2^31 - 4096

uint64_t whole_blocks(uint64_t bytes) {
    return (bytes + DirectFile::kBlock - 1) / DirectFile::kBlock * DirectFile::kBlock;
}

/// What file systems without O_DIRECT answer, at `open` or at a read.
bool refuses_direct(int why) {
    return why == EINVAL || why == EOPNOTSUPP;
}

struct Free {
    void operator()(void* at) const { std::free(at); }
};

}  // namespace

Result<std::unique_ptr<DirectFile>> DirectFile::open(const std::string& path) {
    // O_NONBLOCK: see MappedFile::open; it does nothing to a regular file.
    constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    bool direct = true;
    int fd = ::open(path.c_str(), kFlags | O_DIRECT);
    if (fd < 0 && refuses_direct(errno)) {
        direct = false;
        fd = ::open(path.c_str(), kFlags);
    }
    if (fd < 0) {
        const int why = errno;
        return error(why == ENOENT || why == ENOTDIR ? Code::not_found : Code::io,
                     "{}: cannot be opened: {}", path, std::strerror(why));
    }
    return std::unique_ptr<DirectFile>(new DirectFile(path, fd, direct));
}

DirectFile::~DirectFile() {
    ::close(fd_);
}

Result<FileIdentity> DirectFile::identity() const {
    struct stat st {};
    if (::fstat(fd_, &st) != 0) {
        return error(Code::io, "{}: cannot be examined: {}", path_, std::strerror(errno));
    }
    return FileIdentity(st);
}

void DirectFile::stop_direct() {
    const int flags = ::fcntl(fd_, F_GETFL);
    static_cast<void>(::fcntl(fd_, F_SETFL, flags & ~O_DIRECT));
    direct_.store(false, std::memory_order_relaxed);
}

Status DirectFile::read(uint64_t offset, uint64_t bytes, void* dst) {
    auto* to = static_cast<uint8_t*>(dst);
    std::unique_ptr<uint8_t, Free> bounce;
    uint64_t bounce_bytes = 0;
    bool in_place = true;  // false: this memory cannot be a target of O_DIRECT
    while (bytes > 0) {
        const bool direct = this->direct();
        const uint64_t skip = direct ? offset % kBlock : 0;
        const uint64_t to_skip = reinterpret_cast<uintptr_t>(to) % kBlock;
        const bool fits = in_place && skip == to_skip;
        const bool straight = !direct || (fits && skip == 0 && bytes >= kBlock);
        uint8_t* at = to;
        uint64_t wanted = std::min(bytes, kLongest);
        if (straight) {
            wanted = direct ? wanted / kBlock * kBlock : wanted;
        } else {
            // Where the rest can go straight, only the first or last block comes this way.
            wanted = fits ? kBlock : std::min(whole_blocks(skip + bytes), kBounce);
            if (bounce_bytes < wanted) {
                bounce.reset(static_cast<uint8_t*>(std::aligned_alloc(kBlock, wanted)));
                if (bounce == nullptr) {
                    return error(Code::does_not_fit, "{}: no memory for a buffer of {} bytes",
                                 path_, wanted);
                }
                bounce_bytes = wanted;
            }
            at = bounce.get();
        }
        const ssize_t n = ::pread(fd_, at, wanted, static_cast<off_t>(offset - skip));
        if (n < 0) {
            const int why = errno;
            if (why == EINTR) {
                continue;
            }
            if (direct && refuses_direct(why)) {
                stop_direct();
                continue;
            }
            if (why == EFAULT && direct && straight) {
                in_place = false;
                continue;
            }
            return error(Code::io, "{}: cannot be read at byte {}: {}", path_, offset,
                         std::strerror(why));
        }
        // A short read goes on behind its end; in the middle of a block it comes again as bounce.
        const auto got = static_cast<uint64_t>(n);
        if (got <= skip) {
            return error(Code::io,
                         "{}: ends at byte {}, expected {} bytes more; was it cut while in use?",
                         path_, offset - skip + got, skip - got + bytes);
        }
        const uint64_t useful = std::min(got - skip, bytes);
        if (!straight) {
            std::memcpy(to, at + skip, useful);
        }
        to += useful;
        offset += useful;
        bytes -= useful;
    }
    return {};
}

}  // namespace tenon
