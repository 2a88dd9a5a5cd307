// SPDX-License-Identifier: MIT
// State that ops read and write (window rings, paged rows), and the ops that save and restore a
// slot's state.
#pragma once

#include "tenon/ops/rows.h"

namespace tenon {

/// How a cached row is stored: bf16 values, or codes with scales in two planes.
/// q8: E4M3 + E8M0 per 32. q4u: E2M1 + E8M0 per 32. q4e: E2M1 + E4M3 per 16. FP4: low nibble = even
/// column.
enum class RowFormat : uint8_t { bf16 = 0, q8 = 1, q4u = 2, q4e = 3 };

constexpr const char* row_format_name(RowFormat f) {
    constexpr const char* kNames[] = {"bf16", "q8", "q4u", "q4e"};
    return kNames[static_cast<uint8_t>(f) & 3];
}
/// Bytes of the codes of one row of `width` values.
constexpr int64_t code_bytes(RowFormat f, int64_t width) {
    return f == RowFormat::bf16 ? width * 2 : f == RowFormat::q8 ? width : width / 2;
}
/// Bytes of the scales of one row of `width` values.
constexpr int64_t scale_bytes(RowFormat f, int64_t width) {
    return f == RowFormat::bf16 ? 0 : f == RowFormat::q4e ? width / 16 : width / 32;
}

/// Window rows by position: position P of a slot lies at P mod R.
struct Ring {
    TensorView codes{};   ///< bf16[slots, R, width] (format bf16) or u8[slots, R, code_bytes]
    TensorView scales{};  ///< u8[slots, R, scale_bytes], null for bf16
    int32_t R = 0;
    int32_t width = 0;
    RowFormat format = RowFormat::bf16;
};

/// Paged rows of one source layer, one kind. Row g of a slot: page `table[slot][g /
/// rows_per_page]`, codes at `codes_at + (g % rows_per_page) * code_bytes`, scales likewise. A null
/// pool means "none".
struct Pages {
    TensorView pool{};   ///< u8[pages, page_bytes]
    TensorView table{};  ///< i32[slots, table_width], -1 = none
    int64_t codes_at = 0;
    int64_t scales_at = 0;
    int32_t rows_per_page = 0;
    int32_t ratio = 1;
    int32_t width = 0;
    RowFormat format = RowFormat::bf16;
};

/// Rows of the raw (a, s) ring of a ratio-2 compressor: f32[slots, kRawPositions, 2, D], position P
/// at P mod 64.
constexpr int64_t kRawPositions = 64;

/// Saves the newest `positions` rows of the listed rings and the pending raw pair. Class X.
///
/// The record does not depend on R or slot: for each ring `positions` rows of codes, then
/// `positions` rows of scales, row i = position length - positions + i (zeros below 0); then for
/// each raw [2, D] f32 of position length - 1 if length is odd, else zeros. Parts are dense, in
/// list order, without gaps; the record may be longer.
struct StateSave {
    static constexpr OpId kOp{"state.save", 1};
    int32_t slot = 0;
    int32_t length = 0;
    int32_t positions = 128;        ///< the window; at most R
    Span<const Ring> rings{};       ///< host list
    Span<const TensorView> raws{};  ///< host list of f32[slots, 64, 2, D]
    TensorView record{};            ///< u8[bytes], bytes >= state_record_bytes(...)
};

/// The inverse: rows of positions < 0 and an even length's raw pair are left alone. Class X.
struct StateLoad {
    static constexpr OpId kOp{"state.load", 1};
    int32_t slot = 0;
    int32_t length = 0;
    int32_t positions = 128;
    Span<const Ring> rings{};
    Span<const TensorView> raws{};
    TensorView record{};
};

inline int64_t state_record_bytes(int64_t positions, Span<const Ring> rings,
                                  Span<const TensorView> raws) {
    int64_t n = 0;
    for (const Ring& r : rings) {
        n += positions * (code_bytes(r.format, r.width) + scale_bytes(r.format, r.width));
    }
    for (const TensorView& raw : raws) {
        n += 2 * raw.shape[3] * 4;
    }
    return n;
}

}  // namespace tenon
