// SPDX-License-Identifier: MIT
// ELF64 header and program headers against the size of the file.
#include "host/registry/elf_check.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace tenon {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
constexpr const char* kMachineName = "x86-64";
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
constexpr const char* kMachineName = "aarch64";
#else
#error "name the ELF machine of this architecture"
#endif

Status check_open(const std::string& path, int fd) {
    struct stat st {};
    if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return error(Code::io, "{}: is not a regular file", path);
    }
    if ((st.st_mode & S_IWOTH) != 0) {
        return error(Code::unavailable,
                     "{}: anybody may write it; run chmod o-w before it is loaded", path);
    }
    const auto size = static_cast<uint64_t>(st.st_size);
    Elf64_Ehdr header{};
    if (::pread(fd, &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header) ||
        std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
        return error(Code::unavailable, "{}: is not an ELF library ({} bytes)", path, size);
    }
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kMachine) {
        return error(Code::unavailable,
                     "{}: is built for another CPU (ELF machine {}, expected {}: {})", path,
                     header.e_machine, kMachine, kMachineName);
    }
    if (header.e_type != ET_DYN || header.e_phentsize != sizeof(Elf64_Phdr)) {
        return error(Code::unavailable, "{}: is not a shared library", path);
    }
    for (uint16_t i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment{};
        const uint64_t at = header.e_phoff + uint64_t{i} * sizeof segment;
        if (at > size || ::pread(fd, &segment, sizeof segment, static_cast<off_t>(at)) !=
                             static_cast<ssize_t>(sizeof segment)) {
            return error(Code::unavailable,
                         "{}: is cut short: {} bytes, its program headers end at {}", path, size,
                         at + sizeof segment);
        }
        if (segment.p_type == PT_LOAD &&
            (segment.p_offset > size || segment.p_filesz > size - segment.p_offset)) {
            return error(Code::unavailable, "{}: is cut short: {} bytes, a segment ends at {}",
                         path, size, segment.p_offset + segment.p_filesz);
        }
    }
    return {};
}

}  // namespace

Status check_library_file(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return error(Code::io, "{}: cannot be opened: {}", path, std::strerror(errno));
    }
    Status status = check_open(path, fd);
    ::close(fd);
    return status;
}

}  // namespace tenon
