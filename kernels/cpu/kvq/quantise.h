// SPDX-License-Identifier: MIT
// The quantisers of cached rows (M 3.4), row by row: what kvq, window.store and cache.store share.
#pragma once

#include <cstdint>

#include "tenon/ops/state.h"

namespace tenon::cpu {

/// The two forms of a quantised row; reference and SIMD give equal bits. Formats q8, q4u and q4e.
struct RowQuantiser {
    /// Packs one row of n bf16 values; n % 32 = 0 (q4e: % 16).
    void (*pack)(RowFormat format, const uint16_t* x, int64_t n, uint8_t* codes, uint8_t* scales);
    /// The quantised values of one row as bf16; values may be x.
    void (*values)(RowFormat format, const uint16_t* x, int64_t n, uint16_t* values);
};
const RowQuantiser& reference_quantiser();
/// Null where this CPU has no SIMD version.
const RowQuantiser* simd_quantiser();
/// What an op's version quantises with: kSimd only where simd_quantiser() is not null.
template <bool kSimd>
const RowQuantiser& row_quantiser() {
    return kSimd ? *simd_quantiser() : reference_quantiser();
}
/// Code and value of a group's scale, from its largest magnitude.
uint8_t quantiser_scale(RowFormat format, float amax);
float quantiser_scale_value(RowFormat format, uint8_t scale);
/// The values of a stored row; exact in bf16 and in f32.
void unpack_row(RowFormat format, const uint8_t* codes, const uint8_t* scales, int64_t n,
                float* out);
/// Stores a row quantised to `values` in `format`: packed, or the quantised values as bf16.
void store_row(const RowQuantiser& quantiser, RowFormat format, RowFormat values, const uint16_t* x,
               int64_t n, uint8_t* codes, uint8_t* scales);

}  // namespace tenon::cpu
