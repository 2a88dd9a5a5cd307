// SPDX-License-Identifier: MIT
// EXL3 with SIMD: rows are rotated once, a block of 128 columns is decoded piece by piece and
// multiplied with all rows, then rotated back. The decoders are sources of their own (decoders.h).
#include <algorithm>

#include "decoders.h"
#include "kernels/cpu/common/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/quant_exl3/kernels_simd.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/matrix/panel-inl.h"

namespace tenon::exl3 {

DecodeFn decoder(int twice_k, Codebook codebook);
const FusedSet* fused_set(int twice_k, Codebook codebook);

}  // namespace tenon::exl3

HWY_BEFORE_NAMESPACE();
namespace tenon::exl3::HWY_NAMESPACE {

#if TENON_SIMD

using namespace tenon::packed::HWY_NAMESPACE;  // NOLINT
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kPartLanes = hn::MaxLanes(D16());  // of one hardware vector

// (x * suh) H per block of 128, in f32. Channels from `in` on are zero.
template <class X>
void stage_row(const X* x, int64_t in, int64_t k, const float* suh, float* out) {
    const Signs signs = load_signs();
    for (int64_t b = 0; b < k; b += kRotation) {
        X tail[kRotation] = {};
        const X* from = x + b;
        if (b + kRotation > in) {
            std::copy_n(from, std::max<int64_t>(0, in - b), tail);
            from = tail;
        }
        F16 v[kGroups];
        for (int g = 0; g < kGroups; ++g) {
            v[g] = mul16(load16(from + 16 * g), load16(suh + b + 16 * g));
        }
        rotate(v, signs);
        for (int g = 0; g < kGroups; ++g) {
            store16(v[g], out + b + 16 * g);
        }
    }
}

void stage(const packed::RowsIn& x, int64_t rows, int64_t in, int64_t k, const float* suh,
           std::byte* staged, int64_t staged_bytes) {
    for (int64_t r = 0; r < rows; ++r) {
        auto* out = reinterpret_cast<float*>(staged + r * staged_bytes);
        if (x.dtype == DType::bf16) {
            stage_row(x.bf16_row(r), in, k, suh, out);
        } else {
            stage_row(x.f32_row(r), in, k, suh, out);
        }
    }
}

// Two vectors in lane order hold 32 columns: each half of a vector is 8 columns of one tile.
HWY_INLINE void store_columns(const F16& low, const F16& high, float* y) {
#if HWY_MAX_BYTES >= 64
    const hn::CappedTag<float, 8> d8;
    hn::StoreU(hn::LowerHalf(d8, low.p[0]), d8, y);
    hn::StoreU(hn::LowerHalf(d8, high.p[0]), d8, y + 8);
    hn::StoreU(hn::UpperHalf(d8, low.p[0]), d8, y + 16);
    hn::StoreU(hn::UpperHalf(d8, high.p[0]), d8, y + 24);
#else
    constexpr size_t kHalf = kParts / 2;
    for (size_t i = 0; i < kHalf; ++i) {
        const size_t at = i * kPartLanes;
        hn::StoreU(low.p[i], D16(), y + at);
        hn::StoreU(high.p[i], D16(), y + 8 + at);
        hn::StoreU(low.p[kHalf + i], D16(), y + 16 + at);
        hn::StoreU(high.p[kHalf + i], D16(), y + 24 + at);
    }
#endif
}

// From sums in lane order to finished columns, in place.
void finish_rows(int64_t rows, const float* scale, const float* bias, float* y) {
    const Signs signs = load_signs();
    for (int64_t r = 0; r < rows; ++r, y += kRotation) {
        F16 v[kGroups];
        for (int g = 0; g < kGroups; ++g) {
            v[g] = load16(y + 16 * g);
        }
        rotate(v, signs);
        for (int g = 0; g < kGroups; ++g) {
            v[g] = fma16(v[g], load16(scale + 16 * g), load16(bias + 16 * g));
        }
        for (int g = 0; g < kGroups; g += 2) {
            store_columns(v[g], v[g + 1], y + 16 * g);
        }
    }
}

void block(const BlockArgs& a) {
    const int64_t step = panel_rows(a.rows);
    const int64_t stride = a.staged_bytes / static_cast<int64_t>(sizeof(float));
    const auto* x = reinterpret_cast<const float*>(a.staged);
    if (a.fused != nullptr && a.rows <= kFusedRows) {
        a.fused->rows[a.rows - 1](a.words, a.k / kTile, x, stride, a.y);
        return finish_rows(a.rows, a.scale, a.bias, a.y);
    }
    for (int64_t k = 0; k < a.k; k += step) {
        a.decode(a.words + k / kTile * strip_words(a.twice_k), step / kTile, a.panel);
        multiply_panel(x + k, stride, a.rows, a.panel, step, k == 0, a.y);
    }
    finish_rows(a.rows, a.scale, a.bias, a.y);
}

const Kernels* kernels() {
    static constexpr Kernels kKernels{&decoder, &fused_set, &stage, &block, kPanelRows * kRotation};
    return &kKernels;
}

#else

const Kernels* kernels() {
    return nullptr;
}

#endif  // TENON_SIMD

}  // namespace tenon::exl3::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::exl3 {

DecodeFn decoder(int twice_k, Codebook codebook) {
    switch (codebook) {
        case Codebook::inst3:
            return inst3_decoder(twice_k);
        case Codebook::mcg:
            return mcg_decoder(twice_k);
        case Codebook::mul1:
            break;
    }
    return mul1_decoder(twice_k);
}

const FusedSet* fused_set(int twice_k, Codebook codebook) {
    return codebook == Codebook::mul1 ? mul1_fused(twice_k) : nullptr;
}

HWY_EXPORT(kernels);

const Kernels* simd_kernels() {
    return HWY_DYNAMIC_DISPATCH(kernels)();
}

}  // namespace tenon::exl3
#endif  // HWY_ONCE
