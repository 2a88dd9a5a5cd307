// SPDX-License-Identifier: MIT
// linear.plain with SIMD: tiles of rows and four weight rows; a weight row is read once for all
// rows of a tile.
#include "common/elements.h"
#include "common/simd_targets.h"
#include "linear/plain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linear/plain_simd.cc"
#include <hwy/foreach_target.h>

#include "common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

#if TENON_SIMD

constexpr int kTileRows =
    HWY_MAX_BYTES >= 64 ? 4 : 2;  // 16 accumulators of 16 lanes, or as many as fit
constexpr int64_t kRowBlock = 64;
constexpr int64_t kColumnBlock = 64;

template <class X, class W>
struct Tiles {
    const LinearPlain& p;

    void store(int64_t t, int64_t rows, int64_t n, int64_t columns, const float* y) const {
        for (int64_t r = 0; r < rows; ++r) {
            const Sink out(p.y, t + r);
            for (int64_t c = 0; c < columns; ++c) {
                const float bias = p.bias.null() ? 0.0f : Source(p.bias, 0)[n + c];
                out.set(n + c, p.bias.null() ? y[r * 4 + c] : y[r * 4 + c] + bias);
            }
        }
    }
    void block(int64_t t0, int64_t t1, int64_t n0, int64_t n1) const {
        const int64_t K = p.x.shape[1];
        for (int64_t n = n0; n < n1; n += 4) {
            const int64_t columns = HWY_MIN(int64_t{4}, n1 - n);
            const W* w[4];
            for (int64_t c = 0; c < 4; ++c) {
                w[c] = p.w.row<const W>(n + HWY_MIN(c, columns - 1));
            }
            int64_t t = t0;
            float y[kTileRows * 4];
            for (; t + kTileRows <= t1; t += kTileRows) {
                dots<kTileRows>(p.x.row<const X>(t), p.x.stride[0], w, K, y);
                store(t, kTileRows, n, columns, y);
            }
            for (; t < t1; ++t) {
                dots<1>(p.x.row<const X>(t), p.x.stride[0], w, K, y);
                store(t, 1, n, columns, y);
            }
        }
    }
    void all(Context& c) const {
        const int64_t T = p.x.shape[0];
        const int64_t N = p.w.shape[0];
        const int64_t row_blocks = (T + kRowBlock - 1) / kRowBlock;
        const int64_t column_blocks = (N + kColumnBlock - 1) / kColumnBlock;
        const int64_t unit_ns =
            HWY_MIN(T, kRowBlock) * HWY_MIN(N, kColumnBlock) * p.x.shape[1] / 16 + 1;
        share(c, row_blocks * column_blocks, 1, unit_ns,
              [&](int64_t begin, int64_t end, int32_t) HWY_ATTR {
                  for (int64_t u = begin; u < end; ++u) {
                      const int64_t t = u / column_blocks * kRowBlock;
                      const int64_t n = u % column_blocks * kColumnBlock;
                      block(t, HWY_MIN(T, t + kRowBlock), n, HWY_MIN(N, n + kColumnBlock));
                  }
              });
    }
};

Status plain(void* self, const LinearPlain& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    Context& c = context(self);
    const bool x16 = p.x.dtype == DType::bf16;
    const bool w16 = p.w.dtype == DType::bf16;
    if (x16 && w16) {
        Tiles<uint16_t, uint16_t>{p}.all(c);
    } else if (x16) {
        Tiles<uint16_t, float>{p}.all(c);
    } else if (w16) {
        Tiles<float, uint16_t>{p}.all(c);
    } else {
        Tiles<float, float>{p}.all(c);
    }
    return {};
}

OpCall<LinearPlain> linear_plain_target() {
    return &plain;
}
#else
OpCall<LinearPlain> linear_plain_target() {
    return nullptr;
}
#endif

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::cpu {

HWY_EXPORT(linear_plain_target);
OpCall<LinearPlain> linear_plain_simd() {
    return HWY_DYNAMIC_DISPATCH(linear_plain_target)();
}

}  // namespace tenon::cpu
#endif  // HWY_ONCE
