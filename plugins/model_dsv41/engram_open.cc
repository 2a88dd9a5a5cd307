// SPDX-License-Identifier: MIT
// Opening of Engram tables in either form, and the self-test that compares them with their source.
#include <algorithm>

#include "engram_reader.h"

namespace tenon::dsv41 {

namespace {

constexpr int64_t kProbeTimeoutUs = 30'000'000;

}  // namespace

Status EngramReader::open_table(int64_t table, Checkpoint& tables, RowStore& store,
                                const EngramOptions& options) {
    const int32_t layer = config_->engram.layers[static_cast<size_t>(table)];
    if (layout_ == EngramLayout::packed) {
        const std::string path =
            tables.dir().str() + "/" + packed_file_name(layer, ranks_.rank, ranks_.world);
        PackedHeader header;
        TENON_TRY(read_packed_header(path, *hash_, config_->engram, table, ranks_.rank,
                                     ranks_.world, &header));
        TENON_TRY(open_packed(table, path, store));
        return options.self_test ? self_test_packed(table, header, path) : Status();
    }
    WeightSource* source = tables.weights();
    if (source == nullptr) {
        return error(Code::not_found,
                     "{} holds neither {} nor packed tables ({}); set [engram] dir to the "
                     "directory that does",
                     tables.dir(), engram_values_name(layer),
                     packed_file_name(layer, ranks_.rank, ranks_.world));
    }
    TENON_TRY(open_official(table, *source, store));
    return options.self_test ? self_test_official(table, *source) : Status();
}

Status EngramReader::open_packed(int64_t table, const std::string& path, RowStore& store) {
    Table& t = tables_[static_cast<size_t>(table)];
    const EngramSlice& slice = slices_[static_cast<size_t>(table)];
    const std::string name =
        engram_values_name(config_->engram.layers[static_cast<size_t>(table)]) + " (packed)";
    RowTableDesc desc;
    desc.name = name;
    desc.path = path;
    desc.offset = kRowPage;
    desc.rows = slice.rows;
    desc.row_bytes = record_bytes_;
    desc.rows_per_page = kRowPage / record_bytes_;
    desc.page_bytes = kRowPage;
    desc.max_batch = static_cast<int64_t>(fetch_ids_.capacity());
    desc.max_tickets = static_cast<int32_t>(regions_.size() + early_.size() + 2);
    t.first_row = slice.first_row;
    return store.open(desc, t.values.out());
}

Status EngramReader::open_official(int64_t table, WeightSource& source, RowStore& store) {
    Table& t = tables_[static_cast<size_t>(table)];
    TensorInfo values;
    TensorInfo scales;
    TENON_TRY(find_official(source, config_->engram, table, &values, &scales));
    const auto open_one = [&](const TensorInfo& info, int64_t row_bytes, Ref<RowTable>* out) {
        RowTableDesc desc;
        desc.name = info.name;
        desc.path = info.file;
        desc.offset = info.offset;
        desc.rows = info.shape[0];
        desc.row_bytes = row_bytes;
        desc.max_batch = static_cast<int64_t>(fetch_ids_.capacity());
        desc.max_tickets = static_cast<int32_t>(regions_.size() + early_.size() + 2);
        return store.open(desc, out->out());
    };
    TENON_TRY(open_one(values, config_->engram.width, &t.values));
    return open_one(scales, config_->engram.width / 32, &t.scales);
}

/// Records of the given (official) rows through the row store, dense.
Status EngramReader::fetch_probes(int64_t table, const std::vector<int64_t>& rows,
                                  std::vector<uint8_t>* records) {
    Table& t = tables_[static_cast<size_t>(table)];
    const auto count = static_cast<int64_t>(rows.size());
    fetch_ids_.clear();
    for (const int64_t r : rows) {
        fetch_ids_.push_back(r - t.first_row);
    }
    records->assign(static_cast<size_t>(count * record_bytes_), 0);
    Pending pending;
    bool any = false;
    TENON_TRY(fetch(t, fetch_ids_.data(), count, records->data(), &pending));
    TENON_TRY(finish(t, &pending, count, kProbeTimeoutUs, &any));
    if (any) {
        return error(Code::io, "self-test: a known row of layer {}'s table could not be read",
                     config_->engram.layers[static_cast<size_t>(table)]);
    }
    return {};
}

Status EngramReader::self_test_official(int64_t table, WeightSource& source) {
    const int32_t layer = config_->engram.layers[static_cast<size_t>(table)];
    const int64_t width = config_->engram.width;
    const std::vector<int64_t> rows =
        probe_rows(*hash_, table, slices_[static_cast<size_t>(table)]);
    std::vector<uint8_t> records;
    TENON_TRY(fetch_probes(table, rows, &records));
    std::vector<uint8_t> expected(static_cast<size_t>(engram_row_bytes(width)));
    for (size_t i = 0; i < rows.size(); ++i) {
        const auto row = static_cast<uint64_t>(rows[i]);
        const auto groups = static_cast<uint64_t>(width / 32);
        TENON_TRY(source.read(engram_values_name(layer), row * static_cast<uint64_t>(width),
                              static_cast<uint64_t>(width), expected.data()));
        TENON_TRY(
            source.read(engram_scales_name(layer), row * groups, groups, expected.data() + width));
        if (!std::equal(expected.begin(), expected.end(),
                        records.begin() + static_cast<int64_t>(i) * record_bytes_)) {
            return error(Code::io,
                         "self-test: the row store returned other bytes for row {} than {} holds",
                         rows[i], engram_values_name(layer));
        }
    }
    return {};
}

Status EngramReader::self_test_packed(int64_t table, const PackedHeader& header,
                                      const std::string& path) {
    const std::vector<int64_t> rows =
        probe_rows(*hash_, table, slices_[static_cast<size_t>(table)]);
    std::vector<uint8_t> records;
    TENON_TRY(fetch_probes(table, rows, &records));
    for (size_t i = 0; i < rows.size(); ++i) {
        const uint8_t* record = records.data() + static_cast<int64_t>(i) * record_bytes_;
        if (xxh3(record, static_cast<size_t>(record_bytes_)) != header.probe_hash[i]) {
            return error(
                Code::io,
                "{}: self-test: row {} does not have the checksum of its header; verify the file "
                "with `tenon pack-engram --verify`",
                path, rows[i]);
        }
    }
    return {};
}

}  // namespace tenon::dsv41
