// SPDX-License-Identifier: MIT
// What reference and SIMD version of rope.turn share.
#pragma once

#include <cmath>

#include "common/check.h"
#include "tenon/numeric.h"
#include "tenon/ops/rope.h"

namespace tenon::cpu {

/// Copies the channels that are not turned where `out` is not `x`.
void copy_unturned(const RopeTurn& p, const TurnShape& s, int64_t t);

/// One pair: x' = fma(a, c, -(b s)), y' = fma(a, s, b c).
inline void turn_pair(const uint16_t* x, float c, float s, uint16_t* out) {
    const float a = bf16_to_f32(x[0]);
    const float b = bf16_to_f32(x[1]);
    out[0] = f32_to_bf16(std::fma(a, c, -(b * s)));
    out[1] = f32_to_bf16(std::fma(a, s, b * c));
}

/// The SIMD version for this CPU, or null. The same bits as the reference (fixed fma form).
OpCall<RopeTurn> rope_turn_simd();

}  // namespace tenon::cpu
