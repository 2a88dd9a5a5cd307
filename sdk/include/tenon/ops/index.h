// SPDX-License-Identifier: MIT
// The indexer: scores of compressed rows, candidate blocks, top-k (M 3.7). visible(P) = (P + 1) /
// ratio.
#pragma once

#include "tenon/ops/state.h"

namespace tenon {

/// Optional. = norm.rms(k_raw); rope.turn; cache.store (q4u). Class I.
struct IndexKeyEmit {
    static constexpr OpId kOp{"index.key_emit", 1};
    TensorView k_raw{};        ///< bf16[T, Di]
    TensorView norm_weight{};  ///< bf16 or f32 [Di]
    float eps = 1e-20f;
    TensorView cs{};  ///< f32[T, R], step = ratio
    Rows rows{};
    Pages keys{};
};

/// Optional. = rope.turn(iq); kvq.quantize q4u; w = linear.plain(x, weights_proj) -> bf16. Class I.
/// In place: iq.
struct IndexQueryPrep {
    static constexpr OpId kOp{"index.query_prep", 1};
    TensorView iq{};            ///< bf16[T, Hi, Di], in place
    TensorView cs{};            ///< f32[T, R]
    TensorView x{};             ///< bf16[T, d]
    TensorView weights_proj{};  ///< bf16[Hi, d]
    TensorView w{};             ///< bf16[T, Hi]
    TensorView codes{};         ///< u8[T, Hi, Di/2], opt: packed copy of iq
    TensorView scales{};        ///< u8[T, Hi, Di/32], opt
    TensorView scratch{};
};

/// score = sum over heads ascending (a GPU: in fixed runs of heads, ops.md 3.6) of
/// fma(w_h * w_scale, relu(iq_h . key), acc); the dot is the
/// exact sums of the 32-column groups, added group 0, 1, .. in f32. Column j is row j, or with
/// `cand` row block * cand[j / block] + j % block. -inf at rows >= visible(P), at cand = -1 and in
/// dead rows. Class I; between providers within 2^-20 times the sum of absolute terms. N to 2^20;
/// unread pages are never dereferenced.
struct IndexScore {
    static constexpr OpId kOp{"index.score", 1};
    TensorView iq{};    ///< bf16[T, Hi, Di], after rope and Q4U
    TensorView w{};     ///< bf16[T, Hi]
    float w_scale = 1;  ///< Di^-0.5 * Hi^-0.5
    Pages keys{};       ///< q4u, or bf16
    Rows rows{};
    TensorView cand{};  ///< i32[T, C], opt
    int32_t block = 8;  ///< rows of a candidate block (with cand)
    TensorView out{};   ///< f32[T, N], rows may be strided; with cand N <= C * block
    TensorView scratch{};
};

/// The best C blocks of `block` rows (score = largest of its visible rows; the newest block is
/// forced; blocks at -inf dropped; ties: lower block), ascending, padded with -1. Identity when the
/// visible blocks number <= C. Class X given scores. Dead rows: count 0, all -1.
struct IndexBlocks {
    static constexpr OpId kOp{"index.blocks", 1};
    TensorView scores{};  ///< f32[T, N], rows may be strided; N >= visible of every row
    Rows rows{};
    int32_t ratio = 1;
    int32_t block = 8;
    TensorView cand{};   ///< i32[T, C]
    TensorView count{};  ///< i32[T]
    TensorView scratch{};
};

/// The K largest scores (ties: lower row), -inf dropped, as row ids ascending, padded with -1.
/// visible <= K gives 0..visible-1 without reading scores (with cand too, if the candidates can
/// hold them). Class X given scores. Dead rows: count 0, all -1.
struct IndexTopk {
    static constexpr OpId kOp{"index.topk", 1};
    TensorView scores{};  ///< f32[T, N], rows may be strided
    Rows rows{};
    int32_t ratio = 1;
    TensorView cand{};  ///< i32[T, C], opt: columns are rows as in index.score
    int32_t block = 8;
    TensorView sel{};    ///< i32[T, K]
    TensorView count{};  ///< i32[T]
    TensorView scratch{};
};

/// Optional. = index.score; (index.blocks;) index.topk, with no score matrix outside scratch. Class
/// I (as a set).
struct IndexSelect {
    static constexpr OpId kOp{"index.select", 1};
    TensorView iq{};  ///< bf16[T, Hi, Di]
    TensorView w{};   ///< bf16[T, Hi]
    float w_scale = 1;
    Pages keys{};
    Rows rows{};
    TensorView cand{};  ///< i32[T, C], opt: candidates to select inside
    int32_t block = 8;
    TensorView blocks{};  ///< i32[T, C], opt: candidate blocks to publish (not together with cand)
    TensorView block_count{};  ///< i32[T], with blocks
    TensorView sel{};          ///< i32[T, K]
    TensorView count{};        ///< i32[T]
    int64_t N =
        0;  ///< largest visible of the call's rows, rounded up as the model likes (host bound)
    TensorView scratch{};
};

}  // namespace tenon
