// SPDX-License-Identifier: MIT
// Reading of the table, copies, tickets.
#include "plugins/storage_common/memory_table.h"

#include "tenon/plugin.h"

#include <algorithm>
#include <cerrno>

#include <unistd.h>

namespace tenon::storage {
namespace {

constexpr uint64_t kSlotBits = 10;  // a ticket is (sequence << kSlotBits) | index

Status read_whole(const RowFile& file, const RowTableDesc& desc, uint64_t offset,
                  std::vector<std::byte>* out) {
    for (size_t at = 0; at < out->size();) {
        const ssize_t n =
            ::pread(file.fd(), out->data() + at, out->size() - at, static_cast<off_t>(offset + at));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return error(Code::io, "{}: {}: cannot read {} bytes at {}: {}", desc.name, desc.path,
                         out->size() - at, offset + at,
                         n < 0 ? errno_text(errno) : std::string("the file ends before them"));
        }
        at += static_cast<size_t>(n);
    }
    return {};
}

}  // namespace

Result<Ref<RowTable>> MemoryRowTable::open(Host& host, const std::string& component,
                                           const RowTableDesc& desc) {
    TENON_ASSIGN(const RowLayout layout, make_layout(desc));
    auto file = RowFile::open(desc.path.str(), Access::buffered, nullptr);
    if (!file.ok()) {
        return file.take_status().with_context(desc.name.view());
    }
    TENON_TRY(check_length(desc, layout, file->bytes()));
    auto* made = new MemoryRowTable(host);
    Ref<RowTable> owner(made);
    LaneTable& table = made->table_;
    table.name = desc.name.str();
    table.layout = layout;
    table.max_batch = desc.max_batch;
    table.max_tickets = desc.max_tickets;
    made->bytes_.resize(layout.file_end() - layout.offset);
    made->open_.resize(static_cast<size_t>(desc.max_tickets));
    made->met_in_.resize(static_cast<size_t>(layout.rows));
    TENON_TRY(read_whole(*file, desc, layout.offset, &made->bytes_));
    register_metrics(host, table);
    host.log(LogLevel::info, component,
             format("opened table={} rows={} row_bytes={} file={} engine=memory bytes={}",
                    table.name, desc.rows, desc.row_bytes, desc.path, made->bytes_.size()));
    return Result<Ref<RowTable>>(std::move(owner));
}

RowTableInfo MemoryRowTable::info() noexcept {
    RowTableInfo info;
    info.max_tickets = table_.max_tickets;
    info.rows = table_.layout.rows;
    info.row_bytes = static_cast<int64_t>(table_.layout.row_bytes);
    set_text(info.engine, "memory");
    return info;
}

RowTableStats MemoryRowTable::stats() noexcept {
    return stats_of(table_);
}

void MemoryRowTable::copy(const RowBatch& batch) {
    if (++fetches_ == 0) {  // wrapped: old marks would look new
        std::fill(met_in_.begin(), met_in_.end(), 0);
        fetches_ = 1;
    }
    auto* dst = static_cast<std::byte*>(batch.dst.data);
    uint64_t rows = 0;
    uint64_t unique = 0;
    for (uint64_t i = 0; i < batch.ids.size; ++i) {
        const int64_t id = batch.ids[i];
        if (id < 0) {
            continue;
        }
        std::memcpy(dst + static_cast<int64_t>(i) * batch.dst.stride[0],
                    bytes_.data() + (table_.layout.begin_of(id) - table_.layout.offset),
                    table_.layout.row_bytes);
        ++rows;
        unique += std::exchange(met_in_[static_cast<size_t>(id)], fetches_) != fetches_ ? 1 : 0;
    }
    table_.rows.add(rows);
    table_.unique_rows.add(unique);
}

Status MemoryRowTable::fetch(const RowBatch& batch, Ticket* out) noexcept {
    return guard([&]() -> Status {
        TENON_TRY(check_batch(table_, batch));
        const auto free = std::find_if(open_.begin(), open_.end(),
                                       [](const Open& open) { return open.ticket == 0; });
        if (free == open_.end()) {
            return error(Code::unavailable,
                         "{}: all {} tickets are open; wait for one or cancel it", table_.name,
                         open_.size());
        }
        const int64_t began = host_.now_us();
        copy(batch);
        table_.fetch_seconds->observe(static_cast<double>(host_.now_us() - began) * 1e-6);
        free->ticket = (++sequence_ << kSlotBits) | static_cast<uint64_t>(free - open_.begin());
        free->rows = static_cast<int64_t>(batch.ids.size);
        *out = free->ticket;
        return {};
    });
}

MemoryRowTable::Open* MemoryRowTable::find(Ticket ticket) {
    const uint64_t index = ticket & ((uint64_t{1} << kSlotBits) - 1);
    const bool is_open = ticket != 0 && index < open_.size() && open_[index].ticket == ticket;
    return is_open ? &open_[index] : nullptr;
}

Status MemoryRowTable::wait(Ticket ticket, int64_t, Span<uint64_t> failed) noexcept {
    return guard([&]() -> Status {
        Open* open = find(ticket);
        if (open == nullptr) {
            return error(Code::not_found, "{}: ticket {} is not open", table_.name, ticket);
        }
        const auto words = static_cast<uint64_t>((open->rows + 63) / 64);
        if (!failed.empty() && failed.size < words) {
            return error(Code::invalid_argument,
                         "{}: {} words for the failed bits of {} rows, expected {}", table_.name,
                         failed.size, open->rows, words);
        }
        std::fill(failed.begin(), failed.end(), 0);
        *open = {};
        return {};
    });
}

bool MemoryRowTable::done(Ticket ticket) noexcept {
    return find(ticket) != nullptr;
}

void MemoryRowTable::cancel(Ticket ticket) noexcept {
    if (Open* open = find(ticket)) {
        *open = {};
    }
}

}  // namespace tenon::storage
