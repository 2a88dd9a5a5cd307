// SPDX-License-Identifier: MIT
// Attention over window rows and selected compressed rows, with a sink (M 3.5), and dense attention
// of the vision tower.
#pragma once

#include "tenon/ops/state.h"

namespace tenon {

/// causal: window positions max(win_lo[half], P - window + 1)..P. block (draft rows): ring
/// positions max(win_lo[half], pos0 - window)..pos0 - 1, then all rows of the segment.
enum class AttnMode : uint8_t { causal = 0, block = 1 };

/// Softmax over the row's keys in list order: window positions ascending, then `sel` ascending; K =
/// V. Positions
/// >= pos0 come from `kv`, older ones from the ring. The sink counts in the maximum and the
/// denominator only; no keys give zeros. o -> bf16. Class I. Unnormalised probabilities enter the
/// product with V with at least 16 bits (the CPU keeps f32). Against exact arithmetic within 2^-8
/// (the rounding of o) + 2^-14 of the row's largest absolute value. Window part and selected part
/// are each cut into chunks of a fixed number of keys from their own start. Dead rows: zeros.
struct AttnSparse {
    static constexpr OpId kOp{"attn.sparse", 1};
    TensorView q{};   ///< bf16[T, H, D], rotated
    TensorView kv{};  ///< bf16[T, D], this call's rows (rotated, Q8)
    Ring ring{};
    Pages comp{};        ///< opt (null pool)
    TensorView sel{};    ///< i32[T, K], opt: compressed rows
    TensorView count{};  ///< i32[T], opt: entries of sel used
    TensorView sink{};   ///< f32[H]
    float scale = 1;
    int32_t window = 128;
    int32_t half = 0;  ///< which win_lo
    AttnMode mode = AttnMode::causal;
    Rows rows{};
    TensorView out{};  ///< bf16[T, H, D]
    TensorView scratch{};
};

/// Optional. = rope.turn(q); attn.sparse; rope.turn inverse (o is rounded to bf16 before the turn).
/// Class I.
struct AttnSparseTurn {
    static constexpr OpId kOp{"attn.sparse_turn", 1};
    TensorView q{};   ///< bf16[T, H, D], not rotated
    TensorView kv{};  ///< bf16[T, D]
    Ring ring{};
    Pages comp{};
    TensorView sel{};
    TensorView count{};
    TensorView sink{};  ///< f32[H]
    float scale = 1;
    int32_t window = 128;
    int32_t half = 0;
    AttnMode mode = AttnMode::causal;
    Rows rows{};
    TensorView cs{};   ///< f32[T, R]
    TensorView out{};  ///< bf16[T, H, D]
    TensorView scratch{};
};

/// Optional. = norm.rms(qa_raw) -> qa; norm.rms(kv_raw), rope.turn, kvq q8 -> kv; window.store
/// where `ring` is given. Class I. In place: qa is qa_raw, kv is kv_raw.
struct AttnQkvPrep {
    static constexpr OpId kOp{"attn.qkv_prep", 1};
    TensorView qa_raw{};     ///< bf16[T, r], rows may be strided; null: kv only (absorb)
    TensorView qa_weight{};  ///< [r] bf16 or f32
    TensorView qa{};         ///< bf16[T, r]
    TensorView kv_raw{};     ///< bf16[T, D], rows may be strided
    TensorView kv_weight{};  ///< [D] bf16 or f32
    TensorView kv{};         ///< bf16[T, D]
    TensorView cs{};         ///< f32[T, R]
    float eps = 1e-20f;
    Rows rows{};
    Ring ring{};  ///< opt (null codes)
};

/// softmax(q k^T * scale) v over one image, f32 statistics, out -> bf16. Class W.
struct AttnFull {
    static constexpr OpId kOp{"attn.full", 1};
    TensorView q{};  ///< bf16[n, h, v], rows may be strided; v in {32, 64}
    TensorView k{};  ///< bf16[n, h, v], rows may be strided
    TensorView v{};  ///< bf16[n, h, v], rows may be strided
    float scale = 1;
    TensorView out{};  ///< bf16[n, h, v]
    TensorView scratch{};
};

}  // namespace tenon
