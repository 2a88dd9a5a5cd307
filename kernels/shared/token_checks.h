// SPDX-License-Identifier: MIT
// Argument checks of attention, index, sampling and draft ops: what every provider refuses, with
// the same message.
#pragma once

#include "kernels/shared/check.h"
#include "tenon/ops/attn.h"
#include "tenon/ops/draft.h"
#include "tenon/ops/index.h"
#include "tenon/ops/sample.h"

namespace tenon::kernels {

constexpr int64_t kMaxHeadWidth = 512;
constexpr int64_t kMaxHeads = 128;
constexpr int64_t kMaxIndexHeads = 64;
constexpr int64_t kIndexGroup = 32;
constexpr int64_t kMaxKept = 4096;  ///< largest K of index.topk, C of index.blocks
constexpr int64_t kMaxListed = 20;  ///< n of sample.logprobs
constexpr int64_t kMaxMarkovRank = 512;

/// The geometry of attn.sparse; K = 0 without a selection.
struct SparseShape {
    int64_t T, H, D, K;
};
/// The geometry of index.score; C = 0 without candidates.
struct ScoreShape {
    int64_t T, Hi, Di, N, C;
};

/// errors  invalid_argument, unsupported: op, field, found, expected
Status check_op(const AttnSparse& p, SparseShape* shape);
Status check_op(const AttnSparseTurn& p, SparseShape* shape);
Status check_op(const IndexScore& p, ScoreShape* shape);
Status check_op(const IndexBlocks& p);
Status check_op(const IndexTopk& p);
Status check_op(const IndexSelect& p, ScoreShape* shape);
Status check_op(const SampleDraw& p, int64_t scratch_bytes);
Status check_op(const SampleLogprobs& p);
Status check_op(const SampleCount& p);
Status check_op(const DraftRows& p);
Status check_op(const DraftStep& p, int64_t scratch_bytes);
Status check_op(const DraftPick& p);
Status check_op(const DraftConfidence& p);
Status check_op(const DraftMarkov& p, int64_t scratch_bytes);

}  // namespace tenon::kernels
