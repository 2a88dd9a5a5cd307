// SPDX-License-Identifier: MIT
// Argument checks of the quant facets, the same for every device. They read shapes, types and
// strides, never data.
#pragma once

#include "tenon/quant.h"

namespace tenon::packed {

/// x [T, in] and y [T, out], or with a group dimension. A single group's dimension is dropped.
/// errors  invalid_argument: names the field, found, expected
Status check_linear(const std::string& name, int64_t groups, int64_t in, int64_t out,
                    LinearArgs* args);

/// x [T, in] and one y [T, outs[i]] a member.
Status check_group(const std::string& name, int64_t in, Span<const int64_t> outs,
                   const TensorView& x, Span<const TensorView> ys);

/// dst f32 [rows, in] with rows [row0, row0 + rows) of `out`.
Status check_dequantize(const std::string& name, int64_t out, int64_t in, int64_t row0,
                        const TensorView& dst);

/// Shapes of an expert call; ids themselves are not read.
Status check_experts(const std::string& name, int64_t hidden, const ExpertsArgs& args);

}  // namespace tenon::packed
