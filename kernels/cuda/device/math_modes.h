// SPDX-License-Identifier: MIT
// Asserts on the GPU that kernels were compiled for IEEE arithmetic.
#pragma once

#include "tenon/base.h"

namespace tenon::cuda {

/// Runs a small kernel and compares with the exact results: subnormals are kept, division and
/// square root are correctly rounded, a * b + c is not contracted, fma is fused. One launch.
/// errors  internal: names the mode; device
Status check_math_modes();

/// built_for (common/built_for.h) of the kernels of the ops.
int kernels_built_for();

}  // namespace tenon::cuda
