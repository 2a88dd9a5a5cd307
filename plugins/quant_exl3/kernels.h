// SPDX-License-Identifier: MIT
// The SIMD kernels of EXL3, chosen once for this CPU.
#pragma once

#include <cstddef>

#include "codec.h"
#include "kernels/cpu/matrix/matrix.h"

namespace tenon::exl3 {

/// Packed words of 128 output columns: per tile row (16 k) four pairs of tiles; per pair 2K vectors
/// of 16 words, lane l = column l % 8 of tile l / 8. Vector h holds piece h of each column's stream
/// (a column of a tile owns 2K consecutive 16-bit pieces, its two halves of 8 columns interleaved).
constexpr int kLanes = 16;
constexpr int64_t kPairs = kRotation / (2 * kTile);
constexpr int64_t strip_words(int twice_k) {
    return kPairs * twice_k * kLanes;
}

/// Where lane order puts a column of a block: bits 3 and 4 change places.
constexpr int lane_of_column(int column) {
    return (column & ~24) | ((column & 8) << 1) | ((column & 16) >> 1);
}

/// Decodes `tile_rows` tile rows of a block into a panel [16 * tile_rows][128] of f32 in lane
/// order.
using DecodeFn = void (*)(const uint16_t* words, int64_t tile_rows, float* panel);

/// y[rows][128] in lane order = staged rows times `tile_rows` tile rows of a block, decoded in
/// registers; y is 32-byte aligned. The bits are those of a decoded panel.
using FusedFn = void (*)(const uint16_t* words, int64_t tile_rows, const float* x, int64_t stride,
                         float* y);
constexpr int64_t kFusedRows = 2;  // from four rows on the panel is as fast
/// One for each number of rows from 1.
struct FusedSet {
    FusedFn rows[kFusedRows];
};

struct BlockArgs {
    DecodeFn decode;
    const FusedSet* fused;  ///< null: every row count goes through the panel
    const uint16_t* words;  ///< of this block
    int twice_k;
    int64_t k;
    const float* scale;  ///< [128] svh / 128 in lane order
    const float* bias;   ///< [128] in lane order
    const std::byte* staged;
    int64_t staged_bytes;
    int64_t rows;
    float* y;
    float* panel;
};

struct Kernels {
    /// Null for a rate that the codebook does not have.
    DecodeFn (*decoder)(int twice_k, Codebook codebook);
    /// Null if this CPU or codebook has none.
    const FusedSet* (*fused)(int twice_k, Codebook codebook);
    void (*stage)(const packed::RowsIn& x, int64_t rows, int64_t in, int64_t k, const float* suh,
                  std::byte* staged, int64_t staged_bytes);
    void (*block)(const BlockArgs& args);
    int64_t panel_floats;  ///< scratch of `block`
};

/// Null if this CPU (or this build) has none: the reference form is used then.
const Kernels* simd_kernels();

}  // namespace tenon::exl3
