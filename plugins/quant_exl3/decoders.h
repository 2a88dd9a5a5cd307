// SPDX-License-Identifier: MIT
// The decoders of the SIMD kernels, one source each: their templates are what takes long to
// compile.
#pragma once

#include "kernels.h"

namespace tenon::exl3 {

/// The decoder of a rate for this CPU; null for a rate that the codebook does not have, and on a
/// CPU without SIMD kernels.
DecodeFn inst3_decoder(int twice_k);
DecodeFn mcg_decoder(int twice_k);
DecodeFn mul1_decoder(int twice_k);

/// The kernels in registers of a rate of mul1; null on a CPU that has none.
const FusedSet* mul1_fused(int twice_k);

}  // namespace tenon::exl3
