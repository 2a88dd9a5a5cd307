// SPDX-License-Identifier: MIT
// What reference and SIMD version of linear.plain share.
#pragma once

#include "common/check.h"
#include "tenon/ops/linear.h"

namespace tenon::cpu {

/// The SIMD version for this CPU, or null: f32 fma in 16 fixed lanes, lanes added in a fixed tree.
/// Within (K / 16 + 5) 2^-24 times the sum of absolute products of the reference, before the
/// rounding of y.
OpCall<LinearPlain> linear_plain_simd();

}  // namespace tenon::cpu
