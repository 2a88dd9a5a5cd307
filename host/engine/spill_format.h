// SPDX-License-Identifier: MIT
// The file of one spilled cut: header, payload, block checksums, digest (engine.md 4.5).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "host/engine/sha256.h"
#include "tenon/base.h"

namespace tenon::engine {

using SpillDigest = std::array<uint8_t, 32>;
using SpillLookup = std::array<uint8_t, 16>;

constexpr int64_t kSpillHeaderBytes = 4096;
constexpr int64_t kSpillBlockBytes = 64 * 1024;

/// First 4 KiB; little-endian, every byte is defined. What follows:
/// payload = symbols i32[at - parent_at], zeros to a multiple of 8, pages, snapshot;
/// then the XXH3-64 of each 64 KiB of the payload, then the SHA-256 of header and checksums.
struct SpillHeader {
    static constexpr uint32_t kMagic = 0x564B4E54;  // "TNKV"
    static constexpr uint32_t kVersion = 1;
    enum : uint32_t { kPromptClass = 1, kPrivate = 2 };

    uint32_t magic = kMagic, version = kVersion;
    SpillDigest key{};     ///< model, overlays, replay mode, state format, page size, numeric class
    SpillDigest parent{};  ///< digest of the cut on which it builds, or `spill_root`
    SpillDigest digest{};  ///< SHA-256(parent, symbols)
    SpillLookup lookup{};  ///< of all symbols of [0, at), see SymbolHash
    int32_t rank = 0, world = 1;
    int64_t at = 0, parent_at = 0;
    int64_t page_bytes = 0, snapshot_bytes = 0;
    int32_t first_page = 0, pages = 0;  ///< pages [first_page, first_page + pages) of the cut
    uint32_t kind = 1;                  ///< plan::CutKind
    uint32_t origin = 0;                ///< CutOrigin
    uint32_t flags = 0, reserved = 0;
    uint8_t padding[3904] = {};
    uint64_t hash = 0;  ///< XXH3-64 of the 4088 bytes before

    uint64_t compute_hash() const;
    int64_t symbol_bytes() const { return ((at - parent_at) * 4 + 7) / 8 * 8; }
    int64_t payload_bytes() const { return symbol_bytes() + pages * page_bytes + snapshot_bytes; }
    int64_t blocks() const { return (payload_bytes() + kSpillBlockBytes - 1) / kSpillBlockBytes; }
    int64_t file_bytes() const { return kSpillHeaderBytes + payload_bytes() + blocks() * 8 + 32; }
    /// Counts and positions that any file may have; nothing computed from them overflows.
    bool is_sane() const;
};
static_assert(sizeof(SpillHeader) == kSpillHeaderBytes);

/// Digest on which the first cut of a sequence builds.
SpillDigest spill_root(const SpillDigest& key, uint64_t salt, uint64_t owner);
SpillDigest spill_digest(const SpillDigest& parent, Span<const int32_t> symbols);
/// "<lookup>-<at>.tnkv"
std::string spill_file_name(const SpillLookup& lookup, int64_t at);

/// Hash of growing prefixes of one sequence, to find candidates; digests decide. Allocates at
/// construction only.
class SymbolHash {
  public:
    SymbolHash();
    ~SymbolHash();
    SymbolHash(const SymbolHash&) = delete;
    SymbolHash& operator=(const SymbolHash&) = delete;

    void begin(const SpillDigest& key, uint64_t salt, uint64_t owner);
    void add(Span<const int32_t> symbols);
    /// Of everything added so far.
    SpillLookup value() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

/// Writes one file under a temporary name. One thread.
class SpillWriter {
  public:
    ~SpillWriter() { abandon(); }

    /// errors  io
    Status begin(const std::string& dir, const SpillHeader& header, Span<const int32_t> symbols);
    /// Bytes of the payload behind the symbols, in order.
    /// errors  io
    Status append(Span<const uint8_t> bytes);
    /// Checksums, digest, fsync, rename, fsync of the folder.
    /// errors  io; internal: the payload has another size than the header says
    Status finish();
    /// Removes what was written.
    void abandon() noexcept;
    bool is_open() const { return fd_ >= 0; }

  private:
    Status put(const void* bytes, size_t n);

    int fd_ = -1;
    std::string dir_, name_;
    SpillHeader header_;
    std::vector<uint64_t> sums_;
    std::vector<uint8_t> block_;  // what the payload's last, unfinished block holds
    int64_t written_ = 0;         // of the payload
};

/// Reads one file; every byte that it gives was checked. One thread.
class SpillReader {
  public:
    ~SpillReader() { close(); }

    /// errors  not_found; io; invalid_argument: damaged, torn, or of another format or key
    Status open(const std::string& path, const SpillDigest& key);
    const SpillHeader& header() const { return header_; }
    /// Payload bytes [offset, offset + out.size).
    /// errors  io; invalid_argument: a block's checksum is wrong
    Status read(int64_t offset, Span<uint8_t> out);
    /// Where things lie in the payload.
    int64_t page_offset(int64_t index) const {
        return header_.symbol_bytes() + index * header_.page_bytes;
    }
    int64_t snapshot_offset() const { return page_offset(header_.pages); }
    void close() noexcept;

  private:
    Status get(int64_t offset, void* bytes, size_t n) const;

    int fd_ = -1;
    std::string path_;
    SpillHeader header_;
    std::vector<uint64_t> sums_;
    std::vector<uint8_t> block_;
};

/// Header of a file and its true size, checked as far as 4 KiB allow.
/// errors  as SpillReader::open
Status read_spill_header(const std::string& path, const SpillDigest& key, SpillHeader* out);

}  // namespace tenon::engine
