// SPDX-License-Identifier: MIT
// Quantising and unpacking whole rows, four values a thread.
#pragma once

#include "kvq/quantise.cuh"

namespace tenon::cuda {

constexpr int kKvqThreads = 128;

struct QuantizeArgs {
    const uint16_t* x;
    int64_t x_stride;
    uint16_t* values;  ///< null: not wanted
    int64_t values_stride;
    uint8_t* codes;  ///< null: not wanted
    uint8_t* scales;
    int64_t n, code_row, scale_row;
};

// One block a row. Each thread reads its values before it writes them, so `values` may be x.
template <RowFormat kFormat>
__global__ void quantize_kernel(QuantizeArgs a) {
    const int64_t t = blockIdx.x;
    const uint16_t* x = a.x + t * a.x_stride;
    for (int64_t i = threadIdx.x * 4; i < a.n; i += kKvqThreads * 4) {
        const Quantised4 q = quantise4<kFormat>(*reinterpret_cast<const uint2*>(x + i));
        if (a.codes != nullptr) {
            store_packed<kFormat>(q, i, a.codes + t * a.code_row, a.scales + t * a.scale_row);
        }
        if (a.values != nullptr) {
            *reinterpret_cast<uint2*>(a.values + t * a.values_stride + i) = q.values;
        }
    }
}

template <RowFormat kFormat>
__global__ void dequantize_kernel(const uint8_t* codes, const uint8_t* scales, int64_t values,
                                  uint16_t* out) {
    constexpr int kGroup = kvq_lanes(kFormat) * 4;
    const int64_t i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * 4;
    if (i >= values) {
        return;
    }
    const uint8_t scale = scales[i / kGroup];
    const float s = kFormat == RowFormat::q4e ? e4m3_to_f32(scale) : e8m0_to_f32(scale);
    float y[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if constexpr (kFormat == RowFormat::q8) {
            y[j] = e4m3_to_f32(codes[i + j]) * s;
        } else {
            y[j] = e2m1_value(codes[(i + j) / 2] >> (4 * (j & 1)) & 15u) * s;
        }
    }
    *reinterpret_cast<uint2*>(out + i) = make_uint2(to_bf16x2(y[0], y[1]), to_bf16x2(y[2], y[3]));
}

}  // namespace tenon::cuda
