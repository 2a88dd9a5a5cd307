// SPDX-License-Identifier: MIT
// Maps files; an empty file has a null mapping.
#include "host/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace tenon {

Result<MappedFile> MappedFile::open(const std::string& path) {
    // O_NONBLOCK: a pipe in the place of a file is refused below instead of waited for.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        const int why = errno;
        return error(why == ENOENT || why == ENOTDIR ? Code::not_found : Code::io,
                     "{}: cannot be opened: {}", path, std::strerror(why));
    }
    struct stat st {};
    MappedFile file;
    file.path_ = path;
    if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        ::close(fd);
        return error(Code::io, "{}: is not a regular file", path);
    }
    file.identity_ = FileIdentity(st);
    if (file.size() > 0) {
        void* at = ::mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) {
            const int why = errno;
            ::close(fd);
            return error(Code::io, "{}: cannot be mapped: {}", path, std::strerror(why));
        }
        file.data_ = static_cast<const uint8_t*>(at);
    }
    ::close(fd);
    return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      identity_(std::exchange(other.identity_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    if (this != &other) {
        MappedFile old(std::move(*this));
        path_ = std::move(other.path_);
        data_ = std::exchange(other.data_, nullptr);
        identity_ = std::exchange(other.identity_, {});
    }
    return *this;
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) {
        ::munmap(const_cast<uint8_t*>(data_), size());
    }
}

}  // namespace tenon
