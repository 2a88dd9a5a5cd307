// SPDX-License-Identifier: MIT
// Acceptance of drafted tokens (ops.md 3.9; M 5.4, keyed form).
#pragma once

#include "tenon/ops/rows.h"

namespace tenon {

constexpr int32_t kVerifyTokens = 16;

struct VerifyLimits {
    int32_t forced = 0;                  ///< rows 1..forced are taken untested
    int32_t accept_max = kVerifyTokens;  ///< most tokens emitted
    int32_t stop_ids[16] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
};

enum class VerifyFinish : int32_t {
    none = 0,
    stop_id = 1,
    accept_max = 2,
    no_token =
        3,  ///< the draw gave no token; `last` is -1 (nothing left) or -2 (non-finite logits)
};

struct VerifyDecision {
    int32_t accepted =
        0;  ///< drafts and forced rows taken = emitted - 1, but with no_token: = emitted
    int32_t emitted = 0;
    int32_t last = -1;                   ///< last emitted token
    int32_t finish = 0;                  ///< VerifyFinish
    int32_t tokens[kVerifyTokens] = {};  ///< emitted first, then -1
};

/// Rows 1..forced of a segment are taken, then the longest run with ids[r + 1] = drawn[r], then
/// drawn at its end; cut after the first stop id and at accept_max. Row r of segment s has its draw
/// at out0 + the number of earlier rows of the segment with kRowLogits. Dead segments: emitted 0,
/// last -1. Segments have at most 16 rows. Class X.
struct SpecVerify {
    static constexpr OpId kOp{"spec.verify", 1};
    TensorView drawn{};  ///< i32[M]
    TensorView ids{};    ///< i32[T]
    Rows rows{};
    TensorView limits{};    ///< VerifyLimits[S]
    TensorView decision{};  ///< VerifyDecision[S]
};

}  // namespace tenon
