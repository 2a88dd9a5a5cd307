// SPDX-License-Identifier: MIT
// compress.pool: a latent for each pair of positions, and the raw ring that carries an open pair to
// the next call.
#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/registry.h"
#include "common/rows.h"
#include "tenon/ops/compress.h"

namespace tenon::cpu {

namespace {

constexpr int32_t kStoredRows = 32;

void pool_pair(const float* a0, const float* s0, const float* a1, const float* s1, int64_t D,
               uint16_t* out) {
    for (int64_t i = 0; i < D; ++i) {
        const float top = std::max(s0[i], s1[i]);
        const float e0 = std::exp(s0[i] - top);
        const float e1 = std::exp(s1[i] - top);
        const float sum = e0 + e1;
        out[i] = f32_to_bf16(a0[i] * (e0 / sum) + a1[i] * (e1 / sum));
    }
}

Status pool(void* self, const CompressPool& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = p.rows.T;
    const int64_t D = dim(p.a, 1);
    Context& ctx = context(self);
    const auto raw = [&](int64_t slot, int64_t pos) {
        return p.raw.as<float>() + (slot * kRawPositions + pos % kRawPositions) * 2 * D;
    };
    share(ctx, T, 1, D * 12, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            uint16_t* out = p.out.row<uint16_t>(t);
            std::fill(out, out + D, uint16_t{0});
            const RowInfo& row = row_infos(p.rows)[t];
            if (row.slot < 0 || row.pos % 2 == 0) {
                continue;
            }
            const SegInfo* seg = segment_of(ctx, p.rows, row, t);
            if (seg == nullptr) {
                continue;
            }
            if (t > seg->row0) {
                pool_pair(p.a.row<float>(t - 1), p.s.row<float>(t - 1), p.a.row<float>(t),
                          p.s.row<float>(t), D, out);
            } else if (row.slot < p.raw.shape[0]) {
                const float* pair = raw(row.slot, row.pos - 1);
                pool_pair(pair, pair + D, p.a.row<float>(t), p.s.row<float>(t), D, out);
            } else {
                ctx.fault();
            }
        }
    });
    for (int64_t i = 0; i < p.rows.S; ++i) {
        const SegInfo& seg = seg_infos(p.rows)[i];
        if (!segment_usable(ctx, seg, T, p.raw.shape[0])) {
            continue;
        }
        for (int32_t j = std::max(0, seg.rows - kStoredRows); j < seg.rows; ++j) {
            float* dst = raw(seg.slot, seg.pos0 + j);
            std::copy_n(p.a.row<float>(seg.row0 + j), D, dst);
            std::copy_n(p.s.row<float>(seg.row0 + j), D, dst + D);
        }
    }
    return {};
}

}  // namespace

void add_compress_pool(Registry& r) {
    r.add<CompressPool>(&pool, Exactness::invariant);
}

}  // namespace tenon::cpu
