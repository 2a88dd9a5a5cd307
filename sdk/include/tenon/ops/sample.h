// SPDX-License-Identifier: MIT
// Drawing tokens, logprobs, and the counts behind penalties (ops.md 3.9).
#pragma once

#include "tenon/ops/rows.h"

namespace tenon {

/// Sampling parameters of one row.
struct SampleParams {
    float temperature = 0;  ///< 0 = argmax after the mask, ties: lower id
    float top_p = 1;
    float min_p = 0;
    float repetition = 1;  ///< l > 0 ? l / r : l * r, for tokens of prompt or output
    float presence = 0;    ///< l - presence, for tokens of the output
    float frequency = 0;   ///< l - frequency * count in the output
    int32_t top_k = 0;     ///< 0 = off
    int32_t pos = 0;       ///< position that the drawn token will take (row position + 1)
    uint64_t seed = 0;
};

/// Counts of one token: low 15 bits = occurrences in the output (saturating), top bit = occurs in
/// the prompt.
constexpr uint16_t kSeenPrompt = 0x8000;
constexpr uint16_t kSeenCount = 0x7FFF;

/// Draws one token a row. Order: bias; penalties (repetition, then frequency, then presence); mask
/// and forbidden ids; temperature; top_k; top_p; min_p; draw = argmax over the kept ids of l /
/// temperature + gumbel_noise(seed, pos, id) (numeric.h), ties: lower id. Probabilities are
/// renormalised after each filter; order for top_k and top_p: (p descending, id ascending). No id
/// left: token -1; a NaN or +inf logit: token -2. Class I; noise and sums in f64 (a GPU may sum the
/// mass behind top_p in integers, ops.md 3.9).
///
/// Penalties of row r of a segment count `seen` plus ids of rows 1..r of it (row 0 is counted in
/// `seen` already). `rows`, `index` and `ids` are needed only with `seen`; logit row m belongs to
/// row index[m].
struct SampleDraw {
    static constexpr OpId kOp{"sample.draw", 1};
    TensorView logits{};  ///< f32[M, V], not modified, rows may be strided
    TensorView params{};  ///< SampleParams[M]
    TensorView seen{};    ///< u16[slots, V], opt
    Rows rows{};          ///< with seen
    TensorView index{};   ///< i32[M], with seen: row of the group, -1 = none (token -1)
    TensorView ids{};     ///< i32[T], with seen: input ids of the group's rows
    TensorView
        bias_begin;  ///< i32[M + 1], opt: entries of row m are [bias_begin[m], bias_begin[m + 1])
    TensorView bias_ids{};  ///< i32[n]
    TensorView bias_add{};  ///< f32[n]
    TensorView mask{};      ///< u32[M, ceil(V / 32)], opt: bit set = allowed
    TensorView forbid{};    ///< u32[ceil(V / 32)], opt: bit set = never drawn
    TensorView token{};     ///< i32[M]
    TensorView logprob{};   ///< f32[M], opt: of the raw logits; 0 where token < 0
    TensorView scratch{};
};

/// log-softmax of the raw logits: the n best ids (ties: lower id) and the given token's. Class I. n
/// <= 20.
struct SampleLogprobs {
    static constexpr OpId kOp{"sample.logprobs", 1};
    TensorView logits{};    ///< f32[M, V], rows may be strided
    TensorView token{};     ///< i32[M], -1: token_lp = 0
    TensorView ids{};       ///< i32[M, n], descending by logit, -1 where V < n
    TensorView lp{};        ///< f32[M, n]
    TensorView token_lp{};  ///< f32[M]
    TensorView scratch{};
};

/// seen[slot[i]][token[i]] += 1 in the low 15 bits, saturating; negative tokens and slots are
/// skipped. Class X.
struct SampleCount {
    static constexpr OpId kOp{"sample.count", 1};
    TensorView token{};  ///< i32[n]
    TensorView slot{};   ///< i32[n]
    TensorView seen{};   ///< u16[slots, V], in place
};

}  // namespace tenon
