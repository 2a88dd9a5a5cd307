// SPDX-License-Identifier: MIT
// route.topk and route.gate_topk.
#include "route/topk.cuh"

#include <algorithm>

#include "common/registry.h"
#include "kernels/shared/op_checks.h"
#include "linear/plain.cuh"
#include "route/gate.cuh"

namespace tenon::cuda {

namespace {

using namespace kernels;

static_assert(kExpertsPerLane * 32 == kernels::kMaxExperts);
static_assert(kMostChosen == kernels::kMaxChosen);
static_assert(kRouteThreads >= kernels::kMaxExperts);

// Below this a row's latency decides, above it the work of all rows.
constexpr int64_t kFewRows = 128;

// P: RouteTopk or RouteGateTopk.
template <class P>
RouteArgs route_args(const P& p, int64_t E) {
    return {p.bias.template as<const float>(),
            p.bias_image.template as<const float>(),
            p.rows.row.template as<const RowInfo>(),
            static_cast<int32_t>(E),
            p.k,
            p.scale,
            p.ids.template as<int32_t>(),
            p.weights.template as<float>()};
}

Status topk(void*, const RouteTopk& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = p.logits.shape[0];
    if (T == 0) {
        return {};
    }
    const RouteArgs a = route_args(p, p.logits.shape[1]);
    if (T <= kFewRows) {
        route_wide_kernel<<<static_cast<unsigned>(T), kRouteThreads, 0, native(stream)>>>(
            a, p.logits.as<const float>());
        return launched(RouteTopk::kOp.name);
    }
    route_kernel<<<static_cast<unsigned>((T + 3) / 4), 128, 0, native(stream)>>>(
        a, p.logits.as<const float>(), T);
    return launched(RouteTopk::kOp.name);
}

// A gate of bf16 has parts of K; one of f32 is multiplied as linear.plain does it.
int64_t gate_parts(const RouteGateTopk& p) {
    return p.gate.dtype == DType::bf16 ? (dim(p.gate, 1) + kGateColumns - 1) / kGateColumns : 1;
}

int64_t gate_scratch(void*, const RouteGateTopk& p) noexcept {
    return std::max<int64_t>(gate_parts(p), 1) * rows_of(p.x) * rows_of(p.gate) * 4;
}

void launch_parts(const RouteGateTopk& p, int64_t parts, cudaStream_t stream) {
    const GatePartArgs a{
        p.x.as<const uint16_t>(), p.x.stride[0],   p.gate.as<const uint16_t>(), p.x.shape[0],
        p.gate.shape[0],          p.gate.shape[1], p.scratch.as<float>()};
    const auto grid = [&](int64_t rows) {
        return dim3(static_cast<unsigned>((a.E + kGateExperts - 1) / kGateExperts),
                    static_cast<unsigned>(parts), static_cast<unsigned>((a.T + rows - 1) / rows));
    };
    if (a.T <= 8) {
        launch_dependent(&gate_parts_kernel<1>, grid(8), kGatePartThreads, 0, stream, a);
    } else {
        launch_dependent(&gate_parts_kernel<2>, grid(16), kGatePartThreads, 0, stream, a);
    }
}

Status gate_topk(void* self, const RouteGateTopk& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    Check c(RouteGateTopk::kOp.name);
    c.scratch(p.scratch, gate_scratch(self, p));
    TENON_TRY(c.take());
    const int64_t T = p.x.shape[0];
    if (T == 0) {
        return {};
    }
    const int64_t parts = gate_parts(p);
    auto* partial = p.scratch.as<float>();
    if (p.gate.dtype == DType::bf16) {
        launch_parts(p, parts, native(stream));
    } else {
        const PlainArgs<uint16_t, float, float> a{p.x.as<const uint16_t>(),
                                                  p.x.stride[0],
                                                  p.gate.as<const float>(),
                                                  nullptr,
                                                  false,
                                                  partial,
                                                  p.gate.shape[0],
                                                  T,
                                                  p.gate.shape[0],
                                                  p.gate.shape[1]};
        const dim3 grid(static_cast<unsigned>(a.N),
                        static_cast<unsigned>((T + kPlainRows - 1) / kPlainRows));
        plain_kernel<1, 8, uint16_t, float, float><<<grid, kPlainThreads, 0, native(stream)>>>(a);
    }
    launch_dependent(&gate_choice_kernel, static_cast<unsigned>(T), kRouteThreads, 0,
                     native(stream), route_args(p, p.gate.shape[0]),
                     static_cast<const float*>(partial), static_cast<int32_t>(parts), T);
    return launched(RouteGateTopk::kOp.name);
}

}  // namespace

void add_route(Registry& r) {
    r.add<RouteTopk>(&topk, Exactness::invariant);
    // Many rows have a tensor-core linear.plain with larger tiles.
    r.add<RouteGateTopk>(&gate_topk, Exactness::invariant, kDecode, &gate_scratch);
}

}  // namespace tenon::cuda
