// SPDX-License-Identifier: MIT
// mhc.mix, reference: dots and mean square in f64, everything after them in f32 (M 3.2).
#include "mhc/mix.h"

#include <algorithm>
#include <cmath>

#include "common/registry.h"
#include "tenon/numeric.h"

namespace tenon::cpu {

namespace {

float sigmoid(float x) {
    return 1.0f / (1.0f + std::exp(-x));
}

void normalise_columns(float (&a)[4][4], float eps) {
    for (int k = 0; k < 4; ++k) {
        const float sum = a[0][k] + a[1][k] + a[2][k] + a[3][k] + eps;
        for (int j = 0; j < 4; ++j) {
            a[j][k] /= sum;
        }
    }
}

void normalise_rows(float (&a)[4][4], float eps) {
    for (int j = 0; j < 4; ++j) {
        const float sum = a[j][0] + a[j][1] + a[j][2] + a[j][3] + eps;
        for (int k = 0; k < 4; ++k) {
            a[j][k] /= sum;
        }
    }
}

Status mix(void* self, const MhcMix& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t n = 4 * p.h.shape[2];
    share(context(self), p.h.shape[0], 1, n * 24, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const uint16_t* v = p.h.row<uint16_t>(t);
            double square = 0;
            double sum[24] = {};
            for (int64_t i = 0; i < n; ++i) {
                const double x = bf16_to_f32(v[i]);
                square += x * x;
                for (int64_t m = 0; m < 24; ++m) {
                    sum[m] += x * p.fn.row<float>(m)[i];
                }
            }
            float dots[24];
            std::transform(sum, sum + 24, dots, [](double x) { return static_cast<float>(x); });
            mhc_finish(p, t, dots, static_cast<float>(square / static_cast<double>(n)));
        }
    });
    return {};
}

}  // namespace

void mhc_finish(const MhcMix& p, int64_t t, const float* dots, float mean_square) {
    const float rs = 1.0f / std::sqrt(mean_square + p.eps);
    const float* scale = p.scale.as<float>();
    const float* base = p.base.as<float>();
    float* pre = p.pre.row<float>(t);
    float* post = p.post.row<float>(t);
    for (int j = 0; j < 4; ++j) {
        pre[j] = sigmoid(dots[j] * rs * scale[0] + base[j]) + p.hc_eps;
        post[j] = 2.0f * sigmoid(dots[4 + j] * rs * scale[1] + base[4 + j]);
    }
    float a[4][4];
    for (int j = 0; j < 4; ++j) {
        for (int k = 0; k < 4; ++k) {
            a[j][k] = dots[8 + 4 * j + k] * rs * scale[2] + base[8 + 4 * j + k];
        }
        const float top = std::max(std::max(a[j][0], a[j][1]), std::max(a[j][2], a[j][3]));
        float sum = 0;
        for (float& x : a[j]) {
            x = std::exp(x - top);
            sum += x;
        }
        for (float& x : a[j]) {
            x = x / sum + p.hc_eps;
        }
    }
    normalise_columns(a, p.hc_eps);
    for (int32_t i = 1; i < p.iters; ++i) {
        normalise_rows(a, p.hc_eps);
        normalise_columns(a, p.hc_eps);
    }
    std::copy(&a[0][0], &a[0][0] + 16, p.comb.row<float>(t));
}

void add_mhc_mix(Registry& r) {
    r.add_best<MhcMix>(&mix, mhc_mix_simd(), Exactness::invariant);
}

}  // namespace tenon::cpu
