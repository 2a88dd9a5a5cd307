// SPDX-License-Identifier: MIT
// mhc.mix, mhc.collapse and mhc.expand with SIMD.
#include "common/simd_targets.h"
#include "mhc/mix.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhc/mhc_simd.cc"
#include <hwy/foreach_target.h>

#include "common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

#if TENON_SIMD

constexpr int64_t kPiece =
    1024;  // columns of fn that stay in the first cache level for all rows of a block
constexpr int64_t kBlockRows = 16;
constexpr int64_t kSums = 25;  // 24 dots and the square sum

// 24 dots and the square sum of rows [t0, t1), piece by piece; each row adds its pieces in order.
void mix_block(const MhcMix& p, int64_t t0, int64_t t1) {
    const int64_t n = 4 * p.h.shape[2];
    HWY_ALIGN float sums[kBlockRows][kSums][16];
    for (int64_t r = 0; r < t1 - t0; ++r) {
        for (int64_t m = 0; m < kSums; ++m) {
            store16(zero16(), sums[r][m]);
        }
    }
    for (int64_t first = 0; first < n; first += kPiece) {
        const int64_t last = HWY_MIN(n, first + kPiece);
        for (int64_t r = 0; r < t1 - t0; ++r) {
            const uint16_t* v = p.h.row<const uint16_t>(t0 + r);
            for (int64_t m = 0; m < 24; m += 4) {
                const float* w[4];
                F16 acc[4];
                for (int64_t c = 0; c < 4; ++c) {
                    w[c] = p.fn.row<const float>(m + c);
                    acc[c] = load16(sums[r][m + c]);
                }
                for (int64_t k = first; k < last; k += 16) {
                    const F16 x = load16(v + k);
                    for (int64_t c = 0; c < 4; ++c) {
                        acc[c] = fma16(x, load16(w[c] + k), acc[c]);
                    }
                }
                for (int64_t c = 0; c < 4; ++c) {
                    store16(acc[c], sums[r][m + c]);
                }
            }
            F16 square = load16(sums[r][24]);
            for (int64_t k = first; k < last; k += 16) {
                const F16 x = load16(v + k);
                square = fma16(x, x, square);
            }
            store16(square, sums[r][24]);
        }
    }
    for (int64_t r = 0; r < t1 - t0; ++r) {
        HWY_ALIGN float dots[24];
        for (int64_t m = 0; m < 24; m += 4) {
            hn::StoreU(sum4(load16(sums[r][m]), load16(sums[r][m + 1]), load16(sums[r][m + 2]),
                            load16(sums[r][m + 3])),
                       D4(), dots + m);
        }
        mhc_finish(p, t0 + r, dots, sum1(load16(sums[r][24])) / static_cast<float>(n));
    }
}

Status mix(void* self, const MhcMix& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = p.h.shape[0];
    const int64_t row_ns = 4 * p.h.shape[2] * 24 / 20 + 1000;
    share(context(self), T, kBlockRows, row_ns, [&](int64_t begin, int64_t end, int32_t) HWY_ATTR {
        for (int64_t t = begin; t < end; t += kBlockRows) {
            mix_block(p, t, HWY_MIN(end, t + kBlockRows));
        }
    });
    return {};
}

Status collapse(void* self, const MhcCollapse& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t d = p.h.shape[2];
    share(context(self), p.h.shape[0], 8, d / 2, [&](int64_t begin, int64_t end, int32_t) HWY_ATTR {
        for (int64_t t = begin; t < end; ++t) {
            const uint16_t* h = p.h.row<const uint16_t>(t);
            const float* pre = p.pre.row<const float>(t);
            uint16_t* out = p.out.row<uint16_t>(t);
            for (int64_t i = 0; i < d; i += 16) {
                F16 acc = zero16();
                for (int64_t j = 0; j < 4; ++j) {
                    acc = fma16(set16(pre[j]), load16(h + j * d + i), acc);
                }
                store16(acc, out + i);
            }
        }
    });
    return {};
}

template <class Y>
void expand_rows(const MhcExpand& p, int64_t begin, int64_t end) {
    const int64_t d = p.h.shape[2];
    for (int64_t t = begin; t < end; ++t) {
        const uint16_t* h = p.h.row<const uint16_t>(t);
        const float* post = p.post.row<const float>(t);
        const float* comb = p.comb.row<const float>(t);
        uint16_t* out = p.out.row<uint16_t>(t);
        for (int64_t i = 0; i < d; i += 16) {
            const F16 y = round16(load16(p.y.row<const Y>(t) + i));
            F16 in[4];
            for (int64_t j = 0; j < 4; ++j) {
                in[j] = load16(h + j * d + i);
            }
            for (int64_t k = 0; k < 4; ++k) {
                F16 acc = zero16();
                for (int64_t j = 0; j < 4; ++j) {
                    acc = fma16(set16(comb[j * 4 + k]), in[j], acc);
                }
                store16(fma16(set16(post[k]), y, acc), out + k * d + i);
            }
        }
    }
}

Status expand(void* self, const MhcExpand& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t d = p.h.shape[2];
    const bool bf16 = p.y.dtype == DType::bf16;
    share(context(self), p.h.shape[0], 8, d * 2, [&](int64_t begin, int64_t end, int32_t) HWY_ATTR {
        if (bf16) {
            expand_rows<uint16_t>(p, begin, end);
        } else {
            expand_rows<float>(p, begin, end);
        }
    });
    return {};
}

OpCall<MhcMix> mhc_mix_target() {
    return &mix;
}
OpCall<MhcCollapse> mhc_collapse_target() {
    return &collapse;
}
OpCall<MhcExpand> mhc_expand_target() {
    return &expand;
}
#else
OpCall<MhcMix> mhc_mix_target() {
    return nullptr;
}
OpCall<MhcCollapse> mhc_collapse_target() {
    return nullptr;
}
OpCall<MhcExpand> mhc_expand_target() {
    return nullptr;
}
#endif

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::cpu {

HWY_EXPORT(mhc_mix_target);
HWY_EXPORT(mhc_collapse_target);
HWY_EXPORT(mhc_expand_target);
OpCall<MhcMix> mhc_mix_simd() {
    return HWY_DYNAMIC_DISPATCH(mhc_mix_target)();
}
OpCall<MhcCollapse> mhc_collapse_simd() {
    return HWY_DYNAMIC_DISPATCH(mhc_collapse_target)();
}
OpCall<MhcExpand> mhc_expand_simd() {
    return HWY_DYNAMIC_DISPATCH(mhc_expand_target)();
}

}  // namespace tenon::cpu
#endif  // HWY_ONCE
