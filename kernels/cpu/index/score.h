// SPDX-License-Identifier: MIT
// What reference and SIMD version of index.score share.
#pragma once

#include "common/check.h"
#include "common/rows.h"
#include "kernels/shared/token_checks.h"

namespace tenon::cpu {

/// The compressed row behind column j of row t, or -1.
inline int64_t score_column(const IndexScore& p, const ScoreShape& s, int64_t t, int64_t j) {
    if (s.C == 0) {
        return j;
    }
    const int32_t block = p.cand.row<const int32_t>(t)[j / p.block];
    return block < 0 ? -1 : int64_t{block} * p.block + j % p.block;
}

/// The SIMD version for this CPU, or null. Group sums are exact and added in the reference's order,
/// so the bits are the reference's.
OpCall<IndexScore> index_score_simd();

}  // namespace tenon::cpu
