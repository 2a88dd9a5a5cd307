// SPDX-License-Identifier: MIT
// What happens to sums of a product before they are y.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "dense.h"

namespace tenon::gemm::cuda {

/// Columns column, column + 1 of a row of y; `paired`: rows are aligned for two values at once.
__device__ __forceinline__ void store_pair(const Job& job, bool paired, int64_t row, int column,
                                           float a, float b) {
    const int64_t at = row * job.y_stride + column;
    if (paired && column + 1 < job.out) {
        if (job.y_is_f32 != 0) {
            *reinterpret_cast<float2*>(static_cast<float*>(job.y) + at) = make_float2(a, b);
        } else {
            *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(job.y) + at) =
                __floats2bfloat162_rn(a, b);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (column + i < job.out) {
            const float v = i == 0 ? a : b;
            if (job.y_is_f32 != 0) {
                static_cast<float*>(job.y)[at + i] = v;
            } else {
                static_cast<__nv_bfloat16*>(job.y)[at + i] = __float2bfloat16_rn(v);
            }
        }
    }
}

__device__ __forceinline__ bool stores_pairs(const Job& job) {
    return job.y_stride % 2 == 0 &&
           reinterpret_cast<uintptr_t>(job.y) % (job.y_is_f32 != 0 ? 8 : 4) == 0;
}

/// Scales of columns column, column + 1 (even), with the factor of both rotations.
__device__ __forceinline__ float2 column_scales(const Job& job, int column) {
    if (job.column_scale == nullptr) {
        return make_float2(1.0f, 1.0f);
    }
    const float2 s = __half22float2(*reinterpret_cast<const __half2*>(job.column_scale + column));
    return make_float2(s.x * 0x1p-7f, s.y * 0x1p-7f);
}

__device__ __forceinline__ float bias_of(const Job& job, int column) {
    return job.bias != nullptr && column < job.out ? job.bias[column] : 0.0f;
}

__device__ __forceinline__ float finish(const Job& job, float sum, float scale, float bias) {
    const float v = __fmul_rn(sum, scale);
    return job.bias != nullptr ? __fadd_rn(v, bias) : v;
}

}  // namespace tenon::gemm::cuda
