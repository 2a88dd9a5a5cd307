// SPDX-License-Identifier: MIT
// Parameter types of the ops that dsv41 calls.
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

namespace tenon::testing {

template <class... P>
struct OpList {};

using AllOps =
    OpList<RowsGather, RowsDigest, EmbedGather, NormRms, MhcMix, MhcCollapse, MhcExpand, MhcMean,
           LinearPlain, RouteTopk, RopeAngles, RopeTurn, KvqQuantize, KvqDequantize, WindowStore,
           CacheStore, CompressPool, IndexScore, IndexBlocks, IndexTopk, AttnSparse, EngramDecode,
           EngramGate, SampleDraw, SampleLogprobs, SampleCount, SpecVerify, DraftRows, DraftStep,
           DraftPick, DraftConfidence, PagesCopy, PagesPack, PagesUnpack, StateSave, StateLoad,
           MhcReduceExpand, MhcMixCollapseNorm, MhcCollapseNorm, MhcSeam, RouteGateTopk,
           AttnQkvPrep, AttnSparseTurn, CompressEmit, IndexKeyEmit, IndexQueryPrep, IndexSelect,
           EngramReduceGate, DraftMarkov>;

}  // namespace tenon::testing
