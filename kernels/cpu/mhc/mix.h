// SPDX-License-Identifier: MIT
// What reference and SIMD versions of the mhc ops share: checks, and the coefficients from the 24
// dots.
#pragma once

#include "common/check.h"
#include "tenon/ops/mhc.h"

namespace tenon::cpu {

/// Row t of pre, post and comb from fn . v (24 dots) and the mean square of v; f32 steps of M 3.2.
void mhc_finish(const MhcMix& p, int64_t t, const float* dots, float mean_square);

/// SIMD versions for this CPU, or null. mix: f32 partial sums in 16 fixed lanes, within 1e-5 of the
/// reference's coefficients; collapse and expand: the same bits as the reference (fixed fma form).
OpCall<MhcMix> mhc_mix_simd();
OpCall<MhcCollapse> mhc_collapse_simd();
OpCall<MhcExpand> mhc_expand_simd();

}  // namespace tenon::cpu
