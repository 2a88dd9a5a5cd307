// SPDX-License-Identifier: MIT
// The draft ops: rows, step, pick, confidence, and the fused markov.
#include <algorithm>

#include "common/registry.h"
#include "draft/rows.cuh"
#include "draft/step.cuh"
#include "kernels/shared/token_checks.h"

namespace tenon::cuda {

namespace {

using kernels::check_op;
using kernels::dim;
using kernels::rows_of;

// Blocks of a step; each leaves its best of every segment in scratch.
int64_t step_blocks(const Context& c) {
    return int64_t{c.sms} * 3;
}
int64_t parts_bytes(const Context& c, int64_t S) {
    return S == 0 ? 0 : step_blocks(c) * S * static_cast<int64_t>(sizeof(DraftBest));
}

template <int kTiles>
cudaError_t launch_step(const Context& c, const draft::StepArgs& a, cudaStream_t stream) {
    auto* kernel = &draft::step_kernel<kTiles>;
    const int bytes = kTiles * 8 * draft::embed_pitch(a.r);
    const cudaError_t result =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (result != cudaSuccess) {
        return result;
    }
    launch_dependent(kernel, static_cast<unsigned>(step_blocks(c)), draft::kThreads,
                     static_cast<size_t>(bytes), stream, a);
    return cudaGetLastError();
}

cudaError_t enqueue_step(const Context& c, draft::StepArgs a, cudaStream_t stream) {
    if (!a.embed_bf16 || !a.head_bf16 || a.r % 32 != 0) {
        const dim3 grid(static_cast<unsigned>(step_blocks(c)), static_cast<unsigned>(a.S));
        launch_dependent(&draft::step_plain_kernel, grid, draft::kThreads, 0, stream, a);
        return cudaGetLastError();
    }
    const int S = a.S;
    for (a.first = 0; a.first < S; a.first += 32) {  // a column of an mma does not see the others
        a.S = std::min(32, S - a.first);
        const cudaError_t result = a.S <= 8    ? launch_step<1>(c, a, stream)
                                   : a.S <= 16 ? launch_step<2>(c, a, stream)
                                               : launch_step<4>(c, a, stream);
        if (result != cudaSuccess) {
            return result;
        }
    }
    return cudaSuccess;
}

template <class P>
draft::StepArgs step_args(const Context& c, const P& p) {
    draft::StepArgs a{};
    a.embed = p.embed.data;
    a.head = p.head.data;
    a.embed_bf16 = p.embed.dtype == DType::bf16;
    a.head_bf16 = p.head.dtype == DType::bf16;
    a.embed_rows = p.embed.shape[0];
    a.V = p.head.shape[0];
    a.r = static_cast<int>(p.embed.shape[1]);
    a.forbid = p.forbid.template as<const uint32_t>();
    a.params = p.params.template as<const SampleParams>();
    a.seg = p.rows.seg.template as<const SegInfo>();
    a.S = static_cast<int>(p.rows.S);
    a.S_total = a.S;
    a.parts = p.scratch.template as<DraftBest>();
    a.faults = c.faults;
    return a;
}

draft::PickArgs pick_args(const Context& c, const draft::StepArgs& a) {
    draft::PickArgs p{};
    p.parts = a.parts;
    p.n = static_cast<int>(step_blocks(c));
    p.S = a.S_total;
    return p;
}

void enqueue_pick(const draft::PickArgs& p, cudaStream_t stream) {
    launch_dependent(&draft::pick_kernel, static_cast<unsigned>(p.S), 128, 0, stream, p);
}

Status rows(void*, const DraftRows& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const auto S = static_cast<int>(rows_of(p.slot));
    if (S == 0) {
        return {};
    }
    draft::RowsArgs a{};
    a.decision = p.decision.as<const VerifyDecision>();
    a.window = p.window.seg.as<const SegInfo>();
    a.slot = p.slot.as<const int>();
    a.S = S;
    a.B = p.B;
    a.noise_id = p.noise_id;
    a.ids = p.ids.as<int>();
    a.row = p.row.as<RowInfo>();
    a.seg = p.seg.as<SegInfo>();
    draft::rows_kernel<<<static_cast<unsigned>((S * p.B + 127) / 128), 128, 0, native(stream)>>>(a);
    return launched(DraftRows::kOp.name);
}

int64_t step_scratch(void* self, const DraftStep& p) noexcept {
    return parts_bytes(context(self), p.rows.S);
}

Status step(void* self, const DraftStep& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p, step_scratch(self, p)));
    if (p.rows.S == 0) {
        return {};
    }
    const Context& c = context(self);
    draft::StepArgs a = step_args(c, p);
    a.base = p.base.as<const float>();
    a.base_stride = p.base.stride[0];
    a.prev = p.prev.as<const int>();
    a.prev_stride = p.prev.stride[0];
    a.step = p.step;
    a.vocab_at = p.vocab_at;
    const cudaError_t result = enqueue_step(c, a, native(stream));
    if (result != cudaSuccess) {
        return cuda_status(result, DraftStep::kOp.name);
    }
    draft::PickArgs pick = pick_args(c, a);
    pick.best = p.best.as<DraftBest>();
    enqueue_pick(pick, native(stream));
    return launched(DraftStep::kOp.name);
}

Status pick(void*, const DraftPick& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const auto S = static_cast<int>(dim(p.best, 1));
    if (S == 0) {
        return {};
    }
    draft::PickArgs a{};
    a.parts = p.best.as<const DraftBest>();
    a.n = static_cast<int>(p.best.shape[0]);
    a.S = S;
    a.token = p.token.as<int>();
    a.token_stride = p.token.stride[0];
    a.mirror = p.mirror.as<int>();
    a.mirror_stride = p.mirror.null() ? 0 : p.mirror.stride[0];
    enqueue_pick(a, native(stream));
    return launched(DraftPick::kOp.name);
}

Status confidence(void*, const DraftConfidence& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    draft::ConfidenceArgs a{};
    const int64_t n = p.c.shape[0] * p.c.shape[1];
    if (n == 0) {
        return {};
    }
    a.c = p.c.as<const uint16_t>();
    a.prev = p.prev.as<const int>();
    a.prev_stride = p.prev.stride[0];
    a.embed = p.embed.data;
    a.proj = p.proj.data;
    a.embed_bf16 = p.embed.dtype == DType::bf16;
    a.proj_bf16 = p.proj.dtype == DType::bf16;
    a.embed_rows = p.embed.shape[0];
    a.B = static_cast<int>(p.c.shape[1]);
    a.d = static_cast<int>(p.c.shape[2]);
    a.r = static_cast<int>(p.embed.shape[1]);
    a.out = p.out.as<float>();
    draft::confidence_kernel<<<static_cast<unsigned>(n), 256, 0, native(stream)>>>(a);
    return launched(DraftConfidence::kOp.name);
}

int64_t markov_scratch(void* self, const DraftMarkov& p) noexcept {
    return parts_bytes(context(self), p.rows.S);
}

Status markov(void* self, const DraftMarkov& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p, markov_scratch(self, p)));
    const int64_t B = dim(p.base, 1);
    if (p.rows.S == 0 || B == 0) {
        return {};
    }
    const Context& c = context(self);
    draft::StepArgs a = step_args(c, p);
    a.base_stride = p.base.stride[0];
    for (int64_t i = 0; i < B; ++i) {
        a.base = p.base.as<const float>() + i * p.base.stride[1];
        a.step = static_cast<int>(i);
        a.prev = i == 0 ? p.first.as<const int>() : p.token.as<const int>() + i - 1;
        a.prev_stride = i == 0 ? p.first.stride[0] : p.token.stride[0];
        const cudaError_t result = enqueue_step(c, a, native(stream));
        if (result != cudaSuccess) {
            return cuda_status(result, DraftMarkov::kOp.name);
        }
        draft::PickArgs pick = pick_args(c, a);
        pick.token = p.token.as<int>() + i;
        pick.token_stride = p.token.stride[0];
        if (!p.mirror.null()) {
            pick.mirror = p.mirror.as<int>() + i;
            pick.mirror_stride = p.mirror.stride[0];
        }
        enqueue_pick(pick, native(stream));
    }
    return launched(DraftMarkov::kOp.name);
}

}  // namespace

void add_draft(Registry& r) {
    r.add<DraftRows>(&rows, Exactness::exact);
    r.add<DraftStep>(&step, Exactness::invariant, kBoth, &step_scratch);
    r.add<DraftPick>(&pick, Exactness::exact);
    r.add<DraftConfidence>(&confidence, Exactness::invariant);
    r.add<DraftMarkov>(&markov, Exactness::invariant, kBoth, &markov_scratch);
}

}  // namespace tenon::cuda
