// SPDX-License-Identifier: MIT
// index.query_prep, for decode: many rows have a tensor-core linear.plain, which this would undo.
#include "prep/query.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

Status query_prep(void*, const IndexQueryPrep& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = p.iq.shape[0];
    const int64_t Hi = p.iq.shape[1];
    const int64_t Di = p.iq.shape[2];
    if (T == 0 || Hi == 0) {
        return {};
    }
    QueryPrepArgs a{};
    a.weights.x = p.x.as<const uint16_t>();
    a.weights.x_stride = p.x.stride[0];
    a.weights.w = p.weights_proj.as<const uint16_t>();
    a.weights.y = p.w.as<uint16_t>();
    a.weights.y_stride = Hi;
    a.weights.T = T;
    a.weights.N = Hi;
    a.weights.K = p.x.shape[1];
    a.iq = p.iq.as<uint16_t>();
    a.cs = p.cs.as<const float>();
    a.codes = p.codes.as<uint8_t>();
    a.scales = p.scales.as<uint8_t>();
    a.Di = Di;
    a.R = dim(p.cs, 1);
    const int64_t dots = Hi * T;
    const int64_t turns = (T * Hi * Di / 4 + kPlainThreads - 1) / kPlainThreads;
    launch_dependent(&query_prep_kernel, static_cast<unsigned>(dots + turns), kPlainThreads, 0,
                     native(stream), a);
    return launched(IndexQueryPrep::kOp.name);
}

}  // namespace

void add_prep_query(Registry& r) {
    r.add<IndexQueryPrep>(&query_prep, Exactness::invariant, kDecode);
}

}  // namespace tenon::cuda
