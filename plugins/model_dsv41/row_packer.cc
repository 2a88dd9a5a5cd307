// SPDX-License-Identifier: MIT
// Building packed Engram tables block by block, so that a stopped run goes on where it was.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>

#include "packed_rows.h"
#include "unique_file.h"

namespace tenon::dsv41 {

namespace {

/// The table of one layer on its way to disk.
class TablePacker {
  public:
    TablePacker(const ModelConfig& config, const EngramHash& hash, int64_t table,
                const PackRequest& request, int64_t block_pages)
        : config_(config),
          hash_(hash),
          table_(table),
          request_(request),
          source_(*request.source->weights()),
          slice_(EngramSlice::of(hash, table, request.rank, request.world)) {
        const EngramConfig& e = config.engram;
        header_.layer = e.layers[static_cast<size_t>(table)];
        header_.rank = request.rank;
        header_.world = request.world;
        header_.row_bytes = static_cast<int32_t>(engram_row_bytes(e.width));
        header_.record_bytes = static_cast<int32_t>(engram_record_bytes(e.width));
        header_.records_per_page = static_cast<int32_t>(kRowPage / header_.record_bytes);
        header_.rows = slice_.rows;
        header_.first_row = slice_.first_row;
        header_.block_pages = block_pages;
        const auto digest = source_.digest();
        std::copy_n(digest.data, std::min<uint64_t>(digest.size, sizeof header_.source),
                    header_.source);
        path_ = request.out_dir.str() + "/" +
                packed_file_name(header_.layer, header_.rank, header_.world);
    }

    Status run() {
        if (header_.records_per_page < 1) {
            return error(Code::unsupported, "Engram records of {} bytes do not fit a page of {}",
                         header_.record_bytes, kRowPage);
        }
        PackedHeader found;
        Status status = read_packed_header(path_, hash_, config_.engram, table_, header_.rank,
                                           header_.world, &found);
        if (request_.verify_only) {
            TENON_TRY(std::move(status));
            return verify(found);
        }
        if (status.ok() && std::equal(found.source, found.source + 32, header_.source)) {
            return verify(found);
        }
        return build();
    }

  private:
    Status verify(const PackedHeader& found) {
        TENON_TRY(verify_packed(path_, found));
        report(found.rows);
        return {};
    }

    void report(int64_t rows_done) const {
        if (request_.progress != nullptr) {
            PackProgress p;
            p.rows_done = rows_done;
            p.rows_total = slice_.rows;
            p.layer = header_.layer;
            request_.progress(request_.arg, p);
        }
    }

    std::string part() const { return path_ + ".part"; }
    std::string sums_path() const { return path_ + ".part.sums"; }

    Status open(const std::string& path, UniqueFile* out) const {
        *out = UniqueFile(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
        if (!out->valid()) {
            return error(Code::io, "{}: {}", path, std::strerror(errno));
        }
        return {};
    }

    int64_t pages_of(int64_t block) const {
        return std::min(header_.block_pages, header_.pages() - block * header_.block_pages);
    }
    uint64_t block_at(int64_t block) const {
        return static_cast<uint64_t>(kRowPage + block * header_.block_pages * kRowPage);
    }

    /// Blocks of an earlier run that are whole: the sums file names the same source, and each
    /// checksum fits.
    Status resume(const UniqueFile& data, const UniqueFile& sums) {
        sums_.clear();
        std::vector<uint8_t> id(sizeof header_.source);
        TENON_ASSIGN(const int64_t bytes, sums.size());
        const auto head = static_cast<int64_t>(id.size());
        if (bytes < head || !sums.read_at(0, id.data(), id.size()).ok() ||
            !std::equal(id.begin(), id.end(), header_.source)) {
            return {};
        }
        const int64_t listed = std::min((bytes - head) / 8, header_.blocks());
        std::vector<uint64_t> old(static_cast<size_t>(listed));
        if (!sums.read_at(id.size(), old.data(), old.size() * 8).ok()) {
            return {};
        }
        for (int64_t b = 0; b < listed; ++b) {
            const auto n = static_cast<size_t>(pages_of(b) * kRowPage);
            if (!data.read_at(block_at(b), block_.data(), n).ok() ||
                xxh3(block_.data(), n) != old[static_cast<size_t>(b)]) {
                return {};
            }
            sums_.push_back(old[static_cast<size_t>(b)]);
            report(std::min((b + 1) * header_.block_pages * header_.records_per_page, slice_.rows));
            TENON_TRY(check_cancelled());
        }
        return {};
    }

    Status check_cancelled() const {
        if (request_.cancelled != nullptr && request_.cancelled(request_.arg)) {
            return error(Code::cancelled, "{}: stopped; run it again to go on", part());
        }
        return {};
    }

    /// Rows of one block, as the two official arrays hold them.
    struct Rows {
        std::vector<uint8_t> values, scales;
    };

    int64_t first_row_of(int64_t block) const {
        return block * header_.block_pages * header_.records_per_page;
    }
    int64_t rows_of(int64_t block) const {
        return std::min(pages_of(block) * header_.records_per_page,
                        slice_.rows - first_row_of(block));
    }

    Status read(int64_t block, Rows* out) const {
        const int64_t width = config_.engram.width;
        const int64_t groups = width / 32;
        out->values.resize(static_cast<size_t>(rows_of(block) * width));
        out->scales.resize(static_cast<size_t>(rows_of(block) * groups));
        const auto row = static_cast<uint64_t>(slice_.first_row + first_row_of(block));
        TENON_TRY(source_.read(engram_values_name(header_.layer),
                               row * static_cast<uint64_t>(width), out->values.size(),
                               out->values.data()));
        return source_.read(engram_scales_name(header_.layer), row * static_cast<uint64_t>(groups),
                            out->scales.size(), out->scales.data());
    }

    /// Records of one block.
    void arrange(int64_t block, const Rows& rows) {
        const int64_t width = config_.engram.width;
        const int64_t groups = width / 32;
        std::fill(block_.begin(), block_.begin() + pages_of(block) * kRowPage, uint8_t{0});
        for (int64_t i = 0; i < rows_of(block); ++i) {
            uint8_t* record = block_.data() + i / header_.records_per_page * kRowPage +
                              i % header_.records_per_page * header_.record_bytes;
            std::memcpy(record, rows.values.data() + i * width, static_cast<size_t>(width));
            std::memcpy(record + width, rows.scales.data() + i * groups,
                        static_cast<size_t>(groups));
        }
    }

    Status build() {
        TensorInfo values;
        TensorInfo scales;
        TENON_TRY(find_official(source_, config_.engram, table_, &values, &scales));
        block_.resize(static_cast<size_t>(header_.block_pages * kRowPage));
        UniqueFile data;
        UniqueFile sums;
        TENON_TRY(open(part(), &data));
        TENON_TRY(open(sums_path(), &sums));
        TENON_TRY_CTX(resume(data, sums), "{}", part());
        if (sums_.empty()) {
            TENON_TRY_CTX(sums.write_at(0, header_.source, sizeof header_.source), "{}",
                          sums_path());
        }
        // Reads past the page cache have no read-ahead: the next block is read while one is
        // written.
        Rows now, ahead;
        std::future<Status> reading;  // ends before what it writes to goes
        const auto start = [&](int64_t b) {
            if (b < header_.blocks()) {
                reading = std::async(std::launch::async, [this, b, &ahead] {
                    return guard([&] { return read(b, &ahead); });
                });
            }
        };
        start(static_cast<int64_t>(sums_.size()));
        for (auto b = static_cast<int64_t>(sums_.size()); b < header_.blocks(); ++b) {
            TENON_TRY(check_cancelled());
            TENON_TRY(reading.get());
            std::swap(now, ahead);
            start(b + 1);
            arrange(b, now);
            const auto n = static_cast<size_t>(pages_of(b) * kRowPage);
            TENON_TRY_CTX(data.write_at(block_at(b), block_.data(), n), "{}", part());
            // The checksum is listed only after its block is on disk, so that a listed block is
            // whole.
            TENON_TRY_CTX(data.flush(), "{}", part());
            sums_.push_back(xxh3(block_.data(), n));
            TENON_TRY_CTX(sums.write_at(sizeof header_.source + static_cast<uint64_t>(b) * 8,
                                        &sums_.back(), 8),
                          "{}", sums_path());
            report(std::min((b + 1) * header_.block_pages * header_.records_per_page, slice_.rows));
        }
        return finish(data);
    }

    Status finish(const UniqueFile& data) {
        const std::vector<int64_t> probes = probe_rows(hash_, table_, slice_);
        if (probes.size() > PackedHeader::kMaxProbes) {
            return error(Code::unsupported, "{} probe rows do not fit the header ({})",
                         probes.size(), PackedHeader::kMaxProbes);
        }
        std::vector<uint8_t> record(static_cast<size_t>(header_.record_bytes));
        for (size_t i = 0; i < probes.size(); ++i) {
            const int64_t r = probes[i] - slice_.first_row;
            const int64_t at = kRowPage + r / header_.records_per_page * kRowPage +
                               r % header_.records_per_page * header_.record_bytes;
            TENON_TRY_CTX(data.read_at(static_cast<uint64_t>(at), record.data(), record.size()),
                          "{}", part());
            header_.probe_hash[i] = xxh3(record.data(), record.size());
        }
        header_.probes = static_cast<int32_t>(probes.size());
        header_.blocks_hash = xxh3(sums_.data(), sums_.size() * 8);
        header_.header_hash = header_.compute_hash();
        TENON_TRY_CTX(data.write_at(header_.trailer_at(), sums_.data(), sums_.size() * 8), "{}",
                      part());
        TENON_TRY_CTX(data.write_at(0, &header_, sizeof header_), "{}", part());
        if (::ftruncate(data.fd(), static_cast<off_t>(header_.file_bytes())) != 0) {
            return error(Code::io, "{}: {}", part(), std::strerror(errno));
        }
        TENON_TRY_CTX(data.flush(), "{}", part());
        if (::rename(part().c_str(), path_.c_str()) != 0) {
            return error(Code::io, "{}: cannot rename to {}: {}", part(), path_,
                         std::strerror(errno));
        }
        ::unlink(sums_path().c_str());
        return {};
    }

    const ModelConfig& config_;
    const EngramHash& hash_;
    int64_t table_;
    const PackRequest& request_;
    WeightSource& source_;
    EngramSlice slice_;
    PackedHeader header_;
    std::string path_;
    std::vector<uint8_t> block_;
    std::vector<uint64_t> sums_;
};

}  // namespace

Status pack_rows(const ModelConfig& config, const PackRequest& request, int64_t block_pages) {
    if (!config.has_engram()) {
        return error(Code::unsupported, "this model has no Engram tables");
    }
    if (request.source == nullptr || request.source->weights() == nullptr) {
        return error(
            Code::invalid_argument,
            "the source directory holds no weights; it needs engram.embed.weight and .scale");
    }
    if (request.world < 1 || request.rank < 0 || request.rank >= request.world ||
        config.engram.columns() % request.world != 0) {
        return error(Code::invalid_argument, "rank {} of {}: {} Engram columns cannot be split so",
                     request.rank, request.world, config.engram.columns());
    }
    TENON_ASSIGN(const EngramHash hash, make_hash(config));
    for (int64_t t = 0; t < hash.tables(); ++t) {
        TENON_TRY_CTX(TablePacker(config, hash, t, request, block_pages).run(), "layer {}",
                      config.engram.layers[static_cast<size_t>(t)]);
    }
    return {};
}

}  // namespace tenon::dsv41
