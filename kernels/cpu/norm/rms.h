// SPDX-License-Identifier: MIT
// What reference and SIMD version of norm.rms share.
#pragma once

#include "common/check.h"
#include "tenon/ops/norm.h"

namespace tenon::cpu {

/// The SIMD version for this CPU, or null. Same rounding points; f32 sum of 16 lanes in fixed
/// order.
OpCall<NormRms> norm_rms_simd();

}  // namespace tenon::cpu
