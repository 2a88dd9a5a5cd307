// SPDX-License-Identifier: MIT
// Whether this CPU can run the SIMD versions, and their name.
#pragma once

namespace tenon::cpu {

/// True with Highway and a target that has fused multiply-add (AVX2 and above, NEON).
bool simd_usable();
/// "cpu-avx3", "cpu-avx2", "cpu-neon".
const char* simd_arch();

}  // namespace tenon::cpu
