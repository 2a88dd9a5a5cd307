// SPDX-License-Identifier: MIT
// mhc.collapse, mhc.expand and mhc.mean, reference: the fma forms of ops.md 3.2 as they stand.
#include <cmath>

#include "common/elements.h"
#include "common/registry.h"
#include "mhc/mix.h"

namespace tenon::cpu {

namespace {

Status collapse(void* self, const MhcCollapse& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t d = p.h.shape[2];
    share(context(self), p.h.shape[0], 1, d * 4, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const uint16_t* h = p.h.row<uint16_t>(t);
            const float* pre = p.pre.row<float>(t);
            for (int64_t i = 0; i < d; ++i) {
                float acc = 0;
                for (int64_t j = 0; j < 4; ++j) {
                    acc = std::fma(pre[j], bf16_to_f32(h[j * d + i]), acc);
                }
                p.out.row<uint16_t>(t)[i] = f32_to_bf16(acc);
            }
        }
    });
    return {};
}

Status expand(void* self, const MhcExpand& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t d = p.h.shape[2];
    share(context(self), p.h.shape[0], 1, d * 20, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const Source y(p.y, t);
            const uint16_t* h = p.h.row<uint16_t>(t);
            const float* post = p.post.row<float>(t);
            const float* comb = p.comb.row<float>(t);
            uint16_t* out = p.out.row<uint16_t>(t);
            for (int64_t i = 0; i < d; ++i) {
                const float yi = round_bf16(y[i]);
                float in[4];
                for (int64_t j = 0; j < 4; ++j) {
                    in[j] = bf16_to_f32(h[j * d + i]);
                }
                for (int64_t k = 0; k < 4; ++k) {
                    float acc = 0;
                    for (int64_t j = 0; j < 4; ++j) {
                        acc = std::fma(comb[j * 4 + k], in[j], acc);
                    }
                    out[k * d + i] = f32_to_bf16(std::fma(post[k], yi, acc));
                }
            }
        }
    });
    return {};
}

Status mean(void* self, const MhcMean& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = rows_of(p.h);
    const int64_t d = dim(p.h, 2);
    share(context(self), T, 1, d * 2, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const uint16_t* h = p.h.row<uint16_t>(t);
            uint16_t* out = p.out.row<uint16_t>(t);
            for (int64_t i = 0; i < d; ++i) {
                const float sum = bf16_to_f32(h[i]) + bf16_to_f32(h[d + i]) +
                                  bf16_to_f32(h[2 * d + i]) + bf16_to_f32(h[3 * d + i]);
                out[i] = f32_to_bf16(sum * 0.25f);
            }
        }
    });
    return {};
}

}  // namespace

void add_mhc_streams(Registry& r) {
    r.add_best<MhcCollapse>(&collapse, mhc_collapse_simd(), Exactness::invariant);
    r.add_best<MhcExpand>(&expand, mhc_expand_simd(), Exactness::invariant);
    r.add<MhcMean>(&mean, Exactness::invariant);
}

}  // namespace tenon::cpu
