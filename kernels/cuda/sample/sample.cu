// SPDX-License-Identifier: MIT
// sample.draw, sample.logprobs and sample.count.
#include <algorithm>

#include "common/registry.h"
#include "kernels/shared/token_checks.h"
#include "sample/draw.cuh"
#include "sample/logprobs.cuh"

namespace tenon::cuda {

namespace {

using kernels::check_op;
using kernels::dim;
using kernels::rows_of;

int64_t slice_floats(const Context& c, int64_t V) {
    const int ranks = sample::ranks_of(c.arch);
    return ((V + ranks - 1) / ranks + 3) / 4 * 4;
}

// How the shared memory of a drawing block is used: by the device and V alone.
struct DrawPlan {
    int gathered;
    bool spills;
    int64_t bytes;
};
DrawPlan plan_of(const Context& c, int64_t V) {
    constexpr int64_t kEntry = 16;  // weight, key, id
    const int64_t base = sizeof(sample::DrawShared);
    for (int gathered : {8192, 4096, 2048, 1024}) {
        const int64_t bytes = base + gathered * kEntry + slice_floats(c, V) * 4;
        if (bytes <= c.smem_block) {
            return {gathered, false, bytes};
        }
    }
    return {4096, true, base + 4096 * kEntry};
}

int64_t draw_scratch(void* self, const SampleDraw& p) noexcept {
    const Context& c = context(self);
    const int64_t V = dim(p.logits, 1);
    return plan_of(c, V).spills
               ? rows_of(p.logits) * sample::ranks_of(c.arch) * slice_floats(c, V) * 4
               : 0;
}

template <class A>
cudaError_t launch_clusters(const Context& c, void (*kernel)(A), const A& a, int64_t M,
                            size_t bytes, cudaStream_t stream) {
    if (bytes > 0) {
        const cudaError_t result = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                        cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                        static_cast<int>(bytes));
        if (result != cudaSuccess) {
            return result;
        }
    }
    const auto ranks = static_cast<unsigned>(sample::ranks_of(c.arch));
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = ranks;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(M) * ranks);
    config.blockDim = dim3(sample::kThreads);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = ranks > 1 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, a);
}

Status draw(void* self, const SampleDraw& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p, draw_scratch(self, p)));
    const int64_t M = rows_of(p.logits);
    if (M == 0) {
        return {};
    }
    const Context& c = context(self);
    const int64_t V = p.logits.shape[1];
    const DrawPlan plan = plan_of(c, V);
    sample::DrawArgs a{};
    a.logits = p.logits.as<const float>();
    a.stride = p.logits.stride[0];
    a.M = static_cast<int>(M);
    a.V = V;
    a.params = p.params.as<const SampleParams>();
    if (!p.seen.null()) {
        a.seen = p.seen.as<const uint16_t>();
        a.slots = static_cast<int>(p.seen.shape[0]);
        a.row = p.rows.row.as<const RowInfo>();
        a.seg = p.rows.seg.as<const SegInfo>();
        a.T = static_cast<int>(p.rows.T);
        a.S = static_cast<int>(p.rows.S);
        a.index = p.index.as<const int>();
        a.ids = p.ids.as<const int>();
    }
    if (!p.bias_begin.null()) {
        a.bias_begin = p.bias_begin.as<const int>();
        a.bias_ids = p.bias_ids.as<const int>();
        a.bias_add = p.bias_add.as<const float>();
        a.biases = static_cast<int>(p.bias_ids.shape[0]);
    }
    if (!p.mask.null()) {
        a.mask = p.mask.as<const uint32_t>();
        a.mask_stride = p.mask.stride[0];
    }
    a.forbid = p.forbid.as<const uint32_t>();
    a.token = p.token.as<int>();
    a.logprob = p.logprob.as<float>();
    a.spill = plan.spills ? p.scratch.as<float>() : nullptr;
    a.gathered = plan.gathered;
    a.faults = c.faults;
    return cuda_status(launch_clusters(c, &sample::draw_kernel, a, M,
                                       static_cast<size_t>(plan.bytes), native(stream)),
                       SampleDraw::kOp.name);
}

Status logprobs(void* self, const SampleLogprobs& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t M = rows_of(p.logits);
    if (M == 0) {
        return {};
    }
    sample::LogprobArgs a{};
    a.logits = p.logits.as<const float>();
    a.stride = p.logits.stride[0];
    a.M = static_cast<int>(M);
    a.V = p.logits.shape[1];
    a.token = p.token.as<const int>();
    a.n = static_cast<int>(p.ids.shape[1]);
    a.ids = p.ids.as<int>();
    a.ids_stride = p.ids.stride[0];
    a.lp = p.lp.as<float>();
    a.lp_stride = p.lp.stride[0];
    a.token_lp = p.token_lp.as<float>();
    return cuda_status(
        launch_clusters(context(self), &sample::logprobs_kernel, a, M, 0, native(stream)),
        SampleLogprobs::kOp.name);
}

Status count(void* self, const SampleCount& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t n = rows_of(p.token);
    if (n == 0 || p.seen.elements() == 0) {
        return {};
    }
    sample::CountArgs a{};
    a.token = p.token.as<const int>();
    a.slot = p.slot.as<const int>();
    a.n = static_cast<int>(n);
    a.seen = p.seen.as<uint16_t>();
    a.slots = static_cast<int>(p.seen.shape[0]);
    a.V = p.seen.shape[1];
    a.faults = context(self).faults;
    sample::count_kernel<<<static_cast<unsigned>((n + 127) / 128), 128, 0, native(stream)>>>(a);
    return launched(SampleCount::kOp.name);
}

}  // namespace

void add_sample(Registry& r) {
    r.add<SampleDraw>(&draw, Exactness::invariant, kBoth, &draw_scratch);
    r.add<SampleLogprobs>(&logprobs, Exactness::invariant);
    r.add<SampleCount>(&count, Exactness::exact);
}

}  // namespace tenon::cuda
