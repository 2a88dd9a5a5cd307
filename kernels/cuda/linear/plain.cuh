// SPDX-License-Identifier: MIT
// y = x w^T + bias with a plain weight, for few rows: the weight is read once for eight rows.
#pragma once

#include "common/device.cuh"

namespace tenon::cuda {

constexpr int kPlainThreads = 128;
constexpr int kPlainRows = 8;

template <class X, class W, class Y>
struct PlainArgs {
    const X* x;
    int64_t x_stride;
    const W* w;
    const void* bias;  ///< null: none
    bool bias_bf16;
    Y* y;
    int64_t y_stride;
    int64_t T, N, K;
};

/// `kWide` consecutive elements as f32.
template <int kWide, class E>
__device__ inline void load_wide(const E* from, float (&x)[kWide]) {
    if constexpr (kWide == 8) {
        load8(from, x);
    } else {
        x[0] = load1(from);
    }
}

/// Columns n0.. (kCols of them) of rows t0.. (kRows of them), by a block of kPlainThreads. Thread k
/// sums columns k * kWide + i * kPlainThreads * kWide of K in order by fma; lanes by a tree, warps
/// ascending, then the bias. The split depends on K alone, so a row has the same bits at every T.
template <int kRows, int kCols, int kWide, class X, class W, class Y>
__device__ inline void plain_block(const PlainArgs<X, W, Y>& a, int64_t n0, int64_t t0) {
    __shared__ float partial[kPlainThreads / 32][kRows * kCols];
    float acc[kRows][kCols] = {};
    for (int64_t k = threadIdx.x * kWide; k < a.K; k += kPlainThreads * kWide) {
        float w[kCols][kWide];
#pragma unroll
        for (int c = 0; c < kCols; ++c) {
            const int64_t n = n0 + c < a.N ? n0 + c : a.N - 1;
            load_wide<kWide>(a.w + n * a.K + k, w[c]);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (t0 + r < a.T) {
                float x[kWide];
                load_wide<kWide>(a.x + (t0 + r) * a.x_stride + k, x);
#pragma unroll
                for (int c = 0; c < kCols; ++c) {
#pragma unroll
                    for (int e = 0; e < kWide; ++e) {
                        acc[r][c] = fmaf(x[e], w[c][e], acc[r][c]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        if (t0 + r < a.T) {
#pragma unroll
            for (int c = 0; c < kCols; ++c) {
                const float sum = warp_sum(acc[r][c]);
                if (threadIdx.x % 32 == 0) {
                    partial[threadIdx.x / 32][r * kCols + c] = sum;
                }
            }
        }
    }
    __syncthreads();
    const int r = static_cast<int>(threadIdx.x) / kCols;
    const int64_t n = n0 + threadIdx.x % kCols;
    if (r >= kRows || t0 + r >= a.T || n >= a.N) {
        return;
    }
    float sum = partial[0][threadIdx.x];
#pragma unroll
    for (int warp = 1; warp < kPlainThreads / 32; ++warp) {
        sum += partial[warp][threadIdx.x];
    }
    if (a.bias != nullptr) {
        sum += a.bias_bf16 ? to_f32(static_cast<const uint16_t*>(a.bias)[n])
                           : static_cast<const float*>(a.bias)[n];
    }
    store1(a.y + (t0 + r) * a.y_stride + n, sum);
}

// blockIdx.x: kCols columns of y, blockIdx.y: kPlainRows rows.
template <int kCols, int kWide, class X, class W, class Y>
__global__ void __launch_bounds__(kPlainThreads) plain_kernel(PlainArgs<X, W, Y> a) {
    plain_block<kPlainRows, kCols, kWide>(a, int64_t{blockIdx.x} * kCols,
                                          int64_t{blockIdx.y} * kPlainRows);
}

}  // namespace tenon::cuda
