// SPDX-License-Identifier: MIT
// Which SIMD target this CPU gets.
#include "common/simd.h"

#include "common/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd.cc"
#include <hwy/foreach_target.h>

#include "common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

const char* target() {
#if !TENON_SIMD
    return nullptr;
#elif HWY_MAX_BYTES >= 64
    return "cpu-avx3";
#elif HWY_MAX_BYTES >= 32
    return "cpu-avx2";
#else
    return "cpu-neon";
#endif
}

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::cpu {

HWY_EXPORT(target);

bool simd_usable() {
    return HWY_DYNAMIC_DISPATCH(target)() != nullptr;
}
const char* simd_arch() {
    return simd_usable() ? HWY_DYNAMIC_DISPATCH(target)() : "cpu-reference";
}

}  // namespace tenon::cpu
#endif  // HWY_ONCE
