// SPDX-License-Identifier: MIT
// Choice of experts (M 3.8).
#pragma once

#include "tenon/ops/rows.h"

namespace tenon {

/// s = sqrt(softplus(logit)); the k largest s + bias (ties: lower id), ids ascending; weight = s /
/// (sum of the chosen s, ids ascending, + 1e-20) * scale. Image rows use bias_image where given.
/// Dead rows: ids -1, weights 0. Class I. softplus(z) = z > 20 ? z : log1p(exp(z)). A NaN key is
/// never chosen: id -1, weight 0. E <= 512, k <= 16, k <= E.
struct RouteTopk {
    static constexpr OpId kOp{"route.topk", 1};
    TensorView logits{};      ///< f32[T, E]
    TensorView bias{};        ///< f32[E]
    TensorView bias_image{};  ///< f32[E], opt
    int32_t k = 0;
    float scale = 1;
    Rows rows{};
    TensorView ids{};      ///< i32[T, k]
    TensorView weights{};  ///< f32[T, k]
};

/// Optional. = linear.plain(x, gate) in f32; route.topk. Class I.
struct RouteGateTopk {
    static constexpr OpId kOp{"route.gate_topk", 1};
    TensorView x{};           ///< bf16[T, d]
    TensorView gate{};        ///< bf16 or f32 [E, d]
    TensorView bias{};        ///< f32[E]
    TensorView bias_image{};  ///< f32[E], opt
    int32_t k = 0;
    float scale = 1;
    Rows rows{};
    TensorView ids{};      ///< i32[T, k]
    TensorView weights{};  ///< f32[T, k]
    TensorView scratch{};
};

}  // namespace tenon
