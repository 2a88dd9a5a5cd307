// SPDX-License-Identifier: MIT
// Bytes in and out of spill files, and their checksums.
#include "host/engine/spill_format.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tenon::engine {
namespace {

constexpr int64_t kMostPosition = int64_t{1} << 40;
constexpr int64_t kMostRecord = int64_t{1} << 36;
constexpr int32_t kMostPages = 1 << 24;

Status io_error(const std::string& path, const char* what, int code) {
    return error(code == ENOENT ? Code::not_found : Code::io, "{}: {}: {}", path, what,
                 std::strerror(code));
}

Status damaged(const std::string& path, std::string_view what) {
    return error(Code::invalid_argument, "{}: {}", path, what);
}

Span<const uint8_t> bytes_of(const SpillHeader& header) {
    return {reinterpret_cast<const uint8_t*>(&header), sizeof header};
}

SpillDigest trailer_digest(const SpillHeader& header, const std::vector<uint64_t>& sums) {
    Sha256 sha;
    sha.add(bytes_of(header));
    sha.add({reinterpret_cast<const uint8_t*>(sums.data()), sums.size() * 8});
    return sha.finish();
}

Status read_all(int fd, const std::string& path, int64_t offset, void* bytes, size_t n) {
    auto* to = static_cast<char*>(bytes);
    while (n > 0) {
        const ssize_t got = ::pread(fd, to, n, offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return io_error(path, "cannot be read", errno);
        }
        if (got == 0) {
            return damaged(path, "ends too early");
        }
        to += got;
        offset += got;
        n -= static_cast<size_t>(got);
    }
    return {};
}

Status check_header(int fd, const std::string& path, const SpillDigest& key, SpillHeader* out) {
    TENON_TRY(read_all(fd, path, 0, out, sizeof *out));
    if (out->magic != SpillHeader::kMagic || out->version != SpillHeader::kVersion) {
        return damaged(path, format("not a spill file of version {}", SpillHeader::kVersion));
    }
    if (out->hash != out->compute_hash() || !out->is_sane()) {
        return damaged(path, "the header is damaged");
    }
    if (out->key != key) {
        return damaged(path, "it belongs to another model or format");
    }
    struct stat st {};
    if (::fstat(fd, &st) != 0) {
        return io_error(path, "cannot be read", errno);
    }
    if (st.st_size != out->file_bytes()) {
        return damaged(path,
                       format("has {} bytes, its header says {}", st.st_size, out->file_bytes()));
    }
    return {};
}

}  // namespace

uint64_t SpillHeader::compute_hash() const {
    return XXH3_64bits(this, sizeof *this - sizeof hash);
}

bool SpillHeader::is_sane() const {
    return at > 0 && at <= kMostPosition && parent_at >= 0 && parent_at < at && pages >= 0 &&
           pages <= kMostPages && first_page >= 0 && first_page <= kMostPages && page_bytes > 0 &&
           page_bytes <= kMostRecord && snapshot_bytes > 0 && snapshot_bytes <= kMostRecord &&
           kind == 1;
}

SpillDigest spill_root(const SpillDigest& key, uint64_t salt, uint64_t owner) {
    Sha256 sha;
    sha.add({key.data(), key.size()});
    const uint64_t words[] = {salt, owner};
    sha.add({reinterpret_cast<const uint8_t*>(words), sizeof words});
    return sha.finish();
}

SpillDigest spill_digest(const SpillDigest& parent, Span<const int32_t> symbols) {
    Sha256 sha;
    sha.add({parent.data(), parent.size()});
    sha.add_ids(symbols);
    return sha.finish();
}

std::string spill_file_name(const SpillLookup& lookup, int64_t at) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string name;
    for (const uint8_t byte : lookup) {
        name += kDigits[byte >> 4];
        name += kDigits[byte & 15];
    }
    return name + "-" + std::to_string(at) + ".tnkv";
}

struct SymbolHash::State {
    XXH3_state_t value;
};

SymbolHash::SymbolHash() : state_(std::make_unique<State>()) {
    XXH3_INITSTATE(&state_->value);
}

SymbolHash::~SymbolHash() = default;

void SymbolHash::begin(const SpillDigest& key, uint64_t salt, uint64_t owner) {
    XXH3_128bits_reset(&state_->value);
    XXH3_128bits_update(&state_->value, key.data(), key.size());
    const uint64_t words[] = {salt, owner};
    XXH3_128bits_update(&state_->value, words, sizeof words);
}

void SymbolHash::add(Span<const int32_t> symbols) {
    XXH3_128bits_update(&state_->value, symbols.data, symbols.size * sizeof(int32_t));
}

SpillLookup SymbolHash::value() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_->value);
    SpillLookup out{};
    std::memcpy(out.data(), &hash, sizeof hash);
    return out;
}

Status SpillWriter::put(const void* bytes, size_t n) {
    const auto* from = static_cast<const char*>(bytes);
    while (n > 0) {
        const ssize_t done = ::write(fd_, from, n);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0) {
            return io_error(dir_ + "/" + name_, "cannot be written", errno);
        }
        from += done;
        n -= static_cast<size_t>(done);
    }
    return {};
}

Status SpillWriter::begin(const std::string& dir, const SpillHeader& header,
                          Span<const int32_t> symbols) {
    abandon();
    dir_ = dir;
    name_ = spill_file_name(header.lookup, header.at);
    header_ = header;
    header_.hash = header_.compute_hash();
    sums_.clear();
    block_.clear();
    written_ = 0;
    const std::string path = dir_ + "/" + name_ + ".tmp";
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd_ < 0) {
        return io_error(path, "cannot be made", errno);
    }
    TENON_TRY(put(&header_, sizeof header_));
    TENON_TRY(append({reinterpret_cast<const uint8_t*>(symbols.data), symbols.size * 4}));
    const uint8_t zeros[8] = {};
    return append({zeros, static_cast<uint64_t>(header_.symbol_bytes()) - symbols.size * 4});
}

Status SpillWriter::append(Span<const uint8_t> bytes) {
    TENON_TRY(put(bytes.data, bytes.size));
    written_ += static_cast<int64_t>(bytes.size);
    while (bytes.size > 0) {
        const uint64_t n =
            std::min(bytes.size, static_cast<uint64_t>(kSpillBlockBytes) - block_.size());
        if (block_.empty() && n == static_cast<uint64_t>(kSpillBlockBytes)) {
            sums_.push_back(XXH3_64bits(bytes.data, n));
        } else {
            block_.insert(block_.end(), bytes.begin(), bytes.begin() + n);
            if (block_.size() == static_cast<size_t>(kSpillBlockBytes)) {
                sums_.push_back(XXH3_64bits(block_.data(), block_.size()));
                block_.clear();
            }
        }
        bytes = bytes.subspan(n, bytes.size - n);
    }
    return {};
}

Status SpillWriter::finish() {
    if (!block_.empty()) {
        sums_.push_back(XXH3_64bits(block_.data(), block_.size()));
        block_.clear();
    }
    const std::string path = dir_ + "/" + name_;
    if (written_ != header_.payload_bytes()) {
        return error(Code::internal, "{}: {} bytes of payload, the header says {}", path, written_,
                     header_.payload_bytes());
    }
    TENON_TRY(put(sums_.data(), sums_.size() * 8));
    const SpillDigest digest = trailer_digest(header_, sums_);
    TENON_TRY(put(digest.data(), digest.size()));
    if (::fsync(fd_) != 0) {
        return io_error(path, "cannot be written", errno);
    }
    if (::close(std::exchange(fd_, -1)) != 0 ||
        ::rename((path + ".tmp").c_str(), path.c_str()) != 0) {
        const int code = errno;
        ::unlink((path + ".tmp").c_str());
        return io_error(path, "cannot be written", code);
    }
    const int folder = ::open(dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        ::fsync(folder);  // a lost name is a miss, nothing worse
        ::close(folder);
    }
    return {};
}

void SpillWriter::abandon() noexcept {
    if (fd_ >= 0) {
        ::close(std::exchange(fd_, -1));
        ::unlink((dir_ + "/" + name_ + ".tmp").c_str());
    }
}

Status SpillReader::get(int64_t offset, void* bytes, size_t n) const {
    return read_all(fd_, path_, offset, bytes, n);
}

Status SpillReader::open(const std::string& path, const SpillDigest& key) {
    close();
    path_ = path;
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) {
        return io_error(path, "cannot be read", errno);
    }
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
    TENON_TRY(check_header(fd_, path, key, &header_));
    sums_.resize(static_cast<size_t>(header_.blocks()));
    SpillDigest digest{};
    const int64_t trailer = kSpillHeaderBytes + header_.payload_bytes();
    TENON_TRY(get(trailer, sums_.data(), sums_.size() * 8));
    TENON_TRY(get(trailer + header_.blocks() * 8, digest.data(), digest.size()));
    if (digest != trailer_digest(header_, sums_)) {
        return damaged(path, "the digest is wrong");
    }
    return {};
}

Status SpillReader::read(int64_t offset, Span<uint8_t> out) {
    const int64_t payload = header_.payload_bytes();
    if (offset < 0 || static_cast<int64_t>(out.size) > payload - offset) {
        return damaged(path_, format("{} bytes at {} of {}", out.size, offset, payload));
    }
    block_.resize(static_cast<size_t>(kSpillBlockBytes));
    for (int64_t at = offset, end = offset + static_cast<int64_t>(out.size); at < end;) {
        const int64_t index = at / kSpillBlockBytes;
        const int64_t begin = index * kSpillBlockBytes;
        const int64_t bytes = std::min(kSpillBlockBytes, payload - begin);
        const int64_t n = std::min(begin + bytes, end) - at;
        // A whole block goes where it belongs; a part of one has to be checked as a whole.
        uint8_t* to = n == bytes ? out.data + (at - offset) : block_.data();
        TENON_TRY(get(kSpillHeaderBytes + begin, to, static_cast<size_t>(bytes)));
        if (XXH3_64bits(to, static_cast<size_t>(bytes)) != sums_[static_cast<size_t>(index)]) {
            return damaged(path_, format("the checksum of block {} is wrong", index));
        }
        if (n != bytes) {
            std::copy_n(block_.data() + (at - begin), n, out.data + (at - offset));
        }
        at += n;
    }
    return {};
}

void SpillReader::close() noexcept {
    if (fd_ >= 0) {
        ::close(std::exchange(fd_, -1));
    }
}

Status read_spill_header(const std::string& path, const SpillDigest& key, SpillHeader* out) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return io_error(path, "cannot be read", errno);
    }
    Status status = check_header(fd, path, key, out);
    ::close(fd);
    return status;
}

}  // namespace tenon::engine
