// SPDX-License-Identifier: MIT
// linear.plain, reference: f64 dot, bias, one rounding to f32 (and from there to bf16).
#include "linear/plain.h"

#include "common/elements.h"
#include "common/registry.h"

namespace tenon::cpu {

namespace {

Status plain(void* self, const LinearPlain& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t K = p.x.shape[1];
    const int64_t N = p.w.shape[0];
    share(context(self), p.x.shape[0], 1, K * N, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const Source x(p.x, t);
            const Sink y(p.y, t);
            for (int64_t n = 0; n < N; ++n) {
                const Source w(p.w, n);
                double sum = p.bias.null() ? 0.0 : static_cast<double>(Source(p.bias, 0)[n]);
                for (int64_t k = 0; k < K; ++k) {
                    sum += static_cast<double>(x[k]) * w[k];
                }
                y.set(n, static_cast<float>(sum));
            }
        }
    });
    return {};
}

}  // namespace

void add_linear_plain(Registry& r) {
    r.add_best<LinearPlain>(&plain, linear_plain_simd(), Exactness::invariant);
}

}  // namespace tenon::cpu
