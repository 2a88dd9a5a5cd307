// SPDX-License-Identifier: MIT
// The decoders of codebook mul1.
#include "decoders.h"
#include "kernels/cpu/common/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/quant_exl3/decode_mul1_simd.cc"
#include <hwy/foreach_target.h>

#include "decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::exl3::HWY_NAMESPACE {

DecodeFn mul1_target([[maybe_unused]] int twice_k) {
#if TENON_SIMD
    return decoder_for<Mul1>(twice_k);
#else
    return nullptr;
#endif
}

}  // namespace tenon::exl3::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::exl3 {

HWY_EXPORT(mul1_target);
DecodeFn mul1_decoder(int twice_k) {
    return HWY_DYNAMIC_DISPATCH(mul1_target)(twice_k);
}

}  // namespace tenon::exl3
#endif  // HWY_ONCE
