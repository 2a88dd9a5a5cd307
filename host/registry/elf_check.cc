// SPDX-License-Identifier: MIT
// ELF64 headers, segments and exported names against the size of the file.
#include "host/registry/elf_check.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tenon/plugin.h"

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

constexpr uint64_t kMaxTable = 64 << 20;  // a symbol table beyond it is not looked through

class LibraryFile {
  public:
    explicit LibraryFile(const std::string& path) : path_(path) {}
    ~LibraryFile() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }
    LibraryFile(const LibraryFile&) = delete;
    LibraryFile& operator=(const LibraryFile&) = delete;

    Status check() {
        TENON_TRY(open());
        TENON_TRY(check_header());
        TENON_TRY(check_segments());
        return check_exports();
    }

  private:
    Status open() {
        fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd_ < 0) {
            return error(Code::io, "{}: cannot be opened: {}", path_, std::strerror(errno));
        }
        struct stat st {};
        if (::fstat(fd_, &st) != 0 || !S_ISREG(st.st_mode)) {
            return error(Code::io, "{}: is not a regular file", path_);
        }
        if ((st.st_mode & S_IWOTH) != 0) {
            return error(Code::unavailable,
                         "{}: anybody may write it; run chmod o-w before it is loaded", path_);
        }
        size_ = static_cast<uint64_t>(st.st_size);
        return {};
    }

    bool read(uint64_t at, void* out, size_t bytes) const {
        return at <= size_ && bytes <= size_ - at &&
               ::pread(fd_, out, bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes);
    }

    Status check_header() {
        if (!read(0, &header_, sizeof header_) ||
            std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0) {
            return error(Code::unavailable, "{}: is not an ELF library ({} bytes)", path_, size_);
        }
        if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_machine != kMachine) {
            return error(Code::unavailable,
                         "{}: is built for another CPU (ELF machine {}, expected {}: {})", path_,
                         header_.e_machine, kMachine, kMachineName);
        }
        if (header_.e_type != ET_DYN || header_.e_phentsize != sizeof(Elf64_Phdr)) {
            return error(Code::unavailable, "{}: is not a shared library", path_);
        }
        return {};
    }

    Status check_segments() const {
        for (uint16_t i = 0; i < header_.e_phnum; ++i) {
            Elf64_Phdr segment{};
            const uint64_t at = header_.e_phoff + uint64_t{i} * sizeof segment;
            if (!read(at, &segment, sizeof segment)) {
                return error(Code::unavailable,
                             "{}: is cut short: {} bytes, its program headers end at {}", path_,
                             size_, at + sizeof segment);
            }
            if (segment.p_type == PT_LOAD &&
                (segment.p_offset > size_ || segment.p_filesz > size_ - segment.p_offset)) {
                return error(Code::unavailable, "{}: is cut short: {} bytes, a segment ends at {}",
                             path_, size_, segment.p_offset + segment.p_filesz);
            }
        }
        return {};
    }

    // A library without section headers (stripped of them) still loads; nothing is checked then.
    Status check_exports() const {
        if (header_.e_shentsize != sizeof(Elf64_Shdr)) {
            return {};
        }
        for (uint16_t i = 0; i < header_.e_shnum; ++i) {
            Elf64_Shdr symbols{};
            Elf64_Shdr names{};
            const auto at = [&](uint32_t index) {
                return header_.e_shoff + uint64_t{index} * sizeof(Elf64_Shdr);
            };
            if (!read(at(i), &symbols, sizeof symbols) || symbols.sh_type != SHT_DYNSYM ||
                !read(at(symbols.sh_link), &names, sizeof names) || symbols.sh_size > kMaxTable ||
                names.sh_size > kMaxTable) {
                continue;
            }
            std::vector<Elf64_Sym> table(symbols.sh_size / sizeof(Elf64_Sym));
            std::string text(names.sh_size, '\0');
            if (!read(symbols.sh_offset, table.data(), table.size() * sizeof(Elf64_Sym)) ||
                !read(names.sh_offset, text.data(), text.size())) {
                return error(Code::unavailable, "{}: is cut short: its symbols end behind the file",
                             path_);
            }
            TENON_TRY(check_names(table, text));
        }
        return {};
    }

    Status check_names(const std::vector<Elf64_Sym>& table, const std::string& text) const {
        std::vector<std::string> others;
        for (const Elf64_Sym& s : table) {
            const bool exported = s.st_shndx != SHN_UNDEF && s.st_name < text.size() &&
                                  ELF64_ST_BIND(s.st_info) != STB_LOCAL &&
                                  ELF64_ST_VISIBILITY(s.st_other) == STV_DEFAULT;
            if (exported && std::string_view(text.c_str() + s.st_name) != kPluginEntryName) {
                others.emplace_back(text.c_str() + s.st_name);
            }
        }
        if (others.empty()) {
            return {};
        }
        return error(Code::unavailable,
                     "{}: exports {} further symbols, among them '{}'; a plugin exports {} alone "
                     "(build it with tenon_add_plugin)",
                     path_, others.size(), *std::min_element(others.begin(), others.end()),
                     kPluginEntryName);
    }

    std::string path_;
    int fd_ = -1;
    uint64_t size_ = 0;
    Elf64_Ehdr header_{};
};

}  // namespace

Status check_library_file(const std::string& path) {
    return LibraryFile(path).check();
}

}  // namespace tenon
