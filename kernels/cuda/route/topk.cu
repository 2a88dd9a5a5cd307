// SPDX-License-Identifier: MIT
// route.topk.
#include "route/topk.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

static_assert(kExpertsPerLane * 32 == kernels::kMaxExperts);
static_assert(kMostChosen == kernels::kMaxChosen);

Status topk(void*, const RouteTopk& p, Stream& stream) noexcept {
    TENON_TRY(kernels::check_op(p));
    const int64_t T = p.logits.shape[0];
    if (T == 0) {
        return {};
    }
    const RouteArgs a{p.bias.as<const float>(),
                      p.bias_image.as<const float>(),
                      p.rows.row.as<const RowInfo>(),
                      static_cast<int32_t>(p.logits.shape[1]),
                      p.k,
                      p.scale,
                      p.ids.as<int32_t>(),
                      p.weights.as<float>()};
    route_kernel<<<static_cast<unsigned>((T + 3) / 4), 128, 0, native(stream)>>>(
        a, p.logits.as<const float>(), T);
    return launched(RouteTopk::kOp.name);
}

}  // namespace

void add_route(Registry& r) {
    r.add<RouteTopk>(&topk, Exactness::invariant);
}

}  // namespace tenon::cuda
