// SPDX-License-Identifier: MIT
// Storing window rows into the ring.
#pragma once

#include "tenon/ops/state.h"

namespace tenon {

/// Quantises (Q8; idempotent, so kv may already be quantised) and stores the last min(rows, R) rows
/// of each segment at P mod R. Class X. Before attention only if every segment has rows <= R -
/// window, else after it.
struct WindowStore {
    static constexpr OpId kOp{"window.store", 1};
    TensorView kv{};  ///< bf16[T, D]
    Rows rows{};
    Ring ring{};  ///< q8, or bf16 (stores the quantised values)
};

}  // namespace tenon
