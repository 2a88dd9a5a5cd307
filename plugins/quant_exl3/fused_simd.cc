// SPDX-License-Identifier: MIT
// The kernels of mul1 that multiply a weight in the register that it was decoded in.
#include "decoders.h"
#include "kernels/cpu/common/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/quant_exl3/fused_simd.cc"
#include <hwy/foreach_target.h>

#include "fused-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::exl3::HWY_NAMESPACE {

const FusedSet* fused_target([[maybe_unused]] int twice_k) {
#if HWY_TARGET == HWY_AVX2
    return fused_for(twice_k);
#else
    return nullptr;
#endif
}

}  // namespace tenon::exl3::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::exl3 {

HWY_EXPORT(fused_target);
const FusedSet* mul1_fused(int twice_k) {
    return HWY_DYNAMIC_DISPATCH(fused_target)(twice_k);
}

}  // namespace tenon::exl3
#endif  // HWY_ONCE
