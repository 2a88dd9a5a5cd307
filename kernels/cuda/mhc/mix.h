// SPDX-License-Identifier: MIT
// The split of mhc.mix by regime, which its fused forms share.
#pragma once

#include "common/context.h"
#include "tenon/ops/mhc.h"

namespace tenon::cuda {

/// Column parts of a row of n = 4 d values. Decode: 128 columns a part, so that one row fills the
/// GPU. Prefill: 2048, so that the partial sums of thousands of rows stay small.
template <Regime kRegime>
constexpr int64_t mix_parts(int64_t n) {
    constexpr int64_t kColumns = kRegime == Regime::decode ? 128 : 2048;
    return (n + kColumns - 1) / kColumns;
}

/// Scratch bytes: f32 [T, 25, parts].
template <Regime kRegime>
int64_t mix_scratch(int64_t T, int64_t d) {
    return T * 25 * mix_parts<kRegime>(4 * d) * 4;
}

/// Fills the partial sums of T rows of h.
template <Regime kRegime>
void launch_mix_parts(const TensorView& h, const TensorView& fn, void* scratch,
                      cudaStream_t stream);

}  // namespace tenon::cuda
