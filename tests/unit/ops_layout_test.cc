// SPDX-License-Identifier: MIT
// Frozen layouts of the op contract: size and field offsets of every parameter struct, against
// fixtures/ops_layout.txt. A line that changes means a new version of that op (ops.md 1.8), not a
// new golden.
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <sstream>

#include "tenon/ops/attn.h"
#include "tenon/ops/cache.h"
#include "tenon/ops/compress.h"
#include "tenon/ops/draft.h"
#include "tenon/ops/elem.h"
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
#include "tenon/ops/vision.h"
#include "tenon/ops/window.h"

namespace tenon {
namespace {

class Layout {
  public:
    template <class T>
    void add(const char* name, std::initializer_list<size_t> offsets, const char* fields) {
        static_assert(std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T>);
        text_ << name;
        if constexpr (requires { T::kOp; }) {
            text_ << ' ' << T::kOp.name << '/' << T::kOp.version;
        }
        text_ << " size " << sizeof(T) << " (" << fields << ") at";
        for (size_t at : offsets) {
            text_ << ' ' << at;
        }
        text_ << '\n';
    }
    std::string text() const { return text_.str(); }

  private:
    std::ostringstream text_;
};

std::string layouts() {
    Layout l;
    l.add<RowInfo>("RowInfo",
                   {offsetof(RowInfo, pos), offsetof(RowInfo, slot), offsetof(RowInfo, seg),
                    offsetof(RowInfo, flags)},
                   "pos slot seg flags");
    l.add<SegInfo>("SegInfo",
                   {offsetof(SegInfo, slot), offsetof(SegInfo, row0), offsetof(SegInfo, rows),
                    offsetof(SegInfo, pos0), offsetof(SegInfo, win_lo), offsetof(SegInfo, out0),
                    offsetof(SegInfo, pad)},
                   "slot row0 rows pos0 win_lo out0 pad");
    l.add<Rows>("Rows",
                {offsetof(Rows, row), offsetof(Rows, seg), offsetof(Rows, T), offsetof(Rows, S)},
                "row seg T S");
    l.add<RowsGather>(
        "RowsGather",
        {offsetof(RowsGather, x), offsetof(RowsGather, index), offsetof(RowsGather, out)},
        "x index out");
    l.add<RowsScatter>(
        "RowsScatter",
        {offsetof(RowsScatter, x), offsetof(RowsScatter, index), offsetof(RowsScatter, out)},
        "x index out");
    l.add<RowsDigest>(
        "RowsDigest",
        {offsetof(RowsDigest, x), offsetof(RowsDigest, rows), offsetof(RowsDigest, out)},
        "x rows out");
    l.add<Ring>("Ring",
                {offsetof(Ring, codes), offsetof(Ring, scales), offsetof(Ring, R),
                 offsetof(Ring, width), offsetof(Ring, format)},
                "codes scales R width format");
    l.add<Pages>("Pages",
                 {offsetof(Pages, pool), offsetof(Pages, table), offsetof(Pages, codes_at),
                  offsetof(Pages, scales_at), offsetof(Pages, rows_per_page),
                  offsetof(Pages, ratio), offsetof(Pages, width), offsetof(Pages, format)},
                 "pool table codes_at scales_at rows_per_page ratio width format");
    l.add<StateSave>(
        "StateSave",
        {offsetof(StateSave, slot), offsetof(StateSave, length), offsetof(StateSave, positions),
         offsetof(StateSave, rings), offsetof(StateSave, raws), offsetof(StateSave, record)},
        "slot length positions rings raws record");
    l.add<StateLoad>(
        "StateLoad",
        {offsetof(StateLoad, slot), offsetof(StateLoad, length), offsetof(StateLoad, positions),
         offsetof(StateLoad, rings), offsetof(StateLoad, raws), offsetof(StateLoad, record)},
        "slot length positions rings raws record");
    l.add<PagePlane>("PagePlane",
                     {offsetof(PagePlane, at), offsetof(PagePlane, row_bytes),
                      offsetof(PagePlane, ratio), offsetof(PagePlane, pad)},
                     "at row_bytes ratio pad");
    l.add<PagesCopy>("PagesCopy",
                     {offsetof(PagesCopy, pool), offsetof(PagesCopy, src), offsetof(PagesCopy, dst),
                      offsetof(PagesCopy, tokens), offsetof(PagesCopy, planes),
                      offsetof(PagesCopy, page_tokens)},
                     "pool src dst tokens planes page_tokens");
    l.add<PagesPack>(
        "PagesPack",
        {offsetof(PagesPack, pool), offsetof(PagesPack, ids), offsetof(PagesPack, records)},
        "pool ids records");
    l.add<PagesUnpack>(
        "PagesUnpack",
        {offsetof(PagesUnpack, pool), offsetof(PagesUnpack, ids), offsetof(PagesUnpack, records)},
        "pool ids records");
    l.add<EmbedGather>("EmbedGather",
                       {offsetof(EmbedGather, ids), offsetof(EmbedGather, table),
                        offsetof(EmbedGather, inject), offsetof(EmbedGather, inject_index),
                        offsetof(EmbedGather, out), offsetof(EmbedGather, pre)},
                       "ids table inject inject_index out pre");
    l.add<NormRms>("NormRms",
                   {offsetof(NormRms, x), offsetof(NormRms, weight), offsetof(NormRms, out),
                    offsetof(NormRms, eps)},
                   "x weight out eps");
    l.add<ElemAdd>("ElemAdd", {offsetof(ElemAdd, a), offsetof(ElemAdd, b), offsetof(ElemAdd, out)},
                   "a b out");
    l.add<ElemSiluMul>("ElemSiluMul", {offsetof(ElemSiluMul, gate_up), offsetof(ElemSiluMul, out)},
                       "gate_up out");
    l.add<ElemGelu>("ElemGelu", {offsetof(ElemGelu, x), offsetof(ElemGelu, out)}, "x out");
    l.add<MhcMix>("MhcMix",
                  {offsetof(MhcMix, h), offsetof(MhcMix, fn), offsetof(MhcMix, scale),
                   offsetof(MhcMix, base), offsetof(MhcMix, eps), offsetof(MhcMix, hc_eps),
                   offsetof(MhcMix, iters), offsetof(MhcMix, pre), offsetof(MhcMix, post),
                   offsetof(MhcMix, comb), offsetof(MhcMix, scratch)},
                  "h fn scale base eps hc_eps iters pre post comb scratch");
    l.add<MhcCollapse>(
        "MhcCollapse",
        {offsetof(MhcCollapse, h), offsetof(MhcCollapse, pre), offsetof(MhcCollapse, out)},
        "h pre out");
    l.add<MhcExpand>("MhcExpand",
                     {offsetof(MhcExpand, y), offsetof(MhcExpand, h), offsetof(MhcExpand, post),
                      offsetof(MhcExpand, comb), offsetof(MhcExpand, out)},
                     "y h post comb out");
    l.add<MhcMean>("MhcMean", {offsetof(MhcMean, h), offsetof(MhcMean, out)}, "h out");
    l.add<MhcReduceExpand>("MhcReduceExpand",
                           {offsetof(MhcReduceExpand, parts), offsetof(MhcReduceExpand, h),
                            offsetof(MhcReduceExpand, post), offsetof(MhcReduceExpand, comb),
                            offsetof(MhcReduceExpand, out)},
                           "parts h post comb out");
    l.add<MhcMixCollapseNorm>(
        "MhcMixCollapseNorm",
        {offsetof(MhcMixCollapseNorm, h), offsetof(MhcMixCollapseNorm, fn),
         offsetof(MhcMixCollapseNorm, scale), offsetof(MhcMixCollapseNorm, base),
         offsetof(MhcMixCollapseNorm, eps), offsetof(MhcMixCollapseNorm, hc_eps),
         offsetof(MhcMixCollapseNorm, iters), offsetof(MhcMixCollapseNorm, pre_in),
         offsetof(MhcMixCollapseNorm, norm_weight), offsetof(MhcMixCollapseNorm, x),
         offsetof(MhcMixCollapseNorm, pre), offsetof(MhcMixCollapseNorm, post),
         offsetof(MhcMixCollapseNorm, comb), offsetof(MhcMixCollapseNorm, scratch)},
        "h fn scale base eps hc_eps iters pre_in norm_weight x pre post comb scratch");
    l.add<MhcCollapseNorm>("MhcCollapseNorm",
                           {offsetof(MhcCollapseNorm, h), offsetof(MhcCollapseNorm, pre),
                            offsetof(MhcCollapseNorm, norm_weight), offsetof(MhcCollapseNorm, eps),
                            offsetof(MhcCollapseNorm, x)},
                           "h pre norm_weight eps x");
    l.add<MhcSeam>("MhcSeam",
                   {offsetof(MhcSeam, parts), offsetof(MhcSeam, y), offsetof(MhcSeam, h),
                    offsetof(MhcSeam, post_in), offsetof(MhcSeam, comb_in), offsetof(MhcSeam, fn),
                    offsetof(MhcSeam, scale), offsetof(MhcSeam, base), offsetof(MhcSeam, eps),
                    offsetof(MhcSeam, hc_eps), offsetof(MhcSeam, iters), offsetof(MhcSeam, pre_in),
                    offsetof(MhcSeam, norm_weight), offsetof(MhcSeam, out), offsetof(MhcSeam, x),
                    offsetof(MhcSeam, pre), offsetof(MhcSeam, post), offsetof(MhcSeam, comb),
                    offsetof(MhcSeam, scratch)},
                   "parts y h post_in comb_in fn scale base eps hc_eps iters pre_in norm_weight "
                   "out x pre post comb scratch");
    l.add<LinearPlain>(
        "LinearPlain",
        {offsetof(LinearPlain, x), offsetof(LinearPlain, w), offsetof(LinearPlain, bias),
         offsetof(LinearPlain, y), offsetof(LinearPlain, scratch)},
        "x w bias y scratch");
    l.add<RouteTopk>(
        "RouteTopk",
        {offsetof(RouteTopk, logits), offsetof(RouteTopk, bias), offsetof(RouteTopk, bias_image),
         offsetof(RouteTopk, k), offsetof(RouteTopk, scale), offsetof(RouteTopk, rows),
         offsetof(RouteTopk, ids), offsetof(RouteTopk, weights)},
        "logits bias bias_image k scale rows ids weights");
    l.add<RouteGateTopk>("RouteGateTopk",
                         {offsetof(RouteGateTopk, x), offsetof(RouteGateTopk, gate),
                          offsetof(RouteGateTopk, bias), offsetof(RouteGateTopk, bias_image),
                          offsetof(RouteGateTopk, k), offsetof(RouteGateTopk, scale),
                          offsetof(RouteGateTopk, rows), offsetof(RouteGateTopk, ids),
                          offsetof(RouteGateTopk, weights), offsetof(RouteGateTopk, scratch)},
                         "x gate bias bias_image k scale rows ids weights scratch");
    l.add<RopeAngles>("RopeAngles",
                      {offsetof(RopeAngles, rows), offsetof(RopeAngles, freq),
                       offsetof(RopeAngles, step), offsetof(RopeAngles, cs)},
                      "rows freq step cs");
    l.add<RopeTurn>("RopeTurn",
                    {offsetof(RopeTurn, x), offsetof(RopeTurn, cs), offsetof(RopeTurn, inverse),
                     offsetof(RopeTurn, out)},
                    "x cs inverse out");
    l.add<KvqQuantize>(
        "KvqQuantize",
        {offsetof(KvqQuantize, x), offsetof(KvqQuantize, format), offsetof(KvqQuantize, values),
         offsetof(KvqQuantize, codes), offsetof(KvqQuantize, scales)},
        "x format values codes scales");
    l.add<KvqDequantize>("KvqDequantize",
                         {offsetof(KvqDequantize, codes), offsetof(KvqDequantize, scales),
                          offsetof(KvqDequantize, format), offsetof(KvqDequantize, out)},
                         "codes scales format out");
    l.add<WindowStore>(
        "WindowStore",
        {offsetof(WindowStore, kv), offsetof(WindowStore, rows), offsetof(WindowStore, ring)},
        "kv rows ring");
    l.add<CacheStore>("CacheStore",
                      {offsetof(CacheStore, x), offsetof(CacheStore, rows),
                       offsetof(CacheStore, pages), offsetof(CacheStore, quantiser)},
                      "x rows pages quantiser");
    l.add<CompressPool>(
        "CompressPool",
        {offsetof(CompressPool, a), offsetof(CompressPool, s), offsetof(CompressPool, rows),
         offsetof(CompressPool, raw), offsetof(CompressPool, out)},
        "a s rows raw out");
    l.add<CompressEmit>(
        "CompressEmit",
        {offsetof(CompressEmit, latent_raw), offsetof(CompressEmit, a), offsetof(CompressEmit, s),
         offsetof(CompressEmit, raw), offsetof(CompressEmit, norm_weight),
         offsetof(CompressEmit, eps), offsetof(CompressEmit, cs), offsetof(CompressEmit, rows),
         offsetof(CompressEmit, comp), offsetof(CompressEmit, latent)},
        "latent_raw a s raw norm_weight eps cs rows comp latent");
    l.add<IndexKeyEmit>("IndexKeyEmit",
                        {offsetof(IndexKeyEmit, k_raw), offsetof(IndexKeyEmit, norm_weight),
                         offsetof(IndexKeyEmit, eps), offsetof(IndexKeyEmit, cs),
                         offsetof(IndexKeyEmit, rows), offsetof(IndexKeyEmit, keys)},
                        "k_raw norm_weight eps cs rows keys");
    l.add<IndexQueryPrep>("IndexQueryPrep",
                          {offsetof(IndexQueryPrep, iq), offsetof(IndexQueryPrep, cs),
                           offsetof(IndexQueryPrep, x), offsetof(IndexQueryPrep, weights_proj),
                           offsetof(IndexQueryPrep, w), offsetof(IndexQueryPrep, codes),
                           offsetof(IndexQueryPrep, scales), offsetof(IndexQueryPrep, scratch)},
                          "iq cs x weights_proj w codes scales scratch");
    l.add<IndexScore>(
        "IndexScore",
        {offsetof(IndexScore, iq), offsetof(IndexScore, w), offsetof(IndexScore, w_scale),
         offsetof(IndexScore, keys), offsetof(IndexScore, rows), offsetof(IndexScore, cand),
         offsetof(IndexScore, block), offsetof(IndexScore, out), offsetof(IndexScore, scratch)},
        "iq w w_scale keys rows cand block out scratch");
    l.add<IndexBlocks>(
        "IndexBlocks",
        {offsetof(IndexBlocks, scores), offsetof(IndexBlocks, rows), offsetof(IndexBlocks, ratio),
         offsetof(IndexBlocks, block), offsetof(IndexBlocks, cand), offsetof(IndexBlocks, count),
         offsetof(IndexBlocks, scratch)},
        "scores rows ratio block cand count scratch");
    l.add<IndexTopk>(
        "IndexTopk",
        {offsetof(IndexTopk, scores), offsetof(IndexTopk, rows), offsetof(IndexTopk, ratio),
         offsetof(IndexTopk, cand), offsetof(IndexTopk, block), offsetof(IndexTopk, sel),
         offsetof(IndexTopk, count), offsetof(IndexTopk, scratch)},
        "scores rows ratio cand block sel count scratch");
    l.add<IndexSelect>(
        "IndexSelect",
        {offsetof(IndexSelect, iq), offsetof(IndexSelect, w), offsetof(IndexSelect, w_scale),
         offsetof(IndexSelect, keys), offsetof(IndexSelect, rows), offsetof(IndexSelect, cand),
         offsetof(IndexSelect, block), offsetof(IndexSelect, blocks),
         offsetof(IndexSelect, block_count), offsetof(IndexSelect, sel),
         offsetof(IndexSelect, count), offsetof(IndexSelect, N), offsetof(IndexSelect, scratch)},
        "iq w w_scale keys rows cand block blocks block_count sel count N scratch");
    l.add<AttnSparse>(
        "AttnSparse",
        {offsetof(AttnSparse, q), offsetof(AttnSparse, kv), offsetof(AttnSparse, ring),
         offsetof(AttnSparse, comp), offsetof(AttnSparse, sel), offsetof(AttnSparse, count),
         offsetof(AttnSparse, sink), offsetof(AttnSparse, scale), offsetof(AttnSparse, window),
         offsetof(AttnSparse, half), offsetof(AttnSparse, mode), offsetof(AttnSparse, rows),
         offsetof(AttnSparse, out), offsetof(AttnSparse, scratch)},
        "q kv ring comp sel count sink scale window half mode rows out scratch");
    l.add<AttnSparseTurn>(
        "AttnSparseTurn",
        {offsetof(AttnSparseTurn, q), offsetof(AttnSparseTurn, kv), offsetof(AttnSparseTurn, ring),
         offsetof(AttnSparseTurn, comp), offsetof(AttnSparseTurn, sel),
         offsetof(AttnSparseTurn, count), offsetof(AttnSparseTurn, sink),
         offsetof(AttnSparseTurn, scale), offsetof(AttnSparseTurn, window),
         offsetof(AttnSparseTurn, half), offsetof(AttnSparseTurn, mode),
         offsetof(AttnSparseTurn, rows), offsetof(AttnSparseTurn, cs),
         offsetof(AttnSparseTurn, out), offsetof(AttnSparseTurn, scratch)},
        "q kv ring comp sel count sink scale window half mode rows cs out scratch");
    l.add<AttnQkvPrep>(
        "AttnQkvPrep",
        {offsetof(AttnQkvPrep, qa_raw), offsetof(AttnQkvPrep, qa_weight), offsetof(AttnQkvPrep, qa),
         offsetof(AttnQkvPrep, kv_raw), offsetof(AttnQkvPrep, kv_weight), offsetof(AttnQkvPrep, kv),
         offsetof(AttnQkvPrep, cs), offsetof(AttnQkvPrep, eps), offsetof(AttnQkvPrep, rows),
         offsetof(AttnQkvPrep, ring)},
        "qa_raw qa_weight qa kv_raw kv_weight kv cs eps rows ring");
    l.add<AttnFull>(
        "AttnFull",
        {offsetof(AttnFull, q), offsetof(AttnFull, k), offsetof(AttnFull, v),
         offsetof(AttnFull, scale), offsetof(AttnFull, out), offsetof(AttnFull, scratch)},
        "q k v scale out scratch");
    l.add<EngramDecode>("EngramDecode",
                        {offsetof(EngramDecode, values), offsetof(EngramDecode, scales),
                         offsetof(EngramDecode, rows), offsetof(EngramDecode, out)},
                        "values scales rows out");
    l.add<EngramGate>(
        "EngramGate",
        {offsetof(EngramGate, kv), offsetof(EngramGate, h), offsetof(EngramGate, q_weight),
         offsetof(EngramGate, k_weight), offsetof(EngramGate, eps), offsetof(EngramGate, rows)},
        "kv h q_weight k_weight eps rows");
    l.add<EngramReduceGate>(
        "EngramReduceGate",
        {offsetof(EngramReduceGate, parts), offsetof(EngramReduceGate, h),
         offsetof(EngramReduceGate, q_weight), offsetof(EngramReduceGate, k_weight),
         offsetof(EngramReduceGate, eps), offsetof(EngramReduceGate, rows)},
        "parts h q_weight k_weight eps rows");
    l.add<SampleParams>(
        "SampleParams",
        {offsetof(SampleParams, temperature), offsetof(SampleParams, top_p),
         offsetof(SampleParams, min_p), offsetof(SampleParams, repetition),
         offsetof(SampleParams, presence), offsetof(SampleParams, frequency),
         offsetof(SampleParams, top_k), offsetof(SampleParams, pos), offsetof(SampleParams, seed)},
        "temperature top_p min_p repetition presence frequency top_k pos seed");
    l.add<SampleDraw>(
        "SampleDraw",
        {offsetof(SampleDraw, logits), offsetof(SampleDraw, params), offsetof(SampleDraw, seen),
         offsetof(SampleDraw, rows), offsetof(SampleDraw, index), offsetof(SampleDraw, ids),
         offsetof(SampleDraw, bias_begin), offsetof(SampleDraw, bias_ids),
         offsetof(SampleDraw, bias_add), offsetof(SampleDraw, mask), offsetof(SampleDraw, forbid),
         offsetof(SampleDraw, token), offsetof(SampleDraw, logprob), offsetof(SampleDraw, scratch)},
        "logits params seen rows index ids bias_begin bias_ids bias_add mask forbid token logprob "
        "scratch");
    l.add<SampleLogprobs>("SampleLogprobs",
                          {offsetof(SampleLogprobs, logits), offsetof(SampleLogprobs, token),
                           offsetof(SampleLogprobs, ids), offsetof(SampleLogprobs, lp),
                           offsetof(SampleLogprobs, token_lp), offsetof(SampleLogprobs, scratch)},
                          "logits token ids lp token_lp scratch");
    l.add<SampleCount>(
        "SampleCount",
        {offsetof(SampleCount, token), offsetof(SampleCount, slot), offsetof(SampleCount, seen)},
        "token slot seen");
    l.add<VerifyLimits>("VerifyLimits",
                        {offsetof(VerifyLimits, forced), offsetof(VerifyLimits, accept_max),
                         offsetof(VerifyLimits, stop_ids)},
                        "forced accept_max stop_ids");
    l.add<VerifyDecision>("VerifyDecision",
                          {offsetof(VerifyDecision, accepted), offsetof(VerifyDecision, emitted),
                           offsetof(VerifyDecision, last), offsetof(VerifyDecision, finish),
                           offsetof(VerifyDecision, tokens)},
                          "accepted emitted last finish tokens");
    l.add<SpecVerify>(
        "SpecVerify",
        {offsetof(SpecVerify, drawn), offsetof(SpecVerify, ids), offsetof(SpecVerify, rows),
         offsetof(SpecVerify, limits), offsetof(SpecVerify, decision)},
        "drawn ids rows limits decision");
    l.add<DraftRows>(
        "DraftRows",
        {offsetof(DraftRows, decision), offsetof(DraftRows, window), offsetof(DraftRows, slot),
         offsetof(DraftRows, noise_id), offsetof(DraftRows, B), offsetof(DraftRows, ids),
         offsetof(DraftRows, row), offsetof(DraftRows, seg)},
        "decision window slot noise_id B ids row seg");
    l.add<DraftBest>("DraftBest", {offsetof(DraftBest, value), offsetof(DraftBest, id)},
                     "value id");
    l.add<DraftStep>(
        "DraftStep",
        {offsetof(DraftStep, base), offsetof(DraftStep, prev), offsetof(DraftStep, embed),
         offsetof(DraftStep, head), offsetof(DraftStep, forbid), offsetof(DraftStep, params),
         offsetof(DraftStep, rows), offsetof(DraftStep, step), offsetof(DraftStep, vocab_at),
         offsetof(DraftStep, best), offsetof(DraftStep, scratch)},
        "base prev embed head forbid params rows step vocab_at best scratch");
    l.add<DraftPick>(
        "DraftPick",
        {offsetof(DraftPick, best), offsetof(DraftPick, token), offsetof(DraftPick, mirror)},
        "best token mirror");
    l.add<DraftConfidence>("DraftConfidence",
                           {offsetof(DraftConfidence, c), offsetof(DraftConfidence, prev),
                            offsetof(DraftConfidence, embed), offsetof(DraftConfidence, proj),
                            offsetof(DraftConfidence, out), offsetof(DraftConfidence, scratch)},
                           "c prev embed proj out scratch");
    l.add<DraftMarkov>(
        "DraftMarkov",
        {offsetof(DraftMarkov, base), offsetof(DraftMarkov, first), offsetof(DraftMarkov, embed),
         offsetof(DraftMarkov, head), offsetof(DraftMarkov, forbid), offsetof(DraftMarkov, params),
         offsetof(DraftMarkov, rows), offsetof(DraftMarkov, token), offsetof(DraftMarkov, mirror),
         offsetof(DraftMarkov, scratch)},
        "base first embed head forbid params rows token mirror scratch");
    l.add<VisionTurn>("VisionTurn",
                      {offsetof(VisionTurn, x), offsetof(VisionTurn, grid_rows),
                       offsetof(VisionTurn, grid_cols), offsetof(VisionTurn, freq)},
                      "x grid_rows grid_cols freq");
    l.add<VisionShuffle>("VisionShuffle",
                         {offsetof(VisionShuffle, x), offsetof(VisionShuffle, grid_rows),
                          offsetof(VisionShuffle, grid_cols), offsetof(VisionShuffle, out)},
                         "x grid_rows grid_cols out");
    l.add<VisionSpan>(
        "VisionSpan",
        {offsetof(VisionSpan, cells), offsetof(VisionSpan, cell_rows),
         offsetof(VisionSpan, cell_cols), offsetof(VisionSpan, start),
         offsetof(VisionSpan, newline), offsetof(VisionSpan, end), offsetof(VisionSpan, out)},
        "cells cell_rows cell_cols start newline end out");
    return l.text();
}

TEST(OpsLayout, Every_struct_has_its_frozen_size_and_offsets) {
    std::ifstream file(TENON_FIXTURES "/ops_layout.txt");
    std::stringstream golden;
    golden << file.rdbuf();
    std::stringstream found(layouts());
    std::string want;
    std::string got;
    while (std::getline(golden, want)) {
        ASSERT_TRUE(std::getline(found, got)) << "missing: " << want;
        EXPECT_EQ(got, want);
    }
    EXPECT_FALSE(std::getline(found, got)) << "not in the golden file: " << got;
}

}  // namespace
}  // namespace tenon
