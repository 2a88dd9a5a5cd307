// SPDX-License-Identifier: MIT
// Every op header, and the list of their parameter types for code that treats all ops alike.
#pragma once

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
#include "tenon/ops/rows.h"
#include "tenon/ops/sample.h"
#include "tenon/ops/spec.h"
#include "tenon/ops/state.h"
#include "tenon/ops/vision.h"
#include "tenon/ops/window.h"

namespace tenon {

template <class... P>
struct OpList {};

using AllOps =
    OpList<AttnSparse, AttnSparseTurn, AttnQkvPrep, AttnFull, CacheStore, CompressPool,
           CompressEmit, DraftRows, DraftStep, DraftPick, DraftConfidence, DraftMarkov, ElemAdd,
           ElemSiluMul, ElemGelu, EmbedGather, EngramDecode, EngramGate, EngramReduceGate,
           IndexKeyEmit, IndexQueryPrep, IndexScore, IndexBlocks, IndexTopk, IndexSelect,
           KvqQuantize, KvqDequantize, LinearPlain, MhcMix, MhcCollapse, MhcExpand, MhcMean,
           MhcReduceExpand, MhcMixCollapseNorm, MhcCollapseNorm, MhcSeam, NormRms, PagesCopy,
           PagesPack, PagesUnpack, RopeAngles, RopeTurn, RouteTopk, RouteGateTopk, RowsGather,
           RowsScatter, RowsDigest, SampleDraw, SampleLogprobs, SampleCount, SpecVerify, StateSave,
           StateLoad, VisionTurn, VisionShuffle, VisionSpan, WindowStore>;

}  // namespace tenon
