// SPDX-License-Identifier: MIT
// Whole rows by index, 16 bytes a thread.
#pragma once

#include "common/device.cuh"

namespace tenon::cuda {

/// Pitches and widths in units of 16 bytes.
struct RowCopy {
    const uint4* x;
    uint4* out;
    int64_t x_pitch, out_pitch, width, rows;
};

// blockIdx.x: output row m; the block's threads stride over its width. out[m] = x[index[m]].
__global__ void gather_kernel(RowCopy c, const int32_t* index, unsigned long long* faults) {
    const int64_t m = blockIdx.x;
    const int32_t t = index[m];
    const bool valid = t >= 0 && t < c.rows;
    if (!valid && t != -1 && threadIdx.x == 0 && blockIdx.y == 0) {
        fault(faults);
    }
    for (int64_t i = blockIdx.y * int64_t{blockDim.x} + threadIdx.x; i < c.width;
         i += int64_t{gridDim.y} * blockDim.x) {
        c.out[m * c.out_pitch + i] = valid ? c.x[t * c.x_pitch + i] : make_uint4(0, 0, 0, 0);
    }
}

// blockIdx.x: input row m. out[index[m]] = x[m]; `rows` counts the rows of out.
__global__ void scatter_kernel(RowCopy c, const int32_t* index, unsigned long long* faults) {
    const int64_t m = blockIdx.x;
    const int32_t t = index[m];
    if (t < 0 || t >= c.rows) {
        if (t != -1 && threadIdx.x == 0 && blockIdx.y == 0) {
            fault(faults);
        }
        return;
    }
    for (int64_t i = blockIdx.y * int64_t{blockDim.x} + threadIdx.x; i < c.width;
         i += int64_t{gridDim.y} * blockDim.x) {
        c.out[t * c.out_pitch + i] = c.x[m * c.x_pitch + i];
    }
}

}  // namespace tenon::cuda
