// SPDX-License-Identifier: MIT
// norm.rms, reference: the mean in f64, then r = x * rstd and w * r in f32, one rounding at out.
#include "norm/rms.h"

#include <cmath>

#include "common/elements.h"
#include "common/registry.h"

namespace tenon::cpu {

namespace {

Status rms(void* self, const NormRms& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t n = p.x.shape[1];
    share(context(self), p.x.shape[0], 1, n * 2, [&](int64_t begin, int64_t end, int32_t) {
        const Source w(p.weight, 0);
        for (int64_t t = begin; t < end; ++t) {
            const Source x(p.x, t);
            const Sink out(p.out, t);
            double sum = 0;
            for (int64_t i = 0; i < n; ++i) {
                sum += static_cast<double>(x[i]) * x[i];
            }
            const auto mean = static_cast<float>(sum / static_cast<double>(n));
            const float rstd = 1.0f / std::sqrt(mean + p.eps);
            for (int64_t i = 0; i < n; ++i) {
                const float r = x[i] * rstd;
                out.set(i, w[i] * r);
            }
        }
    });
    return {};
}

}  // namespace

void add_norm_rms(Registry& r) {
    r.add_best<NormRms>(&rms, norm_rms_simd(), Exactness::invariant);
}

}  // namespace tenon::cpu
