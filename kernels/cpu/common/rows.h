// SPDX-License-Identifier: MIT
// Reading the row tables and cached rows of a call, with the bounds checks that a GPU would do on
// the device.
#pragma once

#include "common/context.h"
#include "tenon/numeric.h"
#include "tenon/ops/state.h"

namespace tenon::cpu {

inline const RowInfo* row_infos(const Rows& r) {
    return r.row.as<const RowInfo>();
}
inline const SegInfo* seg_infos(const Rows& r) {
    return r.seg.as<const SegInfo>();
}

/// The segment of a live row, or null if the tables are inconsistent (counted as a fault).
inline const SegInfo* segment_of(Context& c, const Rows& r, const RowInfo& row, int64_t t) {
    if (row.seg >= 0 && row.seg < r.S) {
        const SegInfo& s = seg_infos(r)[row.seg];
        if (s.slot == row.slot && t >= s.row0 && t < int64_t{s.row0} + s.rows &&
            row.pos == s.pos0 + (t - s.row0)) {
            return &s;
        }
    }
    c.fault();
    return nullptr;
}

/// True if a segment's rows lie inside the call and its slot inside `slots`; a bad one counts as a
/// fault.
inline bool segment_usable(Context& c, const SegInfo& s, int64_t T, int64_t slots) {
    if (s.slot < 0 || s.rows <= 0) {
        return false;
    }
    if (s.slot >= slots || s.row0 < 0 || int64_t{s.row0} + s.rows > T || s.pos0 < 0) {
        c.fault();
        return false;
    }
    return true;
}

/// visible(P) = (P + 1) / ratio.
inline int64_t visible_rows(int32_t pos, int32_t ratio) {
    return (int64_t{pos} + 1) / ratio;
}

/// One stored row.
struct StoredRow {
    uint8_t* codes = nullptr;
    uint8_t* scales = nullptr;
};

inline StoredRow ring_row(const Ring& r, int64_t slot, int64_t pos) {
    const int64_t at = slot * r.R + pos % r.R;
    return {r.codes.as<uint8_t>() + at * code_bytes(r.format, r.width),
            r.format == RowFormat::bf16
                ? nullptr
                : r.scales.as<uint8_t>() + at * scale_bytes(r.format, r.width)};
}

/// Row g of a slot; null codes if no page is mapped there.
inline StoredRow page_row(const Pages& p, int64_t slot, int64_t g) {
    const int64_t index = g / p.rows_per_page;
    if (slot < 0 || slot >= p.table.shape[0] || g < 0 || index >= p.table.shape[1]) {
        return {};
    }
    const int32_t page = p.table.row<const int32_t>(slot)[index];
    if (page < 0 || page >= p.pool.shape[0]) {
        return {};
    }
    uint8_t* base = p.pool.row<uint8_t>(page);
    const int64_t r = g % p.rows_per_page;
    return {base + p.codes_at + r * code_bytes(p.format, p.width),
            base + p.scales_at + r * scale_bytes(p.format, p.width)};
}

}  // namespace tenon::cpu
