// SPDX-License-Identifier: MIT
// DSpark: building the draft group, the Markov steps and the confidence (ops.md 3.10, M 5.3).
#pragma once

#include "tenon/ops/sample.h"
#include "tenon/ops/spec.h"

namespace tenon {

/// Builds the draft group on the device: segment s has B rows from pos0 = window pos0 + emitted,
/// ids = last emitted token, then the noise id. Dead where slot[s] < 0, the window segment is dead,
/// or its finish is not none. Class X.
struct DraftRows {
    static constexpr OpId kOp{"draft.rows", 1};
    TensorView decision{};  ///< VerifyDecision[S]
    Rows window{};          ///< the verify group: segment s made decision[s]
    TensorView slot{};      ///< i32[S], -1 = no drafts for segment s
    int32_t noise_id = 0;
    int32_t B = 5;
    TensorView ids{};  ///< i32[S * B]; dead rows -1
    TensorView row{};  ///< RowInfo[S * B]
    TensorView seg{};  ///< SegInfo[S]; win_lo of the window segment
};

/// Best id and its value of one segment on one rank.
struct DraftBest {
    float value = 0;
    int32_t id = -1;  ///< in the whole vocabulary; -1 = none
};

/// L = base + head . embed[prev], f32. temperature 0 (or no params): the largest L, ties: lower id.
/// Else the largest L / temperature + gumbel_noise(seed, pos0 + step + 1, id): the noise of
/// sample.draw at the proposed token's position, in f64; no filters. The number is rounded to f32
/// (`value`) before it is compared, so that shards of the vocabulary and one rank agree. Dead
/// segments: {-inf, -1}. Class I.
struct DraftStep {
    static constexpr OpId kOp{"draft.step", 1};
    TensorView base{};     ///< f32[S, V], rows strided: row `step` of each block of [S, B, V]
    TensorView prev{};     ///< i32[S], may be strided
    TensorView embed{};    ///< bf16 or f32 [Vall, r]
    TensorView head{};     ///< bf16 or f32 [V, r], this rank's rows
    TensorView forbid{};   ///< u32[ceil(V / 32)], opt: bit set = never proposed (this rank's ids)
    TensorView params{};   ///< SampleParams[S], opt: temperature and seed are used
    Rows rows{};           ///< the draft group: segment positions and dead segments
    int32_t step = 0;      ///< 0..B-1
    int32_t vocab_at = 0;  ///< first id of this rank
    TensorView best{};     ///< DraftBest[S]
    TensorView scratch{};
};

/// token[s] = id of the best (value, lower id) over ranks; -1 if none. Class X.
struct DraftPick {
    static constexpr OpId kOp{"draft.pick", 1};
    TensorView best{};    ///< DraftBest[W, S] (u8[W, S, 8])
    TensorView token{};   ///< i32[S], may be strided
    TensorView mirror{};  ///< pinned i32[S], opt, may be strided
};

/// out[s][i] = proj . concat(c[s][i], embed[prev[s][i]]), f32. Dead segments and prev < 0: 0. Class
/// I.
struct DraftConfidence {
    static constexpr OpId kOp{"draft.confidence", 1};
    TensorView c{};      ///< bf16[S, B, d]
    TensorView prev{};   ///< i32[S, B], rows may be strided
    TensorView embed{};  ///< bf16 or f32 [Vall, r]
    TensorView proj{};   ///< bf16 or f32 [d + r]
    TensorView out{};    ///< f32[S, B]
    TensorView scratch{};
};

/// Optional, one rank. = for step 0..B-1: draft.step, draft.pick; prev of step i + 1 is the token
/// of step i. Class I.
struct DraftMarkov {
    static constexpr OpId kOp{"draft.markov", 1};
    TensorView base{};    ///< f32[S, B, V]
    TensorView first{};   ///< i32[S], may be strided: token decided for pos0
    TensorView embed{};   ///< bf16 or f32 [V, r]
    TensorView head{};    ///< bf16 or f32 [V, r]
    TensorView forbid{};  ///< u32[ceil(V / 32)], opt
    TensorView params{};  ///< SampleParams[S], opt
    Rows rows{};          ///< the draft group
    TensorView token{};   ///< i32[S, B], rows may be strided
    TensorView mirror{};  ///< pinned i32[S, B], opt, rows may be strided
    TensorView scratch{};
};

}  // namespace tenon
