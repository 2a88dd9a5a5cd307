// SPDX-License-Identifier: MIT
// The SIMD kernels of ordinary matrices, chosen once for this CPU.
#pragma once

#include <cstddef>

#include "tensors.h"

namespace tenon::plain {

/// Packed form of 128 output columns: per input k the 128 encoded elements side by side. Formats
/// with scales have, per 32 inputs, 128 bf16 scales; a scale carries the power of two that a code
/// read as fp16 lacks, so that (fp16 value) * (scale) is the weight, exactly.
///
/// fp4: byte 16 g + l of an input's 64 holds column 32 g + l in its low half, 32 g + 16 + l in its
/// high half.
constexpr int64_t strip_bytes(Encoding e) {
    return row_bytes(e, packed::kBlock);
}

/// fp8 code << 7 is an fp16 with the exponent bias 15 instead of 7; an fp4 code << 9 has 15 for 1.
constexpr int kFp8ScaleShift = 8;
constexpr int kFp4ScaleShift = 14;

struct BlockArgs {
    Encoding encoding;
    const uint8_t* codes;    ///< [in][strip_bytes] of this block
    const uint16_t* scales;  ///< bf16 [ceil(in / 32)][128] or null
    int64_t in;
    const std::byte* staged;
    int64_t staged_bytes;
    int64_t rows;
    float* y;
    float* panel;
};

struct Kernels {
    void (*block)(const BlockArgs& args);
    int64_t panel_floats;  ///< scratch of `block`
};

/// Null if this CPU (or this build) has none: the reference form is used then.
const Kernels* simd_kernels();

}  // namespace tenon::plain
