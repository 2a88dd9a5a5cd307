// SPDX-License-Identifier: MIT
// RMS norm, one block a row. Each thread squares its elements in index order, eight at a time in
// f32 and these sums in f64; the block adds threads in a fixed order. So a row's bits depend on its
// n elements alone, and neither large nor many elements lose the sum.
#pragma once

#include "common/device.cuh"

namespace tenon::cuda {

constexpr int kNormThreads = 256;

/// 1 / sqrt(mean + eps) of the row's squares.
__device__ inline float norm_factor(double sum, int64_t n, float eps) {
    const float mean = static_cast<float>(sum / static_cast<double>(n));
    return 1.0f / sqrtf(mean + eps);
}

/// Rows of n % 8 = 0 elements; strides in elements. In place allowed.
template <class X, class W, class Y>
__global__ void __launch_bounds__(kNormThreads)
    rms_kernel(const X* x, int64_t x_stride, const W* weight, Y* out, int64_t out_stride, int64_t n,
               float eps) {
    __shared__ double partial[kNormThreads / 32];
    x += blockIdx.x * x_stride;
    out += blockIdx.x * out_stride;
    double sum = 0;
    for (int64_t i = threadIdx.x * 8; i < n; i += kNormThreads * 8) {
        float v[8];
        load8(x + i, v);
        float square = 0;
#pragma unroll
        for (float e : v) {
            square = fmaf(e, e, square);
        }
        sum += static_cast<double>(square);
    }
    sum = block_sum<double, kNormThreads / 32>(sum, partial);
    const float factor = norm_factor(sum, n, eps);
    for (int64_t i = threadIdx.x * 8; i < n; i += kNormThreads * 8) {
        float v[8];
        float w[8];
        load8(x + i, v);
        load8(weight + i, w);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            v[e] = w[e] * (v[e] * factor);
        }
        store8(out + i, v);
    }
}

/// Any n.
template <class X, class W, class Y>
__global__ void __launch_bounds__(kNormThreads)
    rms_any_kernel(const X* x, int64_t x_stride, const W* weight, Y* out, int64_t out_stride,
                   int64_t n, float eps) {
    __shared__ double partial[kNormThreads / 32];
    x += blockIdx.x * x_stride;
    out += blockIdx.x * out_stride;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += kNormThreads) {
        const float v = load1(x + i);
        sum += static_cast<double>(v) * v;
    }
    sum = block_sum<double, kNormThreads / 32>(sum, partial);
    const float factor = norm_factor(sum, n, eps);
    for (int64_t i = threadIdx.x; i < n; i += kNormThreads) {
        store1(out + i, load1(weight + i) * (load1(x + i) * factor));
    }
}

}  // namespace tenon::cuda
