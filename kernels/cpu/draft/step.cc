// SPDX-License-Identifier: MIT
// draft.step, reference: f64 dots of the Markov head, one id after the other; and draft.pick.
#include "draft/step.h"

#include <algorithm>

#include "common/elements.h"
#include "common/registry.h"

namespace tenon::cpu {

StepRow step_row(Context& c, const DraftStep& p, int64_t s) {
    StepRow row;
    const SegInfo& seg = seg_infos(p.rows)[s];
    if (seg.slot < 0) {
        return row;
    }
    row.prev = p.prev.as<const int32_t>()[s * p.prev.stride[0]];
    if (row.prev < 0 || row.prev >= p.embed.shape[0]) {
        c.fault();
        return row;
    }
    row.live = true;
    row.pos = seg.pos0 + p.step + 1;
    if (!p.params.null()) {
        row.temperature = p.params.as<const SampleParams>()[s].temperature;
        row.seed = p.params.as<const SampleParams>()[s].seed;
    }
    return row;
}

namespace {

Status step(void* self, const DraftStep& p, Stream&) noexcept {
    TENON_TRY(check_op(p, 0));
    Context& ctx = context(self);
    const int64_t V = p.base.shape[1];
    const int64_t r = p.embed.shape[1];
    share(ctx, p.rows.S, 1, V * r, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t s = begin; s < end; ++s) {
            DraftBest best{kNoLogit, -1};
            const StepRow row = step_row(ctx, p, s);
            if (row.live) {
                const Source e(p.embed, row.prev);
                NoiseSource noise = row.noise();
                for (int64_t v = 0; v < V; ++v) {
                    const Source head(p.head, v);
                    double sum = p.base.row<const float>(s)[v];
                    for (int64_t i = 0; i < r; ++i) {
                        sum += static_cast<double>(head[i]) * e[i];
                    }
                    step_offer(p, row, noise, v, static_cast<float>(sum), best);
                }
            }
            p.best.as<DraftBest>()[s] = best;
        }
    });
    return {};
}

Status pick(void*, const DraftPick& p, Stream&) noexcept {
    const int64_t W = rows_of(p.best);
    const int64_t S = dim(p.best, 1);
    TENON_TRY(check_op(p));
    for (int64_t s = 0; s < S; ++s) {
        DraftBest best{kNoLogit, -1};
        for (int64_t w = 0; w < W; ++w) {
            const DraftBest& candidate = p.best.as<const DraftBest>()[w * S + s];
            if (better(candidate, best)) {
                best = candidate;
            }
        }
        p.token.as<int32_t>()[s * p.token.stride[0]] = best.id;
        if (!p.mirror.null()) {
            p.mirror.as<int32_t>()[s * p.mirror.stride[0]] = best.id;
        }
    }
    return {};
}

}  // namespace

void add_draft_step(Registry& r) {
    const OpCall<DraftStep> simd = draft_step_simd();
    r.add_best<DraftStep>(&step, simd, Exactness::invariant,
                          r.simd() && simd != nullptr ? &draft_step_simd_scratch : nullptr);
    r.add<DraftPick>(&pick, Exactness::exact);
}

}  // namespace tenon::cpu
