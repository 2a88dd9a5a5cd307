// SPDX-License-Identifier: MIT
// attn.qkv_prep.
#include "prep/qkv.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

static_assert(kPrepWidth >= kernels::kMaxPrepWidth);

Status qkv_prep(void* self, const AttnQkvPrep& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    QkvPrepArgs a{};
    a.qa_raw = p.qa_raw.as<const uint16_t>();
    a.qa_stride = p.qa_raw.stride[0];
    a.qa_weight = p.qa_weight.data;
    a.qa_weight_bf16 = p.qa_weight.dtype == DType::bf16;
    a.qa = p.qa.as<uint16_t>();
    a.r = dim(p.qa_raw, 1);
    a.kv_raw = p.kv_raw.as<const uint16_t>();
    a.kv_stride = p.kv_raw.stride[0];
    a.kv_weight = p.kv_weight.data;
    a.kv_weight_bf16 = p.kv_weight.dtype == DType::bf16;
    a.kv = p.kv.as<uint16_t>();
    a.D = dim(p.kv_raw, 1);
    a.cs = p.cs.as<const float>();
    a.R = dim(p.cs, 1);
    a.eps = p.eps;
    a.rows = p.rows.row.as<const RowInfo>();
    a.segs = p.rows.seg.as<const SegInfo>();
    a.T = p.rows.T;
    a.S = p.rows.S;
    if (!p.ring.codes.null()) {
        a.ring = ring_ref(p.ring);
    }
    if (a.T == 0) {
        return {};
    }
    const dim3 grid(static_cast<unsigned>(a.T), p.qa_raw.null() ? 1 : 2);
    launch_dependent(&qkv_prep_kernel, grid, kNormThreads, 0, native(stream), a,
                     context(self).faults);
    return launched(AttnQkvPrep::kOp.name);
}

}  // namespace

void add_prep_emit(Registry& r);
void add_prep_query(Registry& r);

void add_prep(Registry& r) {
    r.add<AttnQkvPrep>(&qkv_prep, Exactness::invariant);
    add_prep_emit(r);
    add_prep_query(r);
}

}  // namespace tenon::cuda
