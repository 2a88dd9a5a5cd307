// SPDX-License-Identifier: MIT
// The vision tower's elementwise steps, one thread an element pair of positions i of [rows, n].
#pragma once

#include "common/device.cuh"

namespace tenon::cuda {

__global__ void add_kernel(const uint16_t* a, const uint16_t* b, uint16_t* out, int64_t n) {
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
         i += int64_t{gridDim.x} * blockDim.x) {
        out[i] = to_bf16(to_f32(a[i]) + to_f32(b[i]));
    }
}

// n columns of `out`; gate_up has 2n.
__global__ void silu_mul_kernel(const uint16_t* gate_up, uint16_t* out, int64_t rows, int64_t n) {
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < rows * n;
         i += int64_t{gridDim.x} * blockDim.x) {
        const uint16_t* row = gate_up + i / n * 2 * n;
        const float z = to_f32(row[i % n]);
        const float silu = round_to_bf16(z / (1.0f + expf(-z)));
        out[i] = to_bf16(silu * to_f32(row[n + i % n]));
    }
}

__global__ void gelu_kernel(const uint16_t* x, uint16_t* out, int64_t n) {
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
         i += int64_t{gridDim.x} * blockDim.x) {
        const float z = to_f32(x[i]);
        // erfc keeps the relative accuracy of 1 + erf for negative z.
        out[i] = to_bf16(0.5f * z * erfcf(-z * 0.70710678118654752440f));
    }
}

}  // namespace tenon::cuda
