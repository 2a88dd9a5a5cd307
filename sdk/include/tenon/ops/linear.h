// SPDX-License-Identifier: MIT
// Matrix product with a plain weight; packed weights are facets (tenon/quant.h).
#pragma once

#include "tenon/ops/rows.h"

namespace tenon {

/// y = x w^T + bias, f32 accumulate (no TF32), one rounding at y. Class I.
/// Tolerance between providers: K 2^-24 times the sum of absolute products, then the rounding of y.
struct LinearPlain {
    static constexpr OpId kOp{"linear.plain", 1};
    TensorView x{};     ///< [T, K] bf16 or f32, rows may be strided
    TensorView w{};     ///< [N, K] bf16 or f32
    TensorView bias{};  ///< [N] bf16 or f32, opt
    TensorView y{};     ///< [T, N] bf16 or f32, rows may be strided
    TensorView scratch{};
};

}  // namespace tenon
