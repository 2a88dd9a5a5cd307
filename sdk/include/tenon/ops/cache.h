// SPDX-License-Identifier: MIT
// Storing compressed rows and index keys into pages.
#pragma once

#include "tenon/ops/state.h"

namespace tenon {

/// Row g = P / ratio of row t is quantised and written iff (P + 1) % ratio = 0. Class X.
/// A missing page is a planner bug: the row is skipped and counted by the device.
struct CacheStore {
    static constexpr OpId kOp{"cache.store", 1};
    TensorView x{};  ///< bf16[T, n], after rope, not quantised
    Rows rows{};
    Pages pages{};
    /// The model's quantiser: q4e (compressed rows) or q4u (index keys). Equals pages.format unless
    /// that is bf16, where the quantised values are stored as bf16.
    RowFormat quantiser = RowFormat::q4e;
};

}  // namespace tenon
