// SPDX-License-Identifier: MIT
// Binding of the ops that the model calls.
#include "op_set.h"

namespace tenon::dsv41 {

namespace {

template <class P>
void bind_fusion(OpBinder& binder, OpFn<P>* op, Regime regime, std::string* fusions) {
    if (binder.bind_optional(op, regime)) {
        *fusions += (fusions->empty() ? "" : " ") + std::string(P::kOp.name);
    }
}

}  // namespace

void OpSet::bind(OpBinder& binder, Regime regime, std::string* fusions) {
    binder.bind(&rows_gather, regime);
    binder.bind(&rows_digest, regime);
    binder.bind(&embed_gather, regime);
    binder.bind(&norm_rms, regime);
    binder.bind(&mhc_mix, regime);
    binder.bind(&mhc_collapse, regime);
    binder.bind(&mhc_expand, regime);
    binder.bind(&mhc_mean, regime);
    binder.bind(&linear_plain, regime);
    binder.bind(&route_topk, regime);
    binder.bind(&rope_angles, regime);
    binder.bind(&rope_turn, regime);
    binder.bind(&kvq_quantize, regime);
    binder.bind(&kvq_dequantize, regime);
    binder.bind(&window_store, regime);
    binder.bind(&cache_store, regime);
    binder.bind(&compress_pool, regime);
    binder.bind(&index_score, regime);
    binder.bind(&index_blocks, regime);
    binder.bind(&index_topk, regime);
    binder.bind(&attn_sparse, regime);
    binder.bind(&engram_decode, regime);
    binder.bind(&engram_gate, regime);
    binder.bind(&sample_draw, regime);
    binder.bind(&sample_logprobs, regime);
    binder.bind(&sample_count, regime);
    binder.bind(&spec_verify, regime);
    binder.bind(&draft_rows, regime);
    binder.bind(&draft_step, regime);
    binder.bind(&draft_pick, regime);
    binder.bind(&draft_confidence, regime);
    binder.bind(&pages_copy, regime);
    binder.bind_optional(&pages_pack, regime);
    binder.bind_optional(&pages_unpack, regime);
    binder.bind_optional(&state_save, regime);
    binder.bind_optional(&state_load, regime);

    bind_fusion(binder, &mhc_reduce_expand, regime, fusions);
    bind_fusion(binder, &mhc_mix_collapse_norm, regime, fusions);
    bind_fusion(binder, &mhc_collapse_norm, regime, fusions);
    bind_fusion(binder, &mhc_seam, regime, fusions);
    bind_fusion(binder, &route_gate_topk, regime, fusions);
    bind_fusion(binder, &attn_qkv_prep, regime, fusions);
    bind_fusion(binder, &attn_sparse_turn, regime, fusions);
    bind_fusion(binder, &compress_emit, regime, fusions);
    bind_fusion(binder, &index_key_emit, regime, fusions);
    bind_fusion(binder, &index_query_prep, regime, fusions);
    bind_fusion(binder, &index_select, regime, fusions);
    bind_fusion(binder, &engram_reduce_gate, regime, fusions);
    bind_fusion(binder, &draft_markov, regime, fusions);
}

}  // namespace tenon::dsv41
