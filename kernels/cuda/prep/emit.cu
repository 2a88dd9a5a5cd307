// SPDX-License-Identifier: MIT
// compress.emit and index.key_emit.
#include "prep/emit.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

EmitArgs emit_args(const TensorView& weight, float eps, const TensorView& cs, const Rows& rows,
                   const Pages& pages) {
    EmitArgs a{};
    a.weight = weight.data;
    a.weight_bf16 = weight.dtype == DType::bf16;
    a.eps = eps;
    a.cs = cs.as<const float>();
    a.n = weight.shape[0];
    a.R = dim(cs, 1);
    a.rows = rows.row.as<const RowInfo>();
    a.pages = pages_ref(pages);
    return a;
}

template <RowFormat kQuantiser>
Status launch(void* self, const char* op, const EmitArgs& a, int64_t T, Stream& stream) noexcept {
    launch_dependent(&emit_kernel<kQuantiser>, static_cast<unsigned>(T), kNormThreads, 0,
                     native(stream), a, context(self).faults);
    return launched(op);
}

Status compress_emit(void* self, const CompressEmit& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    EmitArgs a = emit_args(p.norm_weight, p.eps, p.cs, p.rows, p.comp);
    if (p.rows.T == 0 || a.n == 0) {
        return {};
    }
    a.normed = p.latent.as<uint16_t>();
    if (!p.latent_raw.null()) {
        a.x = p.latent_raw.as<const uint16_t>();
    } else {
        a.pool.a = p.a.as<const float>();
        a.pool.s = p.s.as<const float>();
        a.pool.rows = a.rows;
        a.pool.segs = p.rows.seg.as<const SegInfo>();
        a.pool.T = p.rows.T;
        a.pool.S = p.rows.S;
        a.pool.D = a.n;
        a.pool.slots = p.raw.shape[0];
        a.pool.raw = p.raw.as<float>();
    }
    return launch<RowFormat::q4e>(self, CompressEmit::kOp.name, a, p.rows.T, stream);
}

Status key_emit(void* self, const IndexKeyEmit& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    EmitArgs a = emit_args(p.norm_weight, p.eps, p.cs, p.rows, p.keys);
    if (p.rows.T == 0 || a.n == 0) {
        return {};
    }
    a.x = p.k_raw.as<const uint16_t>();
    return launch<RowFormat::q4u>(self, IndexKeyEmit::kOp.name, a, p.rows.T, stream);
}

}  // namespace

void add_prep_emit(Registry& r) {
    r.add<CompressEmit>(&compress_emit, Exactness::invariant);
    r.add<IndexKeyEmit>(&key_emit, Exactness::invariant);
}

}  // namespace tenon::cuda
