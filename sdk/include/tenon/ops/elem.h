// SPDX-License-Identifier: MIT
// Elementwise ops of the vision tower. In place allowed where input and output have one shape.
// Class I.
#pragma once

#include "tenon/ops/rows.h"

namespace tenon {

/// out = bf16(a + b). In place: out is a or b.
struct ElemAdd {
    static constexpr OpId kOp{"elem.add", 1};
    TensorView a{};    ///< bf16[T, n]
    TensorView b{};    ///< bf16[T, n]
    TensorView out{};  ///< bf16[T, n]
};

/// out = bf16(bf16(silu(g)) * u), g = gate_up[:, :n], u = gate_up[:, n:].
struct ElemSiluMul {
    static constexpr OpId kOp{"elem.silu_mul", 1};
    TensorView gate_up{};  ///< bf16[T, 2n]
    TensorView out{};      ///< bf16[T, n]
};

/// out = bf16(x / 2 * (1 + erf(x / sqrt 2))). In place allowed.
struct ElemGelu {
    static constexpr OpId kOp{"elem.gelu", 1};
    TensorView x{};    ///< bf16[T, n]
    TensorView out{};  ///< bf16[T, n]
};

}  // namespace tenon
