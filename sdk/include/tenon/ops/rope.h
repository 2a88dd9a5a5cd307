// SPDX-License-Identifier: MIT
// Rotary angles of a group, and rotation of the last R channels.
#pragma once

#include "tenon/ops/rows.h"

namespace tenon {

/// cs[t] = cos of R/2 angles, then sin; angle = f32(floor(P / step) * step) * freq, rounded to f32.
/// Class I; cos and sin within 2 ulp of the exact function of the f32 angle, for angles to 2^20.
/// Dead rows: zeros.
struct RopeAngles {
    static constexpr OpId kOp{"rope.angles", 1};
    Rows rows{};
    TensorView freq{};  ///< host f32[R/2]
    int32_t step = 1;   ///< 1, or the compressor's ratio
    TensorView cs{};    ///< f32[T, R]
};

/// Rotates adjacent pairs of the last R channels of every vector: x' = fma(a, c, -(b * s)), y' =
/// fma(a, s, b * c), inverse: s -> -s; -> bf16. The other channels are copied (untouched in place).
/// Class X given cs. In place allowed.
struct RopeTurn {
    static constexpr OpId kOp{"rope.turn", 1};
    TensorView x{};   ///< bf16[T, n, D] (or [T, D]: n = 1), rows may be strided
    TensorView cs{};  ///< f32[T, R], R <= D
    bool inverse = false;
    TensorView out{};  ///< like x
};

}  // namespace tenon
