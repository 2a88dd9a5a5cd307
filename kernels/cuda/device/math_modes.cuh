// SPDX-License-Identifier: MIT
// The probe kernel of check_math_modes.
#pragma once

#include <cuda_runtime.h>

namespace tenon::cuda {

struct MathModes {
    float subnormal;   ///< 2^-127 + 2^-127
    float quotient;    ///< 1 / 3
    float root;        ///< sqrt(2)
    float contracted;  ///< (1 + 2^-12) * (1 + 2^-12) - (1 + 2^-11), products rounded: 0
    float fused;       ///< the same by fma: 2^-24
};

// Inputs come from memory, so that the compiler cannot fold.
__global__ void math_modes_kernel(const float* in, MathModes* out) {
    out->subnormal = in[0] + in[0];
    out->quotient = in[1] / in[2];
    out->root = sqrtf(in[3]);
    out->contracted = in[4] * in[4] + in[5];
    out->fused = fmaf(in[4], in[4], in[5]);
}

}  // namespace tenon::cuda
