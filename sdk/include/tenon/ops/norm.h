// SPDX-License-Identifier: MIT
// RMS norm with one rounding.
#pragma once

#include "tenon/ops/rows.h"

namespace tenon {

/// out = w * (x * rsqrt(mean(x^2) + eps)), f32 statistics, one rounding at out (M 3.1). Class I. In
/// place allowed. A zero row gives zeros. Reference: mean in f64; SIMD: f32 partial sums in a fixed
/// order, tolerance 1 ulp of out.
struct NormRms {
    static constexpr OpId kOp{"norm.rms", 1};
    TensorView x{};       ///< [T, n] bf16 or f32, rows may be strided
    TensorView weight{};  ///< [n] bf16 or f32
    TensorView out{};     ///< [T, n] bf16 or f32, rows may be strided
    float eps = 1e-20f;
};

}  // namespace tenon
