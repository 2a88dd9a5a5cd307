// SPDX-License-Identifier: MIT
// Which Highway targets are compiled. Include before any Highway header.
//
// Without fused multiply-add the reference runs instead, so the SSE targets would be dead code;
// scalable vectors have no fixed lane layout (common/simd-inl.h), and AVX3_DL adds nothing that
// these kernels use.
#pragma once

#define HWY_DISABLED_TARGETS \
    (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
