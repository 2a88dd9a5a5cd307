// SPDX-License-Identifier: MIT
// The cache quantisers Q8, Q4U and Q4E (M 3.4) as ops on whole rows.
#pragma once

#include "tenon/ops/state.h"

namespace tenon {

/// Quantises rows to `format` (q8, q4u, q4e): `values` gets the bf16 values, `codes` and `scales`
/// the packed form (both or neither). q8, q4u multiply amax by f32(1/448), f32(1/6) for the scale;
/// q4e divides by 6 and saturates at 448; x / s is a true division; a negative that rounds to 0
/// keeps its sign. Class X. In place: values is x.
struct KvqQuantize {
    static constexpr OpId kOp{"kvq.quantize", 1};
    TensorView x{};  ///< bf16[T, n], n % 32 = 0 (q4e: % 16), rows may be strided
    RowFormat format = RowFormat::q8;
    TensorView values{};  ///< bf16[T, n], opt
    TensorView codes{};   ///< u8[T, code_bytes(format, n)], opt
    TensorView scales{};  ///< u8[T, scale_bytes(format, n)], opt
};

/// The bf16 values of packed rows, exact. Class X.
struct KvqDequantize {
    static constexpr OpId kOp{"kvq.dequantize", 1};
    TensorView codes{};   ///< u8[T, code_bytes(format, n)]
    TensorView scales{};  ///< u8[T, scale_bytes(format, n)]
    RowFormat format = RowFormat::q8;
    TensorView out{};  ///< bf16[T, n]
};

}  // namespace tenon
