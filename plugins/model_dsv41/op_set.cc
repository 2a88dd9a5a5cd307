// SPDX-License-Identifier: MIT
// Binding of the ops that the model calls.
#include "op_set.h"

namespace tenon::dsv41 {

void OpSet::bind(OpBinder& binder, Regime regime, std::string* fusions) {
    const auto note = [&]<class P>(const OpFn<P>& op) {
        if (op && !op.traits.graph_safe && unsafe_in_graphs.empty()) {
            unsafe_in_graphs = P::kOp.name;
        }
    };
    const auto must = [&](auto& op) {
        binder.bind(&op, regime);
        note(op);
    };
    const auto fusion = [&]<class P>(OpFn<P>& op) {
        if (binder.bind_optional(&op, regime)) {
            *fusions += (fusions->empty() ? "" : " ") + std::string(P::kOp.name);
        }
        note(op);
    };
    must(rows_gather);
    must(rows_digest);
    must(embed_gather);
    must(norm_rms);
    must(mhc_mix);
    must(mhc_collapse);
    must(mhc_expand);
    must(mhc_mean);
    must(linear_plain);
    must(route_topk);
    must(rope_angles);
    must(rope_turn);
    must(kvq_quantize);
    must(kvq_dequantize);
    must(window_store);
    must(cache_store);
    must(compress_pool);
    must(index_score);
    must(index_blocks);
    must(index_topk);
    must(attn_sparse);
    must(engram_decode);
    must(engram_gate);
    must(sample_draw);
    must(sample_logprobs);
    must(sample_count);
    must(spec_verify);
    must(draft_rows);
    must(draft_step);
    must(draft_pick);
    must(draft_confidence);

    // Slot work, done before a step's groups and never inside a graph.
    binder.bind(&pages_copy, regime);
    binder.bind_optional(&pages_pack, regime);
    binder.bind_optional(&pages_unpack, regime);
    binder.bind_optional(&state_save, regime);
    binder.bind_optional(&state_load, regime);

    fusion(mhc_reduce_expand);
    fusion(mhc_mix_collapse_norm);
    fusion(mhc_collapse_norm);
    fusion(mhc_seam);
    fusion(route_gate_topk);
    fusion(attn_qkv_prep);
    fusion(attn_sparse_turn);
    fusion(compress_emit);
    fusion(index_key_emit);
    fusion(index_query_prep);
    fusion(index_select);
    fusion(engram_reduce_gate);
    fusion(draft_markov);
}

}  // namespace tenon::dsv41
