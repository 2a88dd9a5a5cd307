// SPDX-License-Identifier: MIT
// The quantisers of cached rows (M 3.4), row by row: what kvq, window.store and cache.store share.
#pragma once

#include <cstdint>

#include "tenon/ops/state.h"

namespace tenon::cpu {

/// Packs one row of n bf16 values; n % 32 = 0 (q4e: % 16).
void pack_row(RowFormat format, const uint16_t* x, int64_t n, uint8_t* codes, uint8_t* scales);
/// The quantised values of one row as bf16; values may be x.
void quantise_row(RowFormat format, const uint16_t* x, int64_t n, uint16_t* values);
/// The values of a stored row; exact in bf16 and in f32.
void unpack_row(RowFormat format, const uint8_t* codes, const uint8_t* scales, int64_t n,
                float* out);
/// Stores a row quantised by `quantiser` in `format`: packed, or the quantised values as bf16.
void store_row(RowFormat format, RowFormat quantiser, const uint16_t* x, int64_t n, uint8_t* codes,
               uint8_t* scales);

}  // namespace tenon::cpu
