// SPDX-License-Identifier: MIT
// Row tables, rings and pages as kernels see them, with the bounds checks that only the device can
// do.
#pragma once

#include "common/device.cuh"
#include "tenon/ops/state.h"

namespace tenon::cuda {

/// The segment of a live row, or null if the tables are inconsistent; the caller counts the fault
/// once a row.
__device__ inline const SegInfo* segment_of(const SegInfo* segs, int64_t S, const RowInfo& row,
                                            int64_t t) {
    if (row.seg >= 0 && row.seg < S) {
        const SegInfo* s = segs + row.seg;
        if (s->slot == row.slot && t >= s->row0 && t < int64_t{s->row0} + s->rows &&
            row.pos == s->pos0 + (t - s->row0)) {
            return s;
        }
    }
    return nullptr;
}

enum class Usable { yes, skip, bad };

/// Whether a segment's rows lie inside the call and its slot inside `slots`; `bad` is a fault.
__device__ inline Usable segment_usable(const SegInfo& s, int64_t T, int64_t slots) {
    if (s.slot < 0 || s.rows <= 0) {
        return Usable::skip;
    }
    if (s.slot >= slots || s.row0 < 0 || int64_t{s.row0} + s.rows > T || s.pos0 < 0) {
        return Usable::bad;
    }
    return Usable::yes;
}

/// One stored row; null codes: there is none.
struct StoredRow {
    uint8_t* codes;
    uint8_t* scales;
};

struct RingRef {
    uint8_t* codes;
    uint8_t* scales;
    int64_t slots;
    int32_t R, width;
    int32_t code_row, scale_row;  ///< bytes
    RowFormat format;

    __device__ StoredRow row(int64_t slot, int64_t pos) const {
        const int64_t at = slot * R + pos % R;
        return {codes + at * code_row, scales + at * scale_row};
    }
};

inline RingRef ring_ref(const Ring& r) {
    return {r.codes.as<uint8_t>(),
            r.scales.as<uint8_t>(),
            r.codes.shape[0],
            r.R,
            r.width,
            static_cast<int32_t>(code_bytes(r.format, r.width)),
            static_cast<int32_t>(scale_bytes(r.format, r.width)),
            r.format};
}

struct PagesRef {
    uint8_t* pool;
    const int32_t* table;
    int64_t pages, page_bytes, slots, table_width, codes_at, scales_at;
    int32_t rows_per_page, ratio, width;
    int32_t code_row, scale_row;  ///< bytes
    RowFormat format;

    /// Row g of a slot; null codes if no page is mapped there.
    __device__ StoredRow row(int64_t slot, int64_t g) const {
        const int64_t index = g / rows_per_page;
        if (slot < 0 || slot >= slots || g < 0 || index >= table_width) {
            return {nullptr, nullptr};
        }
        const int32_t page = table[slot * table_width + index];
        if (page < 0 || page >= pages) {
            return {nullptr, nullptr};
        }
        uint8_t* base = pool + page * page_bytes;
        const int64_t r = g % rows_per_page;
        return {base + codes_at + r * code_row, base + scales_at + r * scale_row};
    }
};

inline PagesRef pages_ref(const Pages& p) {
    return {p.pool.as<uint8_t>(),
            p.table.as<const int32_t>(),
            p.pool.shape[0],
            p.pool.shape[1],
            p.table.shape[0],
            p.table.shape[1],
            p.codes_at,
            p.scales_at,
            p.rows_per_page,
            p.ratio,
            p.width,
            static_cast<int32_t>(code_bytes(p.format, p.width)),
            static_cast<int32_t>(scale_bytes(p.format, p.width)),
            p.format};
}

}  // namespace tenon::cuda
