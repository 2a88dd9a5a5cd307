// SPDX-License-Identifier: MIT
// The ops of one regime, bound once at load, and the parameter helpers that every caller needs.
#pragma once

#include "tenon/ops/attn.h"
#include "tenon/ops/cache.h"
#include "tenon/ops/compress.h"
#include "tenon/ops/draft.h"
#include "tenon/ops/embed.h"
#include "tenon/ops/engram.h"
#include "tenon/ops/index.h"
#include "tenon/ops/kvq.h"
#include "tenon/ops/linear.h"
#include "tenon/ops/mhc.h"
#include "tenon/ops/norm.h"
#include "tenon/ops/pages.h"
#include "tenon/ops/rope.h"
#include "tenon/ops/route.h"
#include "tenon/ops/rows.h"
#include "tenon/ops/sample.h"
#include "tenon/ops/spec.h"
#include "tenon/ops/state.h"
#include "tenon/ops/window.h"

namespace tenon::dsv41 {

/// Mandatory ops first; of the fused ones any may be empty, then the parts are called (ops.md 1.7).
struct OpSet {
    OpFn<RowsGather> rows_gather;
    OpFn<RowsDigest> rows_digest;
    OpFn<EmbedGather> embed_gather;
    OpFn<NormRms> norm_rms;
    OpFn<MhcMix> mhc_mix;
    OpFn<MhcCollapse> mhc_collapse;
    OpFn<MhcExpand> mhc_expand;
    OpFn<MhcMean> mhc_mean;
    OpFn<LinearPlain> linear_plain;
    OpFn<RouteTopk> route_topk;
    OpFn<RopeAngles> rope_angles;
    OpFn<RopeTurn> rope_turn;
    OpFn<KvqQuantize> kvq_quantize;
    OpFn<KvqDequantize> kvq_dequantize;
    OpFn<WindowStore> window_store;
    OpFn<CacheStore> cache_store;
    OpFn<CompressPool> compress_pool;
    OpFn<IndexScore> index_score;
    OpFn<IndexBlocks> index_blocks;
    OpFn<IndexTopk> index_topk;
    OpFn<AttnSparse> attn_sparse;
    OpFn<EngramDecode> engram_decode;
    OpFn<EngramGate> engram_gate;
    OpFn<SampleDraw> sample_draw;
    OpFn<SampleLogprobs> sample_logprobs;
    OpFn<SampleCount> sample_count;
    OpFn<SpecVerify> spec_verify;
    OpFn<DraftRows> draft_rows;
    OpFn<DraftStep> draft_step;
    OpFn<DraftPick> draft_pick;
    OpFn<DraftConfidence> draft_confidence;
    OpFn<PagesCopy> pages_copy;
    // Needed only with snapshot cells; `load` refuses cells without them.
    OpFn<PagesPack> pages_pack;
    OpFn<PagesUnpack> pages_unpack;
    OpFn<StateSave> state_save;
    OpFn<StateLoad> state_load;

    OpFn<MhcReduceExpand> mhc_reduce_expand;
    OpFn<MhcMixCollapseNorm> mhc_mix_collapse_norm;
    OpFn<MhcCollapseNorm> mhc_collapse_norm;
    OpFn<MhcSeam> mhc_seam;
    OpFn<RouteGateTopk> route_gate_topk;
    OpFn<AttnQkvPrep> attn_qkv_prep;
    OpFn<AttnSparseTurn> attn_sparse_turn;
    OpFn<CompressEmit> compress_emit;
    OpFn<IndexKeyEmit> index_key_emit;
    OpFn<IndexQueryPrep> index_query_prep;
    OpFn<IndexSelect> index_select;
    OpFn<EngramReduceGate> engram_reduce_gate;
    OpFn<DraftMarkov> draft_markov;

    std::string unsafe_in_graphs;  ///< first bound op that may not be captured; empty: none

    /// Binds everything for `regime`; ids of the bound fusions are appended to `fusions`.
    void bind(OpBinder& binder, Regime regime, std::string* fusions);
};

}  // namespace tenon::dsv41
