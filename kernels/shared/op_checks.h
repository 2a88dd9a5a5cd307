// SPDX-License-Identifier: MIT
// Argument checks of whole ops: what every provider refuses, with the same message.
#pragma once

#include "kernels/shared/check.h"
#include "tenon/ops/attn.h"
#include "tenon/ops/cache.h"
#include "tenon/ops/compress.h"
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
#include "tenon/ops/spec.h"
#include "tenon/ops/window.h"

namespace tenon::kernels {

constexpr int64_t kMaxExperts = 512;
constexpr int32_t kMaxChosen = 16;
constexpr int64_t kMaxPrepWidth = 1024;  ///< channels of a row in attn.qkv_prep and the emits
constexpr int64_t kEngramGroup = 32;     ///< values per scale of an Engram row

/// The geometry of rope.turn: T rows of n vectors of D channels, the last R turned.
struct TurnShape {
    int64_t T, n, D, R;
};

/// The rows of any rank as a byte matrix: stride and alignment in one place.
TensorView rows_as_bytes(const TensorView& v);

/// errors  invalid_argument, unsupported: op, field, found, expected
Status check_op(const RowsGather& p);
Status check_op(const RowsScatter& p);
Status check_op(const RowsDigest& p);
Status check_op(const EmbedGather& p);
Status check_op(const NormRms& p);
Status check_op(const ElemAdd& p);
Status check_op(const ElemSiluMul& p);
Status check_op(const ElemGelu& p);
Status check_op(const MhcMix& p);
Status check_op(const MhcCollapse& p);
Status check_op(const MhcExpand& p);
Status check_op(const MhcMean& p);
Status check_op(const MhcSeam& p);
Status check_op(const MhcMixCollapseNorm& p);
Status check_op(const MhcCollapseNorm& p);
Status check_op(const MhcReduceExpand& p);
Status check_op(const AttnQkvPrep& p);
Status check_op(const CompressEmit& p);
Status check_op(const IndexKeyEmit& p);
Status check_op(const IndexQueryPrep& p);
Status check_op(const RopeAngles& p);
Status check_op(const KvqQuantize& p);
Status check_op(const KvqDequantize& p);
Status check_op(const WindowStore& p);
Status check_op(const CacheStore& p);
Status check_op(const CompressPool& p);
Status check_op(const PagesCopy& p);
Status check_op(const PagesPack& p);
Status check_op(const PagesUnpack& p);
Status check_op(const StateSave& p);
Status check_op(const StateLoad& p);
Status check_op(const RouteTopk& p);
Status check_op(const RouteGateTopk& p);
Status check_op(const EngramDecode& p);
Status check_op(const EngramGate& p);
Status check_op(const EngramReduceGate& p);
Status check_op(const SpecVerify& p);
Status check_op(const LinearPlain& p);
Status check_op(const RopeTurn& p, TurnShape* shape);

}  // namespace tenon::kernels
