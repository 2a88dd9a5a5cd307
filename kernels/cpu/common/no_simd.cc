// SPDX-License-Identifier: MIT
// Stands in for the SIMD versions in a build without Highway: every op takes its reference.
#include "attn/sparse.h"
#include "common/simd.h"
#include "draft/step.h"
#include "engram/gate.h"
#include "index/score.h"
#include "kvq/quantise.h"
#include "linear/plain.h"
#include "mhc/mix.h"
#include "norm/rms.h"
#include "rope/turn.h"
#include "sample/draw.h"

namespace tenon::cpu {

OpCall<AttnSparse> attn_sparse_simd() {
    return nullptr;
}
OpCall<DraftStep> draft_step_simd() {
    return nullptr;
}
int64_t draft_step_simd_scratch(void*, const DraftStep&) noexcept {
    return 0;
}
OpCall<EngramGate> engram_gate_simd() {
    return nullptr;
}
OpCall<IndexScore> index_score_simd() {
    return nullptr;
}
const RowQuantiser* simd_quantiser() {
    return nullptr;
}
OpCall<LinearPlain> linear_plain_simd() {
    return nullptr;
}
OpCall<MhcMix> mhc_mix_simd() {
    return nullptr;
}
OpCall<MhcCollapse> mhc_collapse_simd() {
    return nullptr;
}
OpCall<MhcExpand> mhc_expand_simd() {
    return nullptr;
}
OpCall<NormRms> norm_rms_simd() {
    return nullptr;
}
OpCall<RopeTurn> rope_turn_simd() {
    return nullptr;
}
SampleKernels sample_kernels_simd() {
    return {};
}
bool simd_usable() {
    return false;
}
const char* simd_arch() {
    return "cpu-reference";
}

}  // namespace tenon::cpu
