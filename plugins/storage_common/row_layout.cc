// SPDX-License-Identifier: MIT
// Checks of a table's description.
#include "plugins/storage_common/row_layout.h"

#include <limits>

namespace tenon::storage {
namespace {

constexpr int32_t kMaxTickets = 1024;
constexpr int32_t kMaxLanes = 4;
constexpr int64_t kMaxBatch = int64_t{1} << 31;

Status check_field(const RowTableDesc& desc, const char* field, int64_t value, int64_t min,
                   int64_t max) {
    if (value >= min && value <= max) {
        return {};
    }
    return error(Code::invalid_argument, "{}: {} = {}, expected {} … {}", desc.name, field, value,
                 min, max);
}

}  // namespace

Result<RowLayout> make_layout(const RowTableDesc& desc) {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    TENON_TRY(check_field(desc, "rows", desc.rows, 0, kMax));
    TENON_TRY(check_field(desc, "row_bytes", desc.row_bytes, 1, int64_t{1} << 40));
    TENON_TRY(check_field(desc, "rows_per_page", desc.rows_per_page, 0, int64_t{1} << 40));
    TENON_TRY(check_field(desc, "max_batch", desc.max_batch, 1, kMaxBatch));
    TENON_TRY(check_field(desc, "max_tickets", desc.max_tickets, 1, kMaxTickets));
    TENON_TRY(check_field(desc, "lane", desc.lane, 0, kMaxLanes - 1));

    RowLayout layout;
    layout.offset = desc.offset;
    layout.row_bytes = static_cast<uint64_t>(desc.row_bytes);
    layout.rows = desc.rows;
    auto units = static_cast<uint64_t>(desc.rows);
    uint64_t unit_bytes = layout.row_bytes;
    if (desc.rows_per_page == 0) {
        layout.rows_per_page = static_cast<uint64_t>(kMax);
    } else {
        layout.rows_per_page = static_cast<uint64_t>(desc.rows_per_page);
        uint64_t used = 0;
        if (__builtin_mul_overflow(layout.rows_per_page, layout.row_bytes, &used) ||
            desc.page_bytes < 1 || used > static_cast<uint64_t>(desc.page_bytes)) {
            return error(Code::invalid_argument,
                         "{}: page_bytes = {} cannot hold {} rows of {} bytes", desc.name,
                         desc.page_bytes, desc.rows_per_page, desc.row_bytes);
        }
        layout.page_bytes = static_cast<uint64_t>(desc.page_bytes);
        units = units / layout.rows_per_page + 1;
        unit_bytes = layout.page_bytes;
    }
    uint64_t end = 0;
    // Files end below 2^63; one block of slack keeps rounding up from wrapping.
    if (__builtin_mul_overflow(units, unit_bytes, &end) ||
        __builtin_add_overflow(end, layout.offset, &end) ||
        end > static_cast<uint64_t>(kMax) - 4096) {
        return error(Code::invalid_argument, "{}: {} rows of {} bytes at offset {} exceed any file",
                     desc.name, desc.rows, desc.row_bytes, desc.offset);
    }
    return layout;
}

}  // namespace tenon::storage
