// SPDX-License-Identifier: MIT
// Layout, header and probes of packed Engram tables.
#include "packed_rows.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tenon/numeric.h"
#include "unique_file.h"

namespace tenon::dsv41 {

uint64_t xxh3(const void* data, size_t bytes) {
    return XXH3_64bits(data, bytes);
}

Result<EngramHash> make_hash(const ModelConfig& c) {
    EngramShape shape;
    shape.layers.assign(c.engram.layers.begin(), c.engram.layers.end());
    shape.bucket_floor = c.engram.first_bucket;
    shape.max_ngram = c.engram.max_ngram;
    shape.heads = c.engram.heads;
    shape.classes = c.engram.classes;
    auto hash = EngramHash::make(shape);
    if (!hash.ok()) {
        return hash;
    }
    for (size_t t = 0; t < c.engram.layers.size(); ++t) {
        const int64_t rows = hash->rows(static_cast<int64_t>(t));
        if (rows != c.engram.rows[t]) {
            return error(
                Code::invalid_argument,
                "config.json: engram_num_embeddings[{}] is {}, but the buckets of layer {} have {} "
                "rows "
                "(engram_vocab_size, engram_n_heads or engram_max_ngram_size do not belong to it)",
                t, c.engram.rows[t], c.engram.layers[t], rows);
        }
    }
    return hash;
}

EngramSlice EngramSlice::of(const EngramHash& hash, int64_t table, int32_t rank, int32_t world) {
    EngramSlice s;
    s.columns = hash.columns() / world;
    s.first_column = rank * s.columns;
    const auto offsets = hash.offsets(table);
    const int64_t after = s.first_column + s.columns;
    s.first_row = offsets[static_cast<size_t>(s.first_column)];
    const int64_t end =
        after == hash.columns() ? hash.rows(table) : offsets[static_cast<size_t>(after)];
    s.rows = end - s.first_row;
    return s;
}

std::vector<int64_t> probe_rows(const EngramHash& hash, int64_t table, const EngramSlice& slice) {
    std::vector<int64_t> rows;
    for (int64_t c = slice.first_column; c < slice.first_column + slice.columns; ++c) {
        const int64_t first = hash.offsets(table)[static_cast<size_t>(c)];
        rows.push_back(first);
        rows.push_back(first + hash.primes(table)[static_cast<size_t>(c)] - 1);
    }
    uint64_t state = 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(table);
    for (int32_t i = 0; i < kSeededProbes; ++i) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        rows.push_back(slice.first_row +
                       static_cast<int64_t>((state >> 16) % static_cast<uint64_t>(slice.rows)));
    }
    return rows;
}

uint64_t PackedHeader::compute_hash() const {
    return xxh3(this, sizeof(PackedHeader) - sizeof header_hash);
}

std::string packed_file_name(int32_t layer, int32_t rank, int32_t world) {
    return "engram-l" + std::to_string(layer) + "-r" + std::to_string(rank) + "of" +
           std::to_string(world) + ".bin";
}

std::string engram_values_name(int32_t layer) {
    return "layers." + std::to_string(layer) + ".engram.embed.weight";
}

std::string engram_scales_name(int32_t layer) {
    return "layers." + std::to_string(layer) + ".engram.embed.scale";
}

Status find_official(WeightSource& source, const EngramConfig& e, int64_t table, TensorInfo* values,
                     TensorInfo* scales) {
    const int32_t layer = e.layers[static_cast<size_t>(table)];
    const int64_t rows = e.rows[static_cast<size_t>(table)];
    const auto check = [&](const std::string& name, DType dtype, int64_t width,
                           TensorInfo* info) -> Status {
        TENON_TRY(source.find(name, info));
        const bool type_ok = info->dtype == dtype || info->dtype == DType::u8;
        if (!type_ok || info->rank != 2 || info->shape[0] != rows || info->shape[1] != width) {
            return error(Code::invalid_argument, "{}: {} [{}, {}], expected {} [{}, {}]", name,
                         dtype_name(info->dtype), info->shape[0],
                         info->rank > 1 ? info->shape[1] : 0, dtype_name(dtype), rows, width);
        }
        return {};
    };
    TENON_TRY(check(engram_values_name(layer), DType::e4m3, e.width, values));
    return check(engram_scales_name(layer), DType::e8m0, e.width / 32, scales);
}

Status read_packed_header(const std::string& path, const EngramHash& hash,
                          const EngramConfig& config, int64_t table, int32_t rank, int32_t world,
                          PackedHeader* out) {
    const UniqueFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) {
        return error(errno == ENOENT ? Code::not_found : Code::io, "{}: {}", path,
                     std::strerror(errno));
    }
    PackedHeader h;
    TENON_TRY_CTX(file.read_at(0, &h, sizeof h), "{}", path);
    if (h.magic != PackedHeader::kMagic) {
        return error(Code::invalid_argument,
                     "{}: not a packed Engram table (magic {}); build it with `tenon pack-engram`",
                     path, h.magic);
    }
    if (h.version != PackedHeader::kVersion) {
        return error(Code::invalid_argument,
                     "{}: version {}, expected {}; build it again with `tenon pack-engram`", path,
                     h.version, PackedHeader::kVersion);
    }
    if (h.header_hash != h.compute_hash()) {
        return error(Code::invalid_argument,
                     "{}: the header's checksum is wrong; build the file again", path);
    }
    const EngramSlice slice = EngramSlice::of(hash, table, rank, world);
    const auto expect = [&](const char* field, int64_t found, int64_t expected) -> Status {
        if (found == expected) {
            return {};
        }
        return error(Code::invalid_argument,
                     "{}: {} is {}, expected {}; it was packed for another model or rank", path,
                     field, found, expected);
    };
    TENON_TRY(expect("layer", h.layer, config.layers[static_cast<size_t>(table)]));
    TENON_TRY(expect("rank", h.rank, rank));
    TENON_TRY(expect("world", h.world, world));
    TENON_TRY(expect("row_bytes", h.row_bytes, engram_row_bytes(config.width)));
    TENON_TRY(expect("record_bytes", h.record_bytes, engram_record_bytes(config.width)));
    TENON_TRY(expect("records_per_page", h.records_per_page,
                     kRowPage / engram_record_bytes(config.width)));
    TENON_TRY(expect("rows", h.rows, slice.rows));
    TENON_TRY(expect("first_row", h.first_row, slice.first_row));
    TENON_TRY(
        expect("probes", h.probes, static_cast<int64_t>(probe_rows(hash, table, slice).size())));
    if (h.block_pages < 1) {
        return expect("block_pages", h.block_pages, 1);
    }
    TENON_ASSIGN(const int64_t bytes, file.size());
    TENON_TRY(expect("size of the file", bytes, static_cast<int64_t>(h.file_bytes())));
    *out = h;
    return {};
}

Status verify_packed(const std::string& path, const PackedHeader& header) {
    const UniqueFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) {
        return error(Code::io, "{}: {}", path, std::strerror(errno));
    }
    std::vector<uint64_t> sums(static_cast<size_t>(header.blocks()));
    TENON_TRY_CTX(file.read_at(header.trailer_at(), sums.data(), sums.size() * 8), "{}", path);
    if (xxh3(sums.data(), sums.size() * 8) != header.blocks_hash) {
        return error(Code::io, "{}: the list of checksums is damaged", path);
    }
    std::vector<uint8_t> block(static_cast<size_t>(header.block_pages * kRowPage));
    for (int64_t b = 0; b < header.blocks(); ++b) {
        const int64_t pages = std::min(header.block_pages, header.pages() - b * header.block_pages);
        const auto bytes = static_cast<size_t>(pages * kRowPage);
        TENON_TRY_CTX(
            file.read_at(static_cast<uint64_t>(kRowPage + b * header.block_pages * kRowPage),
                         block.data(), bytes),
            "{}", path);
        if (xxh3(block.data(), bytes) != sums[static_cast<size_t>(b)]) {
            return error(Code::io, "{}: block {} of {} has a wrong checksum; build the file again",
                         path, b, header.blocks());
        }
    }
    return {};
}

}  // namespace tenon::dsv41
