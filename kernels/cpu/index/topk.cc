// SPDX-License-Identifier: MIT
// index.blocks and index.topk: exact choice of candidate blocks and rows from scores.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/check.h"
#include "common/registry.h"
#include "common/rows.h"
#include "index/select.h"
#include "kernels/shared/token_checks.h"

namespace tenon::cpu {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// 0..n-1, then -1.
int32_t all_of(int64_t n, int32_t* out, int64_t capacity) {
    std::iota(out, out + n, 0);
    std::fill(out + n, out + capacity, -1);
    return static_cast<int32_t>(n);
}

Status blocks(void* self, const IndexBlocks& p, Stream&) noexcept {
    const int64_t T = p.rows.T;
    const int64_t N = dim(p.scores, 1);
    const int64_t C = dim(p.cand, 1);
    TENON_TRY(check_op(p));
    Context& ctx = context(self);
    share(ctx, T, 1, N + 200, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const RowInfo& row = row_infos(p.rows)[t];
            int32_t* out = p.cand.row<int32_t>(t);
            int64_t visible = row.slot < 0 ? 0 : visible_rows(row.pos, p.ratio);
            const int64_t count = (visible + p.block - 1) / p.block;
            if (count <= C) {
                p.count.as<int32_t>()[t] = all_of(count, out, C);
                continue;
            }
            if (visible > N) {
                ctx.fault();
                visible = N;
            }
            const float* scores = p.scores.row<float>(t);
            Largest<kMaxKept> best(C);
            for (int64_t b = 0; b * p.block < visible; ++b) {
                const int64_t last = std::min(visible, (b + 1) * p.block);
                float top = -kInf;
                for (int64_t i = b * p.block; i < last; ++i) {
                    top = scores[i] > top ? scores[i] : top;  // a NaN compares false
                }
                best.offer(last == visible ? kInf : top, static_cast<int32_t>(b));
            }
            p.count.as<int32_t>()[t] = best.take(out, C);
        }
    });
    return {};
}

// Rows that the candidates of a row can name, in column order.
template <class Offer>
void for_candidates(const IndexTopk& p, int64_t t, int64_t visible, Offer&& offer) {
    const int64_t N = p.scores.shape[1];
    const int32_t* cand = p.cand.row<const int32_t>(t);
    for (int64_t b = 0; b < p.cand.shape[1]; ++b) {
        if (cand[b] < 0) {
            continue;
        }
        for (int64_t i = 0; i < p.block; ++i) {
            const int64_t g = int64_t{cand[b]} * p.block + i;
            const int64_t column = b * p.block + i;
            if (g < visible && column < N) {
                offer(column, static_cast<int32_t>(g));
            }
        }
    }
}

Status topk(void* self, const IndexTopk& p, Stream&) noexcept {
    const int64_t T = p.rows.T;
    const int64_t N = dim(p.scores, 1);
    const int64_t K = dim(p.sel, 1);
    const bool inside = !p.cand.null() && T > 0;
    TENON_TRY(check_op(p));
    Context& ctx = context(self);
    share(ctx, T, 1, N + 200, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const RowInfo& row = row_infos(p.rows)[t];
            int32_t* out = p.sel.row<int32_t>(t);
            int32_t* count = p.count.as<int32_t>() + t;
            const int64_t visible = row.slot < 0 ? 0 : visible_rows(row.pos, p.ratio);
            const float* scores = p.scores.row<float>(t);
            if (visible <= K && (!inside || visible <= p.cand.shape[1] * p.block)) {
                *count = all_of(visible, out, K);
                continue;
            }
            Largest<kMaxKept> best(K);
            if (inside) {
                for_candidates(p, t, visible,
                               [&](int64_t column, int32_t g) { best.offer(scores[column], g); });
            } else {
                if (visible > N) {
                    ctx.fault();
                }
                for (int64_t j = 0; j < std::min(visible, N); ++j) {
                    best.offer(scores[j], static_cast<int32_t>(j));
                }
            }
            *count = best.take(out, K);
        }
    });
    return {};
}

}  // namespace

void add_index_topk(Registry& r) {
    r.add<IndexBlocks>(&blocks, Exactness::exact);
    r.add<IndexTopk>(&topk, Exactness::exact);
}

}  // namespace tenon::cpu
