// SPDX-License-Identifier: MIT
// rope.angles: cosines and sines of a group's positions, full range reduction in f64.
#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/registry.h"
#include "common/rows.h"
#include "tenon/ops/rope.h"

namespace tenon::cpu {

namespace {

Status angles(void* self, const RopeAngles& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = p.rows.T;
    const int64_t half = rows_of(p.freq);
    share(context(self), T, 8, half * 50, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const RowInfo& row = row_infos(p.rows)[t];
            float* cs = p.cs.row<float>(t);
            if (row.slot < 0) {
                std::fill(cs, cs + 2 * half, 0.0f);
                continue;
            }
            const auto position = static_cast<float>(row.pos / p.step * p.step);
            for (int64_t i = 0; i < half; ++i) {
                const float angle = position * p.freq.as<float>()[i];
                cs[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
                cs[half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
            }
        }
    });
    return {};
}

}  // namespace

void add_rope_angles(Registry& r) {
    r.add<RopeAngles>(&angles, Exactness::invariant);
}

}  // namespace tenon::cpu
