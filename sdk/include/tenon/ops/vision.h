// SPDX-License-Identifier: MIT
// Ops of the vision tower and its aligner (ops.md 3.11, M 13). One image a call.
#pragma once

#include "tenon/ops/rows.h"

namespace tenon {

/// Rotates pairs (j, j + v/2): j < v/4 by row * freq[j], else by col * freq[j - v/4]; f32 tables,
/// -> bf16. Class I. Patch i lies at row i / cols, column i % cols. In place.
struct VisionTurn {
    static constexpr OpId kOp{"vision.turn", 1};
    TensorView x{};  ///< bf16[n, h, v], rows may be strided, in place; n = grid_rows * grid_cols
    int32_t grid_rows = 0;
    int32_t grid_cols = 0;
    TensorView freq{};  ///< host f32[v/4]
};

/// 3x3 cells, zero padding right and below; a cell's vector is ordered channel, dy, dx. Class X.
struct VisionShuffle {
    static constexpr OpId kOp{"vision.shuffle", 1};
    TensorView x{};  ///< bf16[rows * cols, c]
    int32_t grid_rows = 0;
    int32_t grid_cols = 0;
    TensorView out{};  ///< bf16[lr * lc, 9c], lr = ceil(rows / 3), lc = ceil(cols / 3)
};

/// start, (lc cells, newline) x lr, end. Class X.
struct VisionSpan {
    static constexpr OpId kOp{"vision.span", 1};
    TensorView cells{};  ///< bf16[lr * lc, d]
    int32_t cell_rows = 0;
    int32_t cell_cols = 0;
    TensorView start{};    ///< bf16[d]
    TensorView newline{};  ///< bf16[d]
    TensorView end{};      ///< bf16[d]
    TensorView out{};      ///< bf16[lr * (lc + 1) + 2, d]
};

}  // namespace tenon
