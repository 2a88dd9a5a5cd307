// SPDX-License-Identifier: MIT
// index.score, reference: exact sums of 32-column groups, added in f32 group by group, then head by
// head.
#include "index/score.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/registry.h"
#include "kvq/quantise.h"

namespace tenon::cpu {

namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

float dot(const uint16_t* q, const float* key, int64_t Di) {
    float acc = 0;
    for (int64_t g = 0; g < Di; g += kIndexGroup) {
        double sum = 0;
        for (int64_t i = g; i < g + kIndexGroup; ++i) {
            sum += static_cast<double>(bf16_to_f32(q[i])) * key[i];
        }
        acc = g == 0 ? static_cast<float>(sum) : acc + static_cast<float>(sum);
    }
    return acc;
}

Status score(void* self, const IndexScore& p, Stream&) noexcept {
    ScoreShape s{};
    TENON_TRY(check_op(p, &s));
    Context& ctx = context(self);
    share(ctx, s.T, 1, s.N * s.Hi * s.Di, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const RowInfo& row = row_infos(p.rows)[t];
            float* out = p.out.row<float>(t);
            std::fill(out, out + s.N, kMinusInf);
            if (row.slot < 0) {
                continue;
            }
            const int64_t visible = visible_rows(row.pos, p.keys.ratio);
            for (int64_t j = 0; j < s.N; ++j) {
                const int64_t g = score_column(p, s, t, j);
                if (g < 0 || g >= visible) {
                    continue;
                }
                const StoredRow stored = page_row(p.keys, row.slot, g);
                if (stored.codes == nullptr) {
                    ctx.fault();
                    continue;
                }
                float key[256];
                unpack_row(p.keys.format, stored.codes, stored.scales, s.Di, key);
                float acc = 0;
                for (int64_t h = 0; h < s.Hi; ++h) {
                    const float w = bf16_to_f32(p.w.row<uint16_t>(t)[h]) * p.w_scale;
                    const float d = dot(p.iq.row<uint16_t>(t) + h * s.Di, key, s.Di);
                    acc = std::fma(w, d > 0 ? d : 0.0f, acc);
                }
                out[j] = acc;
            }
        }
    });
    return {};
}

}  // namespace

void add_index_score(Registry& r) {
    r.add_best<IndexScore>(&score, index_score_simd(), Exactness::invariant);
}

}  // namespace tenon::cpu
