// SPDX-License-Identifier: MIT
// The packed Engram table of one rank: one record per row, page-aligned, with a header that can be
// checked.
#pragma once

#include "config.h"
#include "engram_hash.h"
#include "tenon/model.h"

namespace tenon::dsv41 {

constexpr int64_t kRowPage = 4096;  ///< a record never crosses a multiple of this
constexpr int32_t kSeededProbes = 32;
/// Pages under one checksum: 64 MiB, so a stop costs seconds of work and the list stays short.
constexpr int64_t kBlockPages = 16384;

/// Bytes of one row: E4M3 values, then one E8M0 scale per 32 of them.
constexpr int64_t engram_row_bytes(int64_t width) {
    return width + width / 32;
}
/// Records start on multiples of 8 bytes.
constexpr int64_t engram_record_bytes(int64_t width) {
    return (engram_row_bytes(width) + 7) / 8 * 8;
}

/// Which part of one table a rank reads: whole columns, hence one range of rows.
struct EngramSlice {
    int64_t first_column = 0, columns = 0;
    int64_t first_row = 0, rows = 0;  ///< in the official numbering
    static EngramSlice of(const EngramHash& hash, int64_t table, int32_t rank, int32_t world);
};

/// Rows that the self-test reads: first and last of every column's range, then 32 seeded ones.
std::vector<int64_t> probe_rows(const EngramHash& hash, int64_t table, const EngramSlice& slice);

/// First 4 KiB of a packed file; little-endian, every byte is defined.
struct PackedHeader {
    static constexpr uint32_t kMagic = 0x52454E54;  // "TNER"
    static constexpr uint32_t kVersion = 1;
    static constexpr int32_t kMaxProbes = 448;

    uint32_t magic = kMagic, version = kVersion;
    int32_t layer = 0, rank = 0, world = 1;
    int32_t row_bytes = 0, record_bytes = 0, records_per_page = 0;
    int64_t rows = 0, first_row = 0;
    int64_t block_pages = 0;   ///< pages under one checksum of the trailer
    uint8_t source[32] = {};   ///< digest of the checkpoint that held the official table
    uint64_t blocks_hash = 0;  ///< XXH3-64 of the trailer
    int32_t probes = 0, reserved = 0;
    uint64_t probe_hash[kMaxProbes] = {};  ///< XXH3-64 of the record of each row of probe_rows
    uint8_t padding[400] = {};
    uint64_t header_hash = 0;  ///< XXH3-64 of the 4088 bytes before

    uint64_t compute_hash() const;
    int64_t pages() const { return (rows + records_per_page - 1) / records_per_page; }
    int64_t blocks() const { return (pages() + block_pages - 1) / block_pages; }
    uint64_t trailer_at() const { return static_cast<uint64_t>(kRowPage + pages() * kRowPage); }
    uint64_t file_bytes() const { return trailer_at() + static_cast<uint64_t>(blocks()) * 8; }
};
static_assert(sizeof(PackedHeader) == kRowPage);

std::string packed_file_name(int32_t layer, int32_t rank, int32_t world);

/// Reads and checks the header against what this model needs.
/// errors  not_found: no such file; invalid_argument: another layer, rank, geometry, damaged; io
Status read_packed_header(const std::string& path, const EngramHash& hash,
                          const EngramConfig& config, int64_t table, int32_t rank, int32_t world,
                          PackedHeader* out);

uint64_t xxh3(const void* data, size_t bytes);

/// Builds (or only verifies) the packed tables of one rank. Resumable: finished blocks are kept in
/// `<name>.part` with their checksums in `<name>.part.sums`; the final name appears only when
/// complete.
Status pack_rows(const ModelConfig& config, const PackRequest& request,
                 int64_t block_pages = kBlockPages);

/// Checks all checksums of a finished file.
Status verify_packed(const std::string& path, const PackedHeader& header);

/// Names of the official tensors of one table.
std::string engram_values_name(int32_t layer);
std::string engram_scales_name(int32_t layer);
/// Finds both official tensors and checks dtype and shape.
Status find_official(WeightSource& source, const EngramConfig& config, int64_t table,
                     TensorInfo* values, TensorInfo* scales);

Result<EngramHash> make_hash(const ModelConfig& config);

}  // namespace tenon::dsv41
