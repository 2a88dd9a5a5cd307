// SPDX-License-Identifier: MIT
// The ratio-2 compressor's pooling, and its fused form (M 3.6).
#pragma once

#include "tenon/ops/state.h"

namespace tenon {

/// Row t is the latent of group P/2 iff P is odd, else zeros; the partner is row t - 1 of the
/// segment, or raw[slot][(P - 1) % 64] when P = pos0. out[c] = bf16(a0 p0 + a1 p1), p = softmax
/// over the pair of s[c] in f32. Then raw of the last min(rows, 32) rows of each segment is stored
/// at P % 64; the read of pos0 - 1 comes first. Class I.
struct CompressPool {
    static constexpr OpId kOp{"compress.pool", 1};
    TensorView a{};  ///< f32[T, D]
    TensorView s{};  ///< f32[T, D]
    Rows rows{};
    TensorView raw{};  ///< f32[slots, 64, 2, D]: a then s
    TensorView out{};  ///< bf16[T, D]
};

/// Optional. = (compress.pool;) norm.rms -> latent; rope.turn; cache.store (q4e). Class I.
struct CompressEmit {
    static constexpr OpId kOp{"compress.emit", 1};
    TensorView latent_raw{};   ///< bf16[T, D]; null: pool from a, s, raw
    TensorView a{};            ///< f32[T, D]
    TensorView s{};            ///< f32[T, D]
    TensorView raw{};          ///< f32[slots, 64, 2, D]
    TensorView norm_weight{};  ///< bf16 or f32 [D]
    float eps = 1e-20f;
    TensorView cs{};  ///< f32[T, R], step = ratio
    Rows rows{};
    Pages comp{};
    TensorView latent{};  ///< bf16[T, D], before rope and quantisation
};

}  // namespace tenon
