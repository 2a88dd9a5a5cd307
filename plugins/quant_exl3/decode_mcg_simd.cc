// SPDX-License-Identifier: MIT
// The decoders of codebook mcg.
#include "decoders.h"
#include "kernels/cpu/common/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/quant_exl3/decode_mcg_simd.cc"
#include <hwy/foreach_target.h>

#include "decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::exl3::HWY_NAMESPACE {

DecodeFn mcg_target([[maybe_unused]] int twice_k) {
#if TENON_SIMD
    return decoder_for<Mcg>(twice_k);
#else
    return nullptr;
#endif
}

}  // namespace tenon::exl3::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::exl3 {

HWY_EXPORT(mcg_target);
DecodeFn mcg_decoder(int twice_k) {
    return HWY_DYNAMIC_DISPATCH(mcg_target)(twice_k);
}

}  // namespace tenon::exl3
#endif  // HWY_ONCE
