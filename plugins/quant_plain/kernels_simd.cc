// SPDX-License-Identifier: MIT
// Ordinary matrices with SIMD: weights stay packed in memory and are decoded, exactly, into a panel
// that serves all rows.
#include "kernels.h"

#include "kernels/cpu/common/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/quant_plain/kernels_simd.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/matrix/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::plain::HWY_NAMESPACE {

#if TENON_SIMD

using namespace tenon::packed::HWY_NAMESPACE;  // NOLINT
using packed::kBlock;
namespace hn = hwy::HWY_NAMESPACE;

using DU8 = hn::Rebind<uint8_t, D16>;
using DHalves = hn::Rebind<hwy::float16_t, D16>;
constexpr size_t kPartLanes = hn::MaxLanes(D16());

HWY_INLINE V widen_half(hn::Vec<DU16> bits) {
    return hn::PromoteTo(D16(), hn::BitCast(DHalves(), bits));
}

void decode_bf16(const uint8_t* codes, int64_t rows, float* panel) {
    const auto* from = reinterpret_cast<const uint16_t*>(codes);
    for (int64_t i = 0; i < rows * kBlock; i += 16) {
        store16(load16(from + i), panel + i);
    }
}

void decode_f16(const uint8_t* codes, int64_t rows, float* panel) {
    const auto* from = reinterpret_cast<const uint16_t*>(codes);
    for (int64_t i = 0; i < rows * kBlock; i += static_cast<int64_t>(kPartLanes)) {
        hn::StoreU(widen_half(hn::LoadU(DU16(), from + i)), D16(), panel + i);
    }
}

// Sign bit to the top, the seven others below it.
HWY_INLINE V fp8_value(hn::Vec<DU16> code) {
    const DU16 d;
    const auto sign = hn::ShiftLeft<8>(hn::And(code, hn::Set(d, uint16_t{0x80})));
    const auto rest = hn::ShiftLeft<7>(hn::And(code, hn::Set(d, uint16_t{0x7F})));
    return widen_half(hn::Or(sign, rest));
}

void decode_fp8(const uint8_t* codes, const uint16_t* scales, int64_t rows, float* panel) {
    for (int64_t k0 = 0; k0 < rows; k0 += kScaleGroup, scales += kBlock) {
        const int64_t count = HWY_MIN(kScaleGroup, rows - k0);
        for (int g = 0; g < kGroups; ++g) {
            const F16 scale = load16(scales + 16 * g);
            const uint8_t* from = codes + k0 * kBlock + 16 * g;
            float* to = panel + k0 * kBlock + 16 * g;
            for (int64_t k = 0; k < count; ++k, from += kBlock, to += kBlock) {
                TENON_PARTS {
                    const auto code =
                        hn::PromoteTo(DU16(), hn::LoadU(DU8(), from + i * kPartLanes));
                    hn::StoreU(hn::Mul(fp8_value(code), scale.p[i]), D16(), to + i * kPartLanes);
                }
            }
        }
    }
}

void decode_fp4(const uint8_t* codes, const uint16_t* scales, int64_t rows, float* panel) {
    const DU16 d;
    constexpr int64_t kStrip = kBlock / 2;
    for (int64_t k0 = 0; k0 < rows; k0 += kScaleGroup, scales += kBlock) {
        const int64_t count = HWY_MIN(kScaleGroup, rows - k0);
        for (int g = 0; g < kGroups; g += 2) {
            const F16 scale0 = load16(scales + 16 * g);
            const F16 scale1 = load16(scales + 16 * g + 16);
            const uint8_t* from = codes + k0 * kStrip + 8 * g;
            float* to = panel + k0 * kBlock + 16 * g;
            for (int64_t k = 0; k < count; ++k, from += kStrip, to += kBlock) {
                TENON_PARTS {
                    const size_t at = i * kPartLanes;
                    const auto x = hn::PromoteTo(d, hn::LoadU(DU8(), from + at));
                    const auto low =
                        hn::Or(hn::ShiftLeft<12>(hn::And(x, hn::Set(d, uint16_t{0x08}))),
                               hn::ShiftLeft<9>(hn::And(x, hn::Set(d, uint16_t{0x07}))));
                    const auto high =
                        hn::Or(hn::ShiftLeft<8>(hn::And(x, hn::Set(d, uint16_t{0x80}))),
                               hn::ShiftLeft<5>(hn::And(x, hn::Set(d, uint16_t{0x70}))));
                    hn::StoreU(hn::Mul(widen_half(low), scale0.p[i]), D16(), to + at);
                    hn::StoreU(hn::Mul(widen_half(high), scale1.p[i]), D16(), to + 16 + at);
                }
            }
        }
    }
}

void block(const BlockArgs& a) {
    const int64_t step = panel_rows(a.rows);
    const int64_t stride = a.staged_bytes / static_cast<int64_t>(sizeof(float));
    const auto* x = reinterpret_cast<const float*>(a.staged);
    for (int64_t k = 0; k < a.in; k += step) {
        const int64_t count = HWY_MIN(step, a.in - k);
        const uint8_t* codes = a.codes + k * strip_bytes(a.encoding);
        const int64_t scale_at = k / kScaleGroup * kBlock;
        const float* panel = a.panel;
        switch (a.encoding) {
            case Encoding::f32:
                panel = reinterpret_cast<const float*>(codes);
                break;
            case Encoding::bf16:
                decode_bf16(codes, count, a.panel);
                break;
            case Encoding::f16:
                decode_f16(codes, count, a.panel);
                break;
            case Encoding::fp8:
                decode_fp8(codes, a.scales + scale_at, count, a.panel);
                break;
            case Encoding::fp4:
                decode_fp4(codes, a.scales + scale_at, count, a.panel);
                break;
        }
        multiply_panel(x + k, stride, a.rows, panel, count, k == 0, a.y);
    }
}

const Kernels* kernels() {
    static_assert(kPanelRows % kScaleGroup == 0 && panel_rows(1) % kScaleGroup == 0);
    static constexpr Kernels kKernels{&block, kPanelRows * kBlock};
    return &kKernels;
}

#else

const Kernels* kernels() {
    return nullptr;
}

#endif  // TENON_SIMD

}  // namespace tenon::plain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::plain {

HWY_EXPORT(kernels);

const Kernels* simd_kernels() {
    return HWY_DYNAMIC_DISPATCH(kernels)();
}

}  // namespace tenon::plain
#endif  // HWY_ONCE
