// SPDX-License-Identifier: MIT
// Staging and fetching of Engram rows by id.
#include "engram_reader.h"

#include <algorithm>

namespace tenon::dsv41 {

namespace {

constexpr int64_t kPollUs = 20'000;  ///< how long one wait lasts before `abort` is looked at

constexpr int64_t round_up(int64_t value, int64_t to) {
    return (value + to - 1) / to * to;
}

}  // namespace

int64_t EngramReader::staging_bytes(const ModelConfig& c, RankShape ranks, const EngramOptions& o) {
    const int64_t row =
        int64_t{c.engram.columns()} / ranks.world * engram_record_bytes(c.engram.width);
    const auto tables = static_cast<int64_t>(c.engram.layers.size());
    int64_t bytes = o.early_slots * round_up(kEarlyPositions * row, 256);
    for (const int64_t rows : o.regions) {
        bytes += round_up(rows * row, 256);
    }
    return tables * bytes;
}

Status EngramReader::open(const ModelConfig& config, RankShape ranks, Checkpoint& tables,
                          RowStore& store, Device& device, Host* host,
                          const EngramOptions& options) {
    config_ = &config;
    ranks_ = ranks;
    host_ = host;
    TENON_ASSIGN(EngramHash hash, make_hash(config));
    hash_ = std::make_unique<EngramHash>(std::move(hash));
    columns_ = hash_->columns() / ranks.world;
    record_bytes_ = engram_record_bytes(config.engram.width);
    int64_t most_rows = kEarlyPositions;
    for (const int64_t rows : options.regions) {
        most_rows = std::max(most_rows, rows);
    }
    const auto count = static_cast<size_t>(hash_->tables());
    for (size_t t = 0; t < count; ++t) {
        slices_.push_back(
            EngramSlice::of(*hash_, static_cast<int64_t>(t), ranks.rank, ranks.world));
    }

    layout_ = options.layout;
    if (layout_ == EngramLayout::automatic) {
        const std::string first =
            tables.dir().str() + "/" +
            packed_file_name(config.engram.layers[0], ranks.rank, ranks.world);
        layout_ = UniqueFile::exists(first) ? EngramLayout::packed : EngramLayout::official;
    }
    tables_.resize(count);
    const int64_t probes = 2 * columns_ + kSeededProbes;
    const int64_t batch = std::max(most_rows, probes) * columns_;
    fetch_ids_.reserve(static_cast<size_t>(batch));
    failed_.resize(static_cast<size_t>((batch + 63) / 64));
    failed_scales_.resize(failed_.size());
    scratch_ids_.resize(static_cast<size_t>(most_rows * hash_->columns()));

    BufferDesc desc;
    desc.bytes = std::max<int64_t>(staging_bytes(config, ranks, options), 256);
    desc.kind = BufferKind::pinned;
    desc.tag = "engram.staging";
    TENON_TRY(device.allocate(desc, staging_.out()));
    auto* next = static_cast<uint8_t*>(staging_->data());
    const auto take = [&](int64_t rows) {
        uint8_t* here = next;
        next += static_cast<int64_t>(count) * round_up(rows * columns_ * record_bytes_, 256);
        return here;
    };
    for (const int64_t rows : options.regions) {
        Region r;
        r.capacity = rows;
        r.data = take(rows);
        r.ids.resize(static_cast<size_t>(rows * columns_) * count);
        r.pending.resize(count);
        r.ahead.resize(count);
        r.ahead_classes.reserve(static_cast<size_t>(rows + hash_->history()));
        regions_.push_back(std::move(r));
    }
    early_.resize(static_cast<size_t>(options.early_slots));
    for (Early& e : early_) {
        e.data = take(kEarlyPositions);
        e.position.assign(kEarlyPositions, -1);
        e.failed.assign(kEarlyPositions, 0);
        e.ids.resize(static_cast<size_t>(kEarlyPositions * columns_) * count);
        e.pending.resize(count);
    }
    for (size_t t = 0; t < count; ++t) {
        TENON_TRY_CTX(open_table(static_cast<int64_t>(t), tables, store, options),
                      "Engram table of layer {}", config.engram.layers[t]);
    }
    return {};
}

uint8_t* EngramReader::table_data(const Region& region, int64_t table) const {
    return region.data + table * round_up(region.capacity * columns_ * record_bytes_, 256);
}

Status EngramReader::fetch(Table& table, const int64_t* ids, int64_t count, uint8_t* data,
                           Pending* pending) {
    const int64_t width = config_->engram.width;
    const auto view = [&](int64_t at, int64_t bytes) {
        TensorView v = make_view(data + at, DType::u8, {count, bytes}, staging_->place());
        v.stride[0] = record_bytes_;
        return v;
    };
    const Span<const int64_t> list(ids, static_cast<uint64_t>(count));
    const int64_t first_bytes = table.scales ? width : record_bytes_;
    TENON_TRY(table.values->fetch({list, view(0, first_bytes)}, &pending->ticket[0]));
    pending->open[0] = true;
    if (table.scales) {
        TENON_TRY(table.scales->fetch({list, view(width, width / 32)}, &pending->ticket[1]));
        pending->open[1] = true;
    }
    return {};
}

/// Ends both tickets; failed bits of both are merged into `failed_`.
Status EngramReader::finish(Table& table, Pending* pending, int64_t count, int64_t timeout_us,
                            bool* any_failed) {
    const auto words = static_cast<uint64_t>((count + 63) / 64);
    std::fill_n(failed_.begin(), words, 0);
    RowTable* const parts[2] = {table.values.get(), table.scales.get()};
    std::vector<uint64_t>* const bits[2] = {&failed_, &failed_scales_};
    for (int i = 0; i < 2; ++i) {
        if (!pending->open[i]) {
            continue;
        }
        const int64_t deadline = host_->now_us() + timeout_us;
        for (;;) {
            const int64_t left = deadline - host_->now_us();
            if (aborted_.load(std::memory_order_relaxed)) {
                return error(Code::peer, "aborted while waiting for Engram rows");
            }
            std::fill_n(bits[i]->begin(), words, 0);
            Status status =
                parts[i]->wait(pending->ticket[i], std::clamp<int64_t>(left, 0, kPollUs),
                               {bits[i]->data(), words});
            if (status.ok()) {
                break;
            }
            if (status.code() != Code::deadline) {
                pending->open[i] = false;
                return status;
            }
            if (left <= 0) {
                // A store that hangs costs these rows, not the service.
                parts[i]->cancel(pending->ticket[i]);
                std::fill_n(bits[i]->begin(), words, ~uint64_t{0});
                break;
            }
        }
        pending->open[i] = false;
        if (i == 1) {
            for (uint64_t w = 0; w < words; ++w) {
                failed_[w] |= failed_scales_[w];
            }
        }
    }
    *any_failed = std::any_of(failed_.begin(), failed_.begin() + static_cast<int64_t>(words),
                              [](uint64_t w) { return w != 0; });
    return {};
}

Status EngramReader::settle(Early* early) {
    for (size_t t = 0; t < tables_.size(); ++t) {
        Pending& p = early->pending[t];
        if (!p.open[0] && !p.open[1]) {
            continue;
        }
        bool any = false;
        const int64_t n = kEarlyPositions * columns_;
        TENON_TRY(finish(tables_[t], &p, n, 1'000'000, &any));
        for (int64_t i = 0; any && i < n; ++i) {
            if ((failed_[static_cast<size_t>(i / 64)] >> (i % 64) & 1) != 0) {
                early->failed[static_cast<size_t>(i / columns_)] = 1;
            }
        }
    }
    return {};
}

Status EngramReader::read_ahead(const Run& run) {
    if (run.slot >= early_.size() || run.count > kEarlyPositions || run.count <= 0) {
        return {};
    }
    Early& early = early_[run.slot];
    TENON_TRY(settle(&early));
    const auto tables = static_cast<int64_t>(tables_.size());
    const int64_t all = hash_->columns();
    bool wanted[kEarlyPositions] = {};
    bool any = false;
    for (int64_t t = 0; t < tables; ++t) {
        hash_->row_ids(t, run.classes, pad_class_,
                       {scratch_ids_.data(), static_cast<size_t>(run.count * all)});
        for (int64_t i = 0; i < run.count; ++i) {
            const int64_t at = (run.position + i) % kEarlyPositions;
            int64_t* kept = early.ids.data() + (at * tables + t) * columns_;
            const int64_t* ids =
                scratch_ids_.data() + i * all + slices_[static_cast<size_t>(t)].first_column;
            const bool known = early.position[static_cast<size_t>(at)] == run.position + i &&
                               early.failed[static_cast<size_t>(at)] == 0 &&
                               std::equal(ids, ids + columns_, kept);
            if (!known) {
                std::copy_n(ids, columns_, kept);
                wanted[at] = true;
                any = true;
            }
        }
    }
    if (!any) {
        return {};
    }
    for (int64_t i = 0; i < run.count; ++i) {
        const auto at = static_cast<size_t>((run.position + i) % kEarlyPositions);
        early.position[at] = run.position + i;
        early.failed[at] = wanted[at] ? 0 : early.failed[at];
    }
    const int64_t per_table = round_up(kEarlyPositions * columns_ * record_bytes_, 256);
    for (int64_t t = 0; t < tables; ++t) {
        fetch_ids_.assign(static_cast<size_t>(kEarlyPositions * columns_), -1);
        for (int64_t at = 0; at < kEarlyPositions; ++at) {
            for (int64_t c = 0; wanted[at] && c < columns_; ++c) {
                const int64_t id = early.ids[static_cast<size_t>((at * tables + t) * columns_ + c)];
                fetch_ids_[static_cast<size_t>(at * columns_ + c)] =
                    id < 0 ? -1 : id - tables_[static_cast<size_t>(t)].first_row;
            }
        }
        TENON_TRY(fetch(tables_[static_cast<size_t>(t)], fetch_ids_.data(),
                        kEarlyPositions * columns_, early.data + t * per_table,
                        &early.pending[static_cast<size_t>(t)]));
    }
    return {};
}

void EngramReader::forget_slot(uint32_t slot) {
    if (slot < early_.size()) {
        std::fill(early_[slot].position.begin(), early_[slot].position.end(), -1);
    }
}

Status EngramReader::prefetch(int32_t region_index, const Run& run) {
    Region& region = regions_[static_cast<size_t>(region_index)];
    const auto tables = static_cast<int64_t>(tables_.size());
    const int64_t all = hash_->columns();
    cancel(&region.pending);
    cancel(&region.ahead);
    region.taken_over = false;
    region.ahead_rows = 0;
    if (run.count < 1 || run.count > region.capacity) {
        return {};
    }
    region.ahead_classes.assign(run.classes.begin(), run.classes.end());
    for (int64_t t = 0; t < tables; ++t) {
        const Table& table = tables_[static_cast<size_t>(t)];
        hash_->row_ids(t, run.classes, pad_class_,
                       {scratch_ids_.data(), static_cast<size_t>(run.count * all)});
        fetch_ids_.assign(static_cast<size_t>(run.count * columns_), -1);
        int64_t wanted = 0;
        for (int64_t row = 0; row < run.count; ++row) {
            const int64_t* ids =
                scratch_ids_.data() + row * all + slices_[static_cast<size_t>(t)].first_column;
            std::copy_n(ids, columns_, region.ids.data() + (row * tables + t) * columns_);
            for (int64_t c = 0; c < columns_; ++c) {
                if (ids[c] >= 0) {
                    fetch_ids_[static_cast<size_t>(row * columns_ + c)] = ids[c] - table.first_row;
                    ++wanted;
                }
            }
        }
        if (wanted > 0) {
            TENON_TRY(fetch(tables_[static_cast<size_t>(t)], fetch_ids_.data(),
                            run.count * columns_, table_data(region, t),
                            &region.ahead[static_cast<size_t>(t)]));
        }
    }
    region.ahead_rows = run.count;
    return {};
}

/// Leading rows of the group that lie in the region already. Equal classes have equal row ids. A
/// group that parts from what was read ahead takes nothing: the read may still write behind the
/// place where they part.
int64_t EngramReader::take_over(Region* region, int64_t rows, Span<const Run> runs) {
    const int64_t n = std::min(rows, region->ahead_rows);
    const auto classes = static_cast<size_t>(n + hash_->history());
    const bool is_same = n > 0 && !region->taken_over && runs.size == 1 && runs[0].row0 == 0 &&
                         runs[0].count == rows &&
                         std::equal(region->ahead_classes.begin(),
                                    region->ahead_classes.begin() + static_cast<int64_t>(classes),
                                    runs[0].classes.begin());
    region->taken_over = is_same;
    if (!is_same) {
        cancel(&region->ahead);
        region->ahead_rows = 0;
        return 0;
    }
    rows_taken_over_ += n;
    return n;
}

Status EngramReader::start(int32_t region_index, int64_t rows, Span<const Run> runs) {
    Region& region = regions_[static_cast<size_t>(region_index)];
    const auto tables = static_cast<int64_t>(tables_.size());
    const int64_t all = hash_->columns();
    const int64_t early_bytes = round_up(kEarlyPositions * columns_ * record_bytes_, 256);
    const int64_t row_bytes = columns_ * record_bytes_;
    TENON_CHECK(rows <= region.capacity, "{} rows of {}", rows, region.capacity);
    region.rows = rows;
    cancel(&region.pending);  // a step that failed half-way may have left some
    const int64_t here = take_over(&region, rows, runs);
    for (const Run& run : runs) {
        if (run.early && run.slot < early_.size()) {
            TENON_TRY(settle(&early_[run.slot]));
        }
    }
    for (int64_t t = 0; t < tables; ++t) {
        Table& table = tables_[static_cast<size_t>(t)];
        uint8_t* data = table_data(region, t);
        fetch_ids_.assign(static_cast<size_t>(rows * columns_), -1);
        int64_t wanted = 0;
        for (const Run& run : runs) {
            // Only a group of one run has rows that are here.
            const int64_t left = run.count - here;
            hash_->row_ids(t, run.classes.subspan(static_cast<size_t>(here)), pad_class_,
                           {scratch_ids_.data(), static_cast<size_t>(left * all)});
            for (int64_t i = here; i < run.count; ++i) {
                const int64_t* ids = scratch_ids_.data() + (i - here) * all +
                                     slices_[static_cast<size_t>(t)].first_column;
                const int64_t row = run.row0 + i;
                std::copy_n(ids, columns_, region.ids.data() + (row * tables + t) * columns_);
                if (run.early && run.slot < early_.size()) {
                    const Early& e = early_[run.slot];
                    const int64_t at = (run.position + i) % kEarlyPositions;
                    const int64_t* kept = e.ids.data() + (at * tables + t) * columns_;
                    if (e.position[static_cast<size_t>(at)] == run.position + i &&
                        e.failed[static_cast<size_t>(at)] == 0 &&
                        std::equal(ids, ids + columns_, kept)) {
                        std::memcpy(data + row * row_bytes,
                                    e.data + t * early_bytes + at * row_bytes,
                                    static_cast<size_t>(row_bytes));
                        continue;
                    }
                }
                for (int64_t c = 0; c < columns_; ++c) {
                    fetch_ids_[static_cast<size_t>(row * columns_ + c)] =
                        ids[c] < 0 ? -1 : ids[c] - table.first_row;
                    wanted += ids[c] < 0 ? 0 : 1;
                }
            }
        }
        if (wanted > 0) {
            TENON_TRY(fetch(table, fetch_ids_.data(), rows * columns_, data,
                            &region.pending[static_cast<size_t>(t)]));
        }
    }
    return {};
}

/// Ends the read ahead of one table. Rows that failed are read once more: the guess must not cost
/// the group anything. `failed_` then holds what failed again.
Status EngramReader::finish_ahead(int32_t table_index, Region* region, int64_t timeout_us,
                                  bool* any_failed) {
    Table& table = tables_[static_cast<size_t>(table_index)];
    const auto tables = static_cast<int64_t>(tables_.size());
    TENON_TRY(finish(table, &region->ahead[static_cast<size_t>(table_index)],
                     region->ahead_rows * columns_, timeout_us, any_failed));
    if (!*any_failed) {
        return {};
    }
    const int64_t rows = std::min(region->rows, region->ahead_rows);
    fetch_ids_.assign(static_cast<size_t>(rows * columns_), -1);
    for (int64_t i = 0; i < rows * columns_; ++i) {
        const int64_t id = region->ids[static_cast<size_t>(
            (i / columns_ * tables + table_index) * columns_ + i % columns_)];
        if ((failed_[static_cast<size_t>(i / 64)] >> (i % 64) & 1) != 0 && id >= 0) {
            fetch_ids_[static_cast<size_t>(i)] = id - table.first_row;
        }
    }
    Pending again;
    TENON_TRY(
        fetch(table, fetch_ids_.data(), rows * columns_, table_data(*region, table_index), &again));
    return finish(table, &again, rows * columns_, timeout_us, any_failed);
}

/// Those of the first `rows` rows with a bit in `failed_` become zeros.
void EngramReader::mark_failed(Region* region, int32_t table, int64_t rows,
                               Span<uint8_t> row_failed) {
    uint8_t* data = table_data(*region, table);
    for (int64_t row = 0; row < rows; ++row) {
        bool failed = false;
        for (int64_t i = row * columns_; i < (row + 1) * columns_; ++i) {
            failed = failed || (failed_[static_cast<size_t>(i / 64)] >> (i % 64) & 1) != 0;
        }
        if (failed) {
            row_failed[static_cast<uint64_t>(row)] = 1;
            std::memset(data + row * columns_ * record_bytes_, 0,
                        static_cast<size_t>(columns_ * record_bytes_));
        }
    }
}

Status EngramReader::wait(int32_t region_index, int32_t table, int64_t timeout_us,
                          Span<uint8_t> row_failed, TensorView* values, TensorView* scales) {
    Region& region = regions_[static_cast<size_t>(region_index)];
    const auto t = static_cast<size_t>(table);
    const int64_t start = host_->now_us();
    bool any = false;
    if (region.taken_over) {
        TENON_TRY(finish_ahead(table, &region, timeout_us, &any));
        if (any) {
            mark_failed(&region, table, std::min(region.rows, region.ahead_rows), row_failed);
        }
    }
    TENON_TRY(finish(tables_[t], &region.pending[t], region.rows * columns_, timeout_us, &any));
    wait_us_ += host_->now_us() - start;
    if (any) {
        mark_failed(&region, table, region.rows, row_failed);
    }
    staged(region_index, table, region.rows, values, scales);
    return {};
}

void EngramReader::staged(int32_t region, int32_t table, int64_t rows, TensorView* values,
                          TensorView* scales) const {
    uint8_t* data = table_data(regions_[static_cast<size_t>(region)], table);
    const int64_t width = config_->engram.width;
    const auto view = [&](int64_t at, int64_t bytes) {
        TensorView v = make_view(data + at, DType::u8, {rows, columns_, bytes}, staging_->place());
        v.stride[0] = columns_ * record_bytes_;
        v.stride[1] = record_bytes_;
        return v;
    };
    *values = view(0, width);
    *scales = view(width, width / 32);
}

Span<const int64_t> EngramReader::ids(int32_t region) const {
    const Region& r = regions_[static_cast<size_t>(region)];
    return {r.ids.data(), static_cast<uint64_t>(r.rows * columns_) * tables_.size()};
}

void EngramReader::cancel(std::vector<Pending>* list) {
    for (size_t t = 0; t < list->size() && t < tables_.size(); ++t) {
        RowTable* const parts[2] = {tables_[t].values.get(), tables_[t].scales.get()};
        Pending& p = (*list)[t];
        for (int i = 0; i < 2; ++i) {
            if (p.open[i]) {
                parts[i]->cancel(p.ticket[i]);
                p.open[i] = false;
            }
        }
    }
}

void EngramReader::drain() {
    for (Region& r : regions_) {
        cancel(&r.pending);
        cancel(&r.ahead);
    }
    for (Early& e : early_) {
        cancel(&e.pending);
    }
}

}  // namespace tenon::dsv41
