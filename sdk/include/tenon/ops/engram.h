// SPDX-License-Identifier: MIT
// Engram rows: decoding and the gate that adds them to the streams (M 4.4).
#pragma once

#include "tenon/ops/rows.h"

namespace tenon {

/// out = E4M3 value x 2^(scale - 127), exact in bf16, columns in order. Dead and image rows: zeros,
/// source not read. Class X. Values and scales may be one record (two strided views of it), 8-byte
/// aligned, device or pinned.
struct EngramDecode {
    static constexpr OpId kOp{"engram.decode", 1};
    TensorView values{};  ///< u8[T, c, w], strided, w % 32 = 0
    TensorView scales{};  ///< u8[T, c, w/32], strided
    Rows rows{};
    TensorView out{};  ///< bf16[T, c * w]
};

/// h_j = bf16(h_j + g_j * value), g_j as in M 4.4 (|dot| floored at 1e-6). A f32 kv is rounded to
/// bf16 first. Dead and image rows leave h untouched (select). Class I. In place.
struct EngramGate {
    static constexpr OpId kOp{"engram.gate", 1};
    TensorView kv{};        ///< bf16 or f32 [T, 5d]: 4 keys, then the value
    TensorView h{};         ///< bf16[T, 4, d], in place
    TensorView q_weight{};  ///< bf16 or f32 [4, d]
    TensorView k_weight{};  ///< bf16 or f32 [4, d]
    float eps = 1e-20f;
    Rows rows{};
};

/// Optional. = kv = bf16(sum over ranks ascending of parts); engram.gate. Class I. In place.
struct EngramReduceGate {
    static constexpr OpId kOp{"engram.reduce_gate", 1};
    TensorView parts{};  ///< f32[W, T, 5d]
    TensorView h{};      ///< bf16[T, 4, d], in place
    TensorView q_weight{};
    TensorView k_weight{};
    float eps = 1e-20f;
    Rows rows{};
};

}  // namespace tenon
