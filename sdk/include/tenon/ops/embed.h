// SPDX-License-Identifier: MIT
// Token rows (or injected image rows) into the residual streams.
#pragma once

#include "tenon/ops/rows.h"

namespace tenon {

/// Copies one row to all 4 streams; pre = (1, 0, 0, 0). An id outside the table (or -1) gives a
/// zero row. Class X.
struct EmbedGather {
    static constexpr OpId kOp{"embed.gather", 1};
    TensorView ids{};           ///< i32[T]
    TensorView table{};         ///< bf16[V, d]
    TensorView inject{};        ///< bf16[J, d], opt
    TensorView inject_index{};  ///< i32[T], opt; -1 = table row, else the row of `inject`
    TensorView out{};           ///< bf16[T, 4, d]
    TensorView pre{};           ///< f32[T, 4], opt
};

}  // namespace tenon
