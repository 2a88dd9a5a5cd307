// SPDX-License-Identifier: MIT
// Collapse, expand and mean of the four streams: the fma forms of ops.md 3.2, eight columns a
// thread. Each value has the bits of the CPU reference.
#pragma once

#include "common/device.cuh"

namespace tenon::cuda {

/// acc_i = fma(factor_j, stream j of column i, acc_i) for j ascending, from 0.
__device__ inline void mix_streams(const float (&h)[4][8], const float (&factor)[4],
                                   float (&acc)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        acc[i] = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            acc[i] = fmaf(factor[j], h[j][i], acc[i]);
        }
    }
}

__device__ inline void load_streams(const uint16_t* h, int64_t d, float (&x)[4][8]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        load8(h + j * d, x[j]);
    }
}

/// Row t, columns i..i+7 of expand: y is already rounded to bf16. post and comb: the row's.
__device__ inline void expand8(const float (&h)[4][8], const float (&y)[8], const float* post,
                               const float* comb, float (&out)[4][8]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const float factor[4] = {comb[k], comb[4 + k], comb[8 + k], comb[12 + k]};
        mix_streams(h, factor, out[k]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            out[k][i] = fmaf(post[k], y[i], out[k][i]);
        }
    }
}

// blockIdx.y: row.
[[maybe_unused]] static __global__ void collapse_kernel(const uint16_t* h, const float* pre,
                                                        uint16_t* out, int64_t d) {
    const int64_t i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * 8;
    const int64_t t = blockIdx.y;
    if (i >= d) {
        return;
    }
    float x[4][8];
    float acc[8];
    load_streams(h + t * 4 * d + i, d, x);
    const float factor[4] = {pre[t * 4], pre[t * 4 + 1], pre[t * 4 + 2], pre[t * 4 + 3]};
    mix_streams(x, factor, acc);
    store8(out + t * d + i, acc);
}

// blockIdx.y: row. kParts: y are W partial sums [W, T, d], added in rank order.
template <class Y>
__global__ void expand_kernel(const Y* y, int64_t parts, int64_t part_stride, const uint16_t* h,
                              const float* post, const float* comb, uint16_t* out, int64_t d) {
    const int64_t i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * 8;
    const int64_t t = blockIdx.y;
    if (i >= d) {
        return;
    }
    float x[4][8];
    float y8[8];
    float out8[4][8];
    load_streams(h + t * 4 * d + i, d, x);
    load8(y + t * d + i, y8);
    for (int64_t w = 1; w < parts; ++w) {
        float more[8];
        load8(y + w * part_stride + t * d + i, more);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            y8[e] += more[e];
        }
    }
#pragma unroll
    for (float& e : y8) {
        e = round_to_bf16(e);
    }
    expand8(x, y8, post + t * 4, comb + t * 16, out8);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        store8(out + (t * 4 + k) * d + i, out8[k]);
    }
}

// blockIdx.y: row; any d.
[[maybe_unused]] static __global__ void mean_kernel(const uint16_t* h, uint16_t* out,
                                                    int64_t out_stride, int64_t d) {
    const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
    const int64_t t = blockIdx.y;
    if (i < d) {
        const uint16_t* x = h + t * 4 * d + i;
        const float sum = to_f32(x[0]) + to_f32(x[d]) + to_f32(x[2 * d]) + to_f32(x[3 * d]);
        out[t * out_stride + i] = to_bf16(sum * 0.25f);
    }
}

}  // namespace tenon::cuda
