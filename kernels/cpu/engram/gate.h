// SPDX-License-Identifier: MIT
// What reference and SIMD version of engram.gate share.
#pragma once

#include <cmath>

#include "common/check.h"
#include "common/rows.h"
#include "tenon/ops/engram.h"

namespace tenon::cpu {

/// g from the three sums of one stream, f32 steps of M 4.4. `dot` is the sum of h q k key.
inline float engram_gate_value(float dot, float mean_h, float mean_key, float eps, int64_t d) {
    const float rstd = 1.0f / std::sqrt(mean_h + eps) * (1.0f / std::sqrt(mean_key + eps));
    const float z = dot * rstd * (1.0f / std::sqrt(static_cast<float>(d)));
    const float size = std::sqrt(std::fmax(std::fabs(z), 1e-6f));
    return 1.0f / (1.0f + std::exp(-std::copysign(size, z)));
}

/// The SIMD version for this CPU, or null: f32 sums in 16 fixed lanes; g within 1e-5 of the
/// reference.
OpCall<EngramGate> engram_gate_simd();

}  // namespace tenon::cpu
