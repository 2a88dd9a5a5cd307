// SPDX-License-Identifier: MIT
// A row, scaled, rotated and rounded to halves: what prefill multiplies.
#pragma once

#include "rotate.cuh"

namespace tenon::exl3::cuda {

/// The power of two that a row is multiplied by before it is rounded, and its inverse. It brings
/// the largest input of the rotation to [2^7, 2^8), so that sums of 128 stay below 2^15; a row's
/// own values decide.
struct RowScale {
    float factor, inverse;
};
__device__ __forceinline__ RowScale row_scale(unsigned int most) {
    const unsigned int found = most >> 23;
    // Rows of zeros, and rows that are not finite, keep their values.
    const unsigned int exponent = found == 0 || found == 255 ? 134 : max(found, 8u);
    return {__uint_as_float((261 - exponent) << 23), __uint_as_float((exponent - 7) << 23)};
}

/// Rotates a row of `k` values with all threads of a block. load(at, v): four values from column
/// `at` on; store(at, low, high): the same columns as halves. Returns what undoes the row's factor.
/// `shared_most` is 0 for all threads at the call.
template <class Load, class Store>
__device__ __forceinline__ float rotate_row(int k, const uint16_t* suh, unsigned int* shared_most,
                                            Load&& load, Store&& store) {
    const int lane = threadIdx.x % 32;
    const int first = static_cast<int>(threadIdx.x / 32) * kBlock + 4 * lane;
    const int step = static_cast<int>(blockDim.x / 32) * kBlock;
    unsigned int most = 0;
    for (int at = first; at < k; at += step) {
        float v[4];
        load(at, v);
        scale_by(suh + at, v);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            most = max(most, __float_as_uint(v[i]) & 0x7FFFFFFFu);
        }
    }
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (lane == 0) {
        atomicMax(shared_most, most);
    }
    __syncthreads();
    const RowScale scale = row_scale(*shared_most);
    for (int at = first; at < k; at += step) {
        float v[4];
        load(at, v);
        scale_by(suh + at, v);
        rotate128(v, lane);
        const __half2 low =
            __floats2half2_rn(__fmul_rn(v[0], scale.factor), __fmul_rn(v[1], scale.factor));
        const __half2 high =
            __floats2half2_rn(__fmul_rn(v[2], scale.factor), __fmul_rn(v[3], scale.factor));
        store(at, *reinterpret_cast<const uint32_t*>(&low),
              *reinterpret_cast<const uint32_t*>(&high));
    }
    return scale.inverse;
}

}  // namespace tenon::exl3::cuda
