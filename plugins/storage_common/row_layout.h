// SPDX-License-Identifier: MIT
// Where rows lie in a file: the arithmetic of RowTableDesc, checked once so that it cannot overflow
// later.
#pragma once

#include "tenon/storage.h"

namespace tenon::storage {

struct RowLayout {
    uint64_t offset = 0;
    uint64_t row_bytes = 0;
    uint64_t rows_per_page = 0;  ///< never 0: a contiguous array is one page
    uint64_t page_bytes = 0;
    int64_t rows = 0;

    uint64_t begin_of(int64_t id) const {
        const auto r = static_cast<uint64_t>(id);
        const uint64_t page = r / rows_per_page;
        return offset + page * page_bytes + (r - page * rows_per_page) * row_bytes;
    }
    uint64_t end_of(int64_t id) const { return begin_of(id) + row_bytes; }
    /// First byte behind the last row; `offset` for an empty table.
    uint64_t file_end() const { return rows == 0 ? offset : end_of(rows - 1); }
};

/// errors  invalid_argument: names the field, what it is and what it may be
Result<RowLayout> make_layout(const RowTableDesc& desc);

}  // namespace tenon::storage
