// SPDX-License-Identifier: MIT
// Checks of fetches, tickets and waiting; all reading happens on the lane.
#include "plugins/storage_common/row_table.h"

#include "plugins/storage_common/memory_table.h"

#include "tenon/plugin.h"

#include <algorithm>
#include <chrono>

namespace tenon::storage {
namespace {

constexpr int kSlotBits = 10;  // a ticket is (sequence << kSlotBits) | slot; 1024 slots at most

constexpr double kFetchBuckets[] = {1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0};

Metric* series(Host& host, MetricKind kind, const char* name, const char* help,
               const std::string& labels) {
    MetricDesc desc;
    desc.kind = kind;
    desc.name = name;
    desc.help = help;
    desc.labels = labels;
    if (kind == MetricKind::histogram) {
        desc.buckets = kFetchBuckets;
    }
    return host.metric(desc);
}

}  // namespace

void register_metrics(Host& host, LaneTable& table) {
    const std::string labels = "table=" + table.name;
    const auto counter = [&](const char* name, const char* help) {
        return series(host, MetricKind::counter, name, help, labels);
    };
    table.rows.metric = counter("engram_rows_total", "Rows asked for");
    table.unique_rows.metric =
        counter("engram_unique_rows_total", "Rows asked for, repeats in a fetch counted once");
    table.reads.metric = counter("engram_reads_total", "Reads issued to the kernel");
    table.read_bytes.metric = counter("engram_read_bytes_total", "Bytes of these reads");
    table.failed_rows.metric =
        counter("engram_failed_rows_total", "Rows that could not be read, after one retry");
    table.retries.metric = counter("engram_read_retries_total", "Reads issued a second time");
    table.fetch_seconds = series(host, MetricKind::histogram, "engram_fetch_seconds",
                                 "Time from a fetch to its last row", labels);
}

RowTableStats stats_of(const LaneTable& table) {
    RowTableStats stats;
    stats.rows = table.rows.value.load(std::memory_order_relaxed);
    stats.unique_rows = table.unique_rows.value.load(std::memory_order_relaxed);
    stats.reads = table.reads.value.load(std::memory_order_relaxed);
    stats.read_bytes = table.read_bytes.value.load(std::memory_order_relaxed);
    stats.failed_rows = table.failed_rows.value.load(std::memory_order_relaxed);
    stats.retries = table.retries.value.load(std::memory_order_relaxed);
    return stats;
}

Status check_length(const RowTableDesc& desc, const RowLayout& layout, uint64_t file_bytes) {
    if (file_bytes < layout.file_end()) {
        return error(Code::invalid_argument,
                     "{}: {} is shorter than its {} rows of {} bytes need: {} bytes, expected at "
                     "least {}; is the copy complete?",
                     desc.name, desc.path, desc.rows, desc.row_bytes, file_bytes,
                     layout.file_end());
    }
    return {};
}

Status check_batch(const LaneTable& table, const RowBatch& batch) {
    const auto n = static_cast<int64_t>(batch.ids.size);
    const TensorView& dst = batch.dst;
    if (n > table.max_batch) {
        return error(Code::invalid_argument, "{}: fetch of {} rows, the table was opened for {}",
                     table.name, n, table.max_batch);
    }
    if (n == 0) {
        return {};
    }
    const auto row_bytes = static_cast<int64_t>(table.layout.row_bytes);
    if (dst.rank != 2 || dtype_bytes(dst.dtype) != 1 || dst.shape[0] != n ||
        dst.shape[1] != row_bytes) {
        return error(Code::invalid_argument, "{}: dst is {}, expected u8[{}, {}]", table.name,
                     describe(dst), n, row_bytes);
    }
    if (dst.null() || dst.place == Place::device || dst.stride[1] != 1 ||
        (n > 1 && dst.stride[0] < row_bytes)) {
        return error(Code::invalid_argument,
                     "{}: dst must be host memory with rows of {} contiguous bytes that do not "
                     "overlap; strides are {}, {}",
                     table.name, row_bytes, dst.stride[0], dst.stride[1]);
    }
    for (int64_t i = 0; i < n; ++i) {
        const int64_t id = batch.ids[static_cast<uint64_t>(i)];
        if (id < -1 || id >= table.layout.rows) {
            return error(Code::invalid_argument,
                         "{}: id {} at position {} is out of range, expected -1 … {}", table.name,
                         id, i, table.layout.rows - 1);
        }
    }
    return {};
}

LaneRowTable::LaneRowTable(Host& host, std::shared_ptr<ReadLane> lane)
    : host_(host), lane_(std::move(lane)) {}

Result<Ref<RowTable>> LaneRowTable::open(Host& host, const std::string& component,
                                         const RowTableDesc& desc, Access access,
                                         std::shared_ptr<ReadLane> lane) {
    TENON_ASSIGN(const RowLayout layout, make_layout(desc));
    std::string refusal;
    auto file = RowFile::open(desc.path.str(), access, &refusal);
    if (!file.ok()) {
        return file.take_status().with_context(desc.name.view());
    }
    TENON_TRY(check_length(desc, layout, file->bytes()));
    auto* made = new LaneRowTable(host, std::move(lane));
    Ref<RowTable> owner(made);
    LaneTable& table = made->table_;
    table.name = desc.name.str();
    table.layout = layout;
    table.file = std::move(*file);
    table.max_batch = desc.max_batch;
    table.max_tickets = desc.max_tickets;
    register_metrics(host, table);
    for (int32_t i = 0; i < desc.max_tickets; ++i) {
        made->slots_.push_back(std::make_unique<TicketSlot>(table));
    }
    made->open_.resize(made->slots_.size());
    TENON_TRY_CTX(made->lane_->attach(table), "{}", table.name);
    made->attached_ = true;
    if (!refusal.empty()) {
        host.log(LogLevel::warn, component,
                 format("reads go through the page cache table={} file={} reason=\"{}\"",
                        table.name, desc.path, refusal));
    }
    host.log(LogLevel::info, component,
             format("opened table={} rows={} row_bytes={} file={} engine={} direct={} depth={}",
                    table.name, desc.rows, desc.row_bytes, desc.path, made->lane_->engine(),
                    table.file.direct(), made->lane_->depth()));
    return Result<Ref<RowTable>>(std::move(owner));
}

LaneRowTable::~LaneRowTable() {
    for (const Ticket ticket : open_) {
        if (ticket != 0) {
            cancel(ticket);
        }
    }
    if (attached_) {
        lane_->detach(table_);
    }
}

RowTableInfo LaneRowTable::info() noexcept {
    RowTableInfo info;
    info.max_tickets = table_.max_tickets;
    info.rows = table_.layout.rows;
    info.row_bytes = static_cast<int64_t>(table_.layout.row_bytes);
    info.direct = table_.file.direct();
    set_text(info.engine, lane_->engine());
    return info;
}

RowTableStats LaneRowTable::stats() noexcept {
    return stats_of(table_);
}

Status LaneRowTable::fetch(const RowBatch& batch, Ticket* out) noexcept {
    return guard([&]() -> Status {
        TENON_TRY(check_batch(table_, batch));
        const auto free = std::find(open_.begin(), open_.end(), Ticket{0});
        if (free == open_.end()) {
            return error(Code::unavailable,
                         "{}: all {} tickets are open; wait for one or cancel it", table_.name,
                         open_.size());
        }
        const auto index = static_cast<uint64_t>(free - open_.begin());
        TicketSlot& slot = *slots_[index];
        {
            const std::lock_guard lock(slot.mutex);
            slot.ticket = (++sequence_ << kSlotBits) | index;
            slot.dst = batch.dst;
            slot.batch_rows = static_cast<int64_t>(batch.ids.size);
            slot.wanted = 0;
            for (uint64_t i = 0; i < batch.ids.size; ++i) {
                if (batch.ids[i] >= 0) {
                    slot.refs[static_cast<size_t>(slot.wanted++)] = {batch.ids[i],
                                                                     static_cast<int64_t>(i)};
                }
            }
            std::fill_n(slot.failed.begin(), (batch.ids.size + 63) / 64, 0);
            slot.failed_rows = 0;
            slot.pending = 0;
            slot.started_us = host_.now_us();
            if (slot.wanted == 0) {
                slot.state = TicketSlot::State::done;
                slot.done_ticket.store(slot.ticket, std::memory_order_release);
            } else {
                slot.state = TicketSlot::State::queued;
                lane_->enqueue(slot);
            }
            *free = *out = slot.ticket;
        }
        if (slot.wanted > 0) {
            lane_->wake();
        }
        return {};
    });
}

TicketSlot* LaneRowTable::find(Ticket ticket) {
    const uint64_t index = ticket & ((uint64_t{1} << kSlotBits) - 1);
    const bool is_open = ticket != 0 && index < open_.size() && open_[index] == ticket;
    return is_open ? slots_[index].get() : nullptr;
}

Status LaneRowTable::wait(Ticket ticket, int64_t timeout_us, Span<uint64_t> failed) noexcept {
    return guard([&]() -> Status {
        TicketSlot* slot = find(ticket);
        if (slot == nullptr) {
            return error(Code::not_found, "{}: ticket {} is not open", table_.name, ticket);
        }
        std::unique_lock lock(slot->mutex);
        const auto words = static_cast<uint64_t>((slot->batch_rows + 63) / 64);
        if (!failed.empty() && failed.size < words) {
            return error(Code::invalid_argument,
                         "{}: {} words for the failed bits of {} rows, expected {}", table_.name,
                         failed.size, slot->batch_rows, words);
        }
        // A longer wait would overflow the clock; nobody means a century.
        const int64_t bounded = std::clamp<int64_t>(timeout_us, 0, int64_t{1} << 50);
        const bool is_done = slot->finished.wait_for(lock, std::chrono::microseconds(bounded), [&] {
            return slot->state == TicketSlot::State::done;
        });
        if (!is_done) {
            return error(Code::deadline, "{}: rows not read within {} us", table_.name, timeout_us);
        }
        if (!failed.empty()) {
            std::fill(failed.begin(), failed.end(), 0);
            std::copy_n(slot->failed.begin(), words, failed.begin());
        }
        end(*slot);
        return {};
    });
}

bool LaneRowTable::done(Ticket ticket) noexcept {
    TicketSlot* slot = find(ticket);
    return slot != nullptr && slot->done_ticket.load(std::memory_order_acquire) == ticket;
}

void LaneRowTable::cancel(Ticket ticket) noexcept {
    TicketSlot* slot = find(ticket);
    if (slot == nullptr) {
        return;
    }
    // The lane copies rows under this mutex and drops reads of a ticket that is no longer there.
    const std::lock_guard lock(slot->mutex);
    end(*slot);
}

/// The slot's mutex is held.
void LaneRowTable::end(TicketSlot& slot) {
    open_[slot.ticket & ((uint64_t{1} << kSlotBits) - 1)] = 0;
    slot.state = TicketSlot::State::free;
    slot.ticket = 0;
}

Status LaneRowStore::open(const RowTableDesc& desc, RowTable** out) noexcept {
    return guard([&]() -> Status {
        // The description is checked before a thread starts for it.
        TENON_ASSIGN(const RowLayout layout, make_layout(desc));
        if (layout.file_end() - layout.offset <= memory_bytes_ && layout.rows > 0) {
            auto table = MemoryRowTable::open(host_, component_, desc);
            TENON_TRY(table.take_status());
            *out = table->detach();
            return {};
        }
        auto& lane = lanes_.at(static_cast<size_t>(desc.lane % lane_count_));
        if (lane == nullptr) {
            TENON_ASSIGN(lane, start_lane_(desc.lane % lane_count_));
        }
        auto table = LaneRowTable::open(host_, component_, desc, access_, lane);
        TENON_TRY(table.take_status());
        *out = table->detach();
        return {};
    });
}

}  // namespace tenon::storage
