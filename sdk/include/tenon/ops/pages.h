// SPDX-License-Identifier: MIT
// Ops on whole page records: copy on write, and packing for spill and other ranks.
#pragma once

#include "tenon/ops/state.h"

namespace tenon {

/// One plane of a page record: rows of `row_bytes` from `at`, one row per `ratio` tokens.
struct PagePlane {
    int64_t at = 0;
    int64_t row_bytes = 0;
    int32_t ratio = 1;
    int32_t pad = 0;
};

/// Copies the rows of the first `tokens` tokens in every plane: tokens / ratio rows (complete
/// groups only). Class X.
struct PagesCopy {
    static constexpr OpId kOp{"pages.copy", 1};
    TensorView pool{};               ///< u8[pages, page_bytes]
    TensorView src{};                ///< i32[n]; disjoint from dst
    TensorView dst{};                ///< i32[n], no repeats
    TensorView tokens{};             ///< i32[n], 0..page_tokens
    Span<const PagePlane> planes{};  ///< host list
    int32_t page_tokens = 0;         ///< tokens = page_tokens copies the whole record
};

/// records[i] = pool[ids[i]]. Class X.
struct PagesPack {
    static constexpr OpId kOp{"pages.pack", 1};
    TensorView pool{};     ///< u8[pages, page_bytes]
    TensorView ids{};      ///< i32[n]
    TensorView records{};  ///< u8[n, page_bytes], device or pinned
};

/// pool[ids[i]] = records[i]; ids without repeats. Class X.
struct PagesUnpack {
    static constexpr OpId kOp{"pages.unpack", 1};
    TensorView pool{};
    TensorView ids{};
    TensorView records{};
};

}  // namespace tenon
