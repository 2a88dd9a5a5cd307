// SPDX-License-Identifier: MIT
// draft.step with SIMD: the Markov head is read once for all segments, ids in blocks that threads
// share.
#include "common/simd_targets.h"
#include "draft/step.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draft/step_simd.cc"
#include <hwy/foreach_target.h>

#include "common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

#if TENON_SIMD

constexpr int64_t kBlockIds = 512;  // their head rows stay in cache for all segments

// Scratch: S embedding rows as f32, S StepRows, then S bests for each worker.
struct StepScratch {
    float* e;
    StepRow* rows;
    DraftBest* best;  // [workers, S]
};

StepScratch carve(const DraftStep& p, int64_t S, int64_t r) {
    uint8_t* base = p.scratch.as<uint8_t>();
    StepScratch s{};
    s.e = reinterpret_cast<float*>(base);
    s.rows = reinterpret_cast<StepRow*>(base + S * r * 4 + (S * r % 2) * 4);
    s.best = reinterpret_cast<DraftBest*>(s.rows + S);
    return s;
}

template <class W>
void offer_block(const DraftStep& p, const StepScratch& s, int64_t v0, int64_t v1,
                 DraftBest* best) {
    const int64_t S = p.rows.S;
    const int64_t r = p.embed.shape[1];
    for (int64_t i = 0; i < S; ++i) {
        if (!s.rows[i].live) {
            continue;
        }
        NoiseSource noise = s.rows[i].noise();
        for (int64_t v = v0; v < v1; v += 4) {
            const int64_t count = HWY_MIN(int64_t{4}, v1 - v);
            const W* w[4];
            for (int64_t c = 0; c < 4; ++c) {
                w[c] = p.head.row<const W>(v + HWY_MIN(c, count - 1));
            }
            float dot[4];
            dots<1>(s.e + i * r, r, w, r, dot);
            const float* base = p.base.row<const float>(i) + v;
            for (int64_t c = 0; c < count; ++c) {
                step_offer(p, s.rows[i], noise, v + c, base[c] + dot[c], best[i]);
            }
        }
    }
}

Status step(void* self, const DraftStep& p, Stream&) noexcept {
    Context& ctx = context(self);
    TENON_TRY(check_op(p, draft_step_simd_scratch(self, p)));
    const int64_t S = p.rows.S;
    const int64_t ids = p.base.shape[1];
    const int64_t r = p.embed.shape[1];
    if (S == 0) {
        return {};
    }
    const StepScratch s = carve(p, S, r);
    for (int64_t i = 0; i < S; ++i) {
        s.rows[i] = step_row(ctx, p, i);
        if (s.rows[i].live) {
            for (int64_t k = 0; k < r; ++k) {
                s.e[i * r + k] = p.embed.dtype == DType::bf16
                                     ? bf16_to_f32(p.embed.row<const uint16_t>(s.rows[i].prev)[k])
                                     : p.embed.row<const float>(s.rows[i].prev)[k];
            }
        }
    }
    for (int64_t i = 0; i < S * ctx.workers; ++i) {
        s.best[i] = {kNoLogit, -1};
    }
    const int64_t blocks = (ids + kBlockIds - 1) / kBlockIds;
    share(ctx, blocks, 1, kBlockIds * S * (r / 16 + 4),
          [&](int64_t begin, int64_t end, int32_t worker) HWY_ATTR {
              for (int64_t b = begin; b < end; ++b) {
                  const int64_t last = HWY_MIN(ids, (b + 1) * kBlockIds);
                  if (p.head.dtype == DType::bf16) {
                      offer_block<uint16_t>(p, s, b * kBlockIds, last, s.best + worker * S);
                  } else {
                      offer_block<float>(p, s, b * kBlockIds, last, s.best + worker * S);
                  }
              }
          });
    for (int64_t i = 0; i < S; ++i) {
        DraftBest best{kNoLogit, -1};
        for (int32_t w = 0; w < ctx.workers; ++w) {
            if (better(s.best[w * S + i], best)) {
                best = s.best[w * S + i];
            }
        }
        p.best.as<DraftBest>()[i] = best;
    }
    return {};
}

OpCall<DraftStep> draft_step_target() {
    return &step;
}
#else
OpCall<DraftStep> draft_step_target() {
    return nullptr;
}
#endif

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::cpu {

HWY_EXPORT(draft_step_target);
OpCall<DraftStep> draft_step_simd() {
    return HWY_DYNAMIC_DISPATCH(draft_step_target)();
}

int64_t draft_step_simd_scratch(void* self, const DraftStep& p) noexcept {
    const int64_t S = p.rows.S;
    const int64_t r = dim(p.embed, 1);
    return S * (r + 1) * 4 + S * static_cast<int64_t>(sizeof(StepRow)) +
           S * context(self).workers * static_cast<int64_t>(sizeof(DraftBest));
}

}  // namespace tenon::cpu
#endif  // HWY_ONCE
