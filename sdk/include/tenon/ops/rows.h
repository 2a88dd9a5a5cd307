// SPDX-License-Identifier: MIT
// Rows and segments of one op call, and the ops that move whole rows.
//
// Conventions of all op headers (docs/ops.md 1): activations are bf16 unless a field says
// otherwise; "opt" fields may be null views; arrays of structs are dense u8 views [n,
// sizeof(struct)], see `struct_view`; T = 0 is legal; inputs and outputs are disjoint unless a
// field says "in place". Class X: exact. Class I: row t has the same bits for any T, other rows,
// slots and placement, within one regime. `scratch` is u8, 256-aligned, null if `scratch()` is 0.
#pragma once

#include "tenon/compute.h"

namespace tenon {

/// Row flags.
constexpr uint32_t kRowImage =
    1;  ///< inside an image span: dead for Engram, bias_image for the router
constexpr uint32_t kRowLogits = 2;  ///< wants logits
constexpr uint32_t kRowDraft = 4;   ///< draft row of a verify window

/// One row. `slot < 0`: a dead row (padding): no state is written, outputs are 0 (ids: -1).
struct RowInfo {
    int32_t pos = 0;
    int32_t slot = -1;
    int32_t seg = -1;  ///< index into the segment table; ignored for dead rows
    uint32_t flags = 0;
};

/// A run of consecutive positions pos0.. of one slot in rows row0.. `slot < 0`: a dead segment.
struct SegInfo {
    int32_t slot = -1;
    int32_t row0 = 0;
    int32_t rows = 0;
    int32_t pos0 = 0;
    /// Lowest position whose window row may be used, for the first and the second half of the
    /// layers.
    int32_t win_lo[2] = {};
    int32_t out0 = 0;  ///< index of the segment's first logits row
    int32_t pad = 0;
};

/// The rows of a call. Rows of a segment are adjacent and ascending; a slot has at most one
/// segment.
struct Rows {
    TensorView row{};  ///< RowInfo[T]
    TensorView seg{};  ///< SegInfo[S]
    int64_t T = 0;
    int64_t S = 0;
};

/// A dense u8 view [n, sizeof(E)] of `n` structs.
template <class E>
TensorView struct_view(const E* data, int64_t n, Place place = Place::host) {
    static_assert(std::is_trivially_copyable_v<E>);
    return make_view(static_cast<const void*>(data), DType::u8,
                     {n, static_cast<int64_t>(sizeof(E))}, place);
}

inline Rows make_rows(const RowInfo* row, int64_t T, const SegInfo* seg, int64_t S,
                      Place place = Place::host) {
    return {struct_view(row, T, place), struct_view(seg, S, place), T, S};
}

/// out[m] = x[index[m]]; -1 gives zeros. Class X. Bytes of a row are a multiple of 16.
struct RowsGather {
    static constexpr OpId kOp{"rows.gather", 1};
    TensorView x{};      ///< [T, ...] any dtype, rows may be strided
    TensorView index{};  ///< i32[M], -1 = zeros
    TensorView out{};    ///< [M, ...] like x
};

/// out[index[m]] = x[m]; -1 is skipped, other rows of `out` stay. A repeated index is forbidden.
/// Class X.
struct RowsScatter {
    static constexpr OpId kOp{"rows.scatter", 1};
    TensorView x{};      ///< [M, ...] any dtype
    TensorView index{};  ///< i32[M]
    TensorView out{};    ///< [T, ...] like x
};

/// Order-free hash of rows: mod 2^64, the sum over live rows of (2 f(slot << 32 | pos) + 1) times
/// the sum over the row's 8-byte words w_i of f(w_i ^ (i + 1) 0x9E3779B97F4A7C15), f =
/// splitmix64_mix (numeric.h). Class X.
struct RowsDigest {
    static constexpr OpId kOp{"rows.digest", 1};
    TensorView x{};  ///< [T, ...] any dtype, bytes of a row a multiple of 8
    Rows rows{};
    TensorView out{};  ///< u64[1], overwritten
};

}  // namespace tenon
