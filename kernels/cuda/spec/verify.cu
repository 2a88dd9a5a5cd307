// SPDX-License-Identifier: MIT
// spec.verify.
#include "spec/verify.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

Status verify(void* self, const SpecVerify& p, Stream& stream) noexcept {
    TENON_TRY(kernels::check_op(p));
    if (p.rows.S == 0) {
        return {};
    }
    const VerifyArgs a{p.drawn.as<const int32_t>(),
                       p.drawn.shape[0],
                       p.ids.as<const int32_t>(),
                       p.rows.row.as<const RowInfo>(),
                       p.rows.seg.as<const SegInfo>(),
                       p.rows.T,
                       p.rows.S,
                       p.limits.as<const VerifyLimits>(),
                       p.decision.as<VerifyDecision>()};
    verify_kernel<<<static_cast<unsigned>((p.rows.S + 31) / 32), 32, 0, native(stream)>>>(
        a, context(self).faults);
    return launched(SpecVerify::kOp.name);
}

}  // namespace

void add_spec(Registry& r) {
    r.add<SpecVerify>(&verify, Exactness::exact);
}

}  // namespace tenon::cuda
