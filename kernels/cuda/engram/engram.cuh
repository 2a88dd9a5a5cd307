// SPDX-License-Identifier: MIT
// Engram rows to bf16, and the gate that adds them to the streams.
#pragma once

#include "common/device.cuh"
#include "tenon/numeric.h"
#include "tenon/ops/rows.h"

namespace tenon::cuda {

struct DecodeArgs {
    const uint8_t* values;  ///< device or pinned
    const uint8_t* scales;
    int64_t value_row, value_column, scale_row, scale_column;  ///< bytes
    const RowInfo* rows;
    int64_t T, c, w;
    uint16_t* out;
};

// One thread eight values; a dead row's source is not read.
__global__ void engram_decode_kernel(DecodeArgs a) {
    const int64_t per_row = a.c * a.w / 8;
    const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
    if (at >= a.T * per_row) {
        return;
    }
    const int64_t t = at / per_row;
    const int64_t i = at % per_row * 8;
    const int64_t column = i / a.w;
    const int64_t j = i % a.w;
    const RowInfo row = a.rows[t];
    float y[8] = {};
    if (row.slot >= 0 && (row.flags & kRowImage) == 0) {
        const uint2 v = *reinterpret_cast<const uint2*>(a.values + t * a.value_row +
                                                        column * a.value_column + j);
        const float s = e8m0_to_f32(a.scales[t * a.scale_row + column * a.scale_column + j / 32]);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const uint32_t word = e < 4 ? v.x : v.y;
            y[e] = e4m3_to_f32(static_cast<uint8_t>(word >> (8 * (e % 4)))) * s;
        }
    }
    store8(a.out + t * a.c * a.w + i, y);
}

constexpr int kGateThreads = 256;

/// g from the three sums of one stream (M 4.4), f32 steps as in kernels/cpu/engram/gate.h.
__device__ inline float gate_value(float dot, float mean_h, float mean_key, float eps, int64_t d) {
    const float rstd = 1.0f / sqrtf(mean_h + eps) * (1.0f / sqrtf(mean_key + eps));
    const float z = dot * rstd * (1.0f / sqrtf(static_cast<float>(d)));
    const float size = sqrtf(fmaxf(fabsf(z), 1e-6f));
    return 1.0f / (1.0f + expf(-copysignf(size, z)));
}

template <class K, class W>
struct GateArgs {
    const K* kv;                 ///< [parts, T, 5 d]
    int64_t parts, part_stride;  ///< ranks, added ascending; elements from one to the next
    uint16_t* h;                 ///< [T, 4, d]
    const W* q_weight;           ///< [4, d]
    const W* k_weight;
    const RowInfo* rows;
    int64_t d;
    float eps;
};

/// Eight columns of key or value, added over ranks; the sum is rounded to bf16 by the caller.
template <class K>
__device__ inline void load_parts8(const K* from, int64_t parts, int64_t stride, float (&x)[8]) {
    load8(from, x);
    for (int64_t w = 1; w < parts; ++w) {
        float more[8];
        load8(from + w * stride, more);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            x[e] += more[e];
        }
    }
}

// blockIdx.x: row, blockIdx.y: stream. Sums of eight in f32, in index order, then in f64; threads
// in a fixed order: a row's bits depend on nothing else.
template <class K, class W>
__global__ void __launch_bounds__(kGateThreads) engram_gate_kernel(GateArgs<K, W> a) {
    __shared__ double partial[3][kGateThreads / 32];
    const int64_t t = blockIdx.x;
    const int64_t j = blockIdx.y;
    const RowInfo row = a.rows[t];
    if (row.slot < 0 || (row.flags & kRowImage) != 0) {
        return;
    }
    const K* key = a.kv + t * 5 * a.d + j * a.d;
    const K* value = a.kv + t * 5 * a.d + 4 * a.d;
    uint16_t* h = a.h + (t * 4 + j) * a.d;
    double dot = 0;
    double square_h = 0;
    double square_key = 0;
    for (int64_t i = threadIdx.x * 8; i < a.d; i += kGateThreads * 8) {
        float k8[8];
        float h8[8];
        float q8[8];
        float w8[8];
        load_parts8(key + i, a.parts, a.part_stride, k8);
        load8(h + i, h8);
        load8(a.q_weight + j * a.d + i, q8);
        load8(a.k_weight + j * a.d + i, w8);
        float sums[3] = {};
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const float k = round_to_bf16(k8[e]);
            sums[0] = fmaf(h8[e] * q8[e], w8[e] * k, sums[0]);
            sums[1] = fmaf(h8[e], h8[e], sums[1]);
            sums[2] = fmaf(k, k, sums[2]);
        }
        dot += static_cast<double>(sums[0]);
        square_h += static_cast<double>(sums[1]);
        square_key += static_cast<double>(sums[2]);
    }
    dot = block_sum<double, kGateThreads / 32>(dot, partial[0]);
    square_h = block_sum<double, kGateThreads / 32>(square_h, partial[1]);
    square_key = block_sum<double, kGateThreads / 32>(square_key, partial[2]);
    const auto n = static_cast<double>(a.d);
    const float g = gate_value(static_cast<float>(dot), static_cast<float>(square_h / n),
                               static_cast<float>(square_key / n), a.eps, a.d);
    for (int64_t i = threadIdx.x * 8; i < a.d; i += kGateThreads * 8) {
        float v8[8];
        float h8[8];
        load_parts8(value + i, a.parts, a.part_stride, v8);
        load8(h + i, h8);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            h8[e] = h8[e] + g * round_to_bf16(v8[e]);
        }
        store8(h + i, h8);
    }
}

}  // namespace tenon::cuda
