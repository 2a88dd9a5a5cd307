// SPDX-License-Identifier: MIT
// The activation between the products of an expert (ops.md 3.4).
#pragma once

#include <cstdint>

namespace tenon::packed {

/// a[c] = bf16(weight silu(gate[c]) up[c]) with gate and up rounded to bf16, then clamped by
/// `limit` (0: not at all); silu in f64, rounded once to f32. `cols` may be any number.
using ActivateFn = void (*)(float limit, float weight, const float* gate, const float* up,
                            int64_t cols, uint16_t* a);

void activate_reference(float limit, float weight, const float* gate, const float* up, int64_t cols,
                        uint16_t* a);

/// The reference's steps on 16 lanes; differs from it where its exp rounds the last f64 bit
/// otherwise. Null if this CPU or this build has none.
ActivateFn activate_simd();

}  // namespace tenon::packed
