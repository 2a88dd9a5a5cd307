// SPDX-License-Identifier: MIT
// route.topk.
#include "route/topk.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

static_assert(kExpertsPerLane * 32 == kernels::kMaxExperts);
static_assert(kMostChosen == kernels::kMaxChosen);
static_assert(kRouteThreads >= kernels::kMaxExperts);

// Below this a row's latency decides, above it the work of all rows.
constexpr int64_t kFewRows = 128;

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
    if (T <= kFewRows) {
        route_wide_kernel<<<static_cast<unsigned>(T), kRouteThreads, 0, native(stream)>>>(
            a, p.logits.as<const float>());
        return launched(RouteTopk::kOp.name);
    }
    route_kernel<<<static_cast<unsigned>((T + 3) / 4), 128, 0, native(stream)>>>(
        a, p.logits.as<const float>(), T);
    return launched(RouteTopk::kOp.name);
}

}  // namespace

void add_route(Registry& r) {
    r.add<RouteTopk>(&topk, Exactness::invariant);
}

}  // namespace tenon::cuda
