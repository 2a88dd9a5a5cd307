// SPDX-License-Identifier: MIT
// One table row, or one injected row, into all four streams.
#pragma once

#include "common/device.cuh"

namespace tenon::cuda {

struct EmbedArgs {
    const int32_t* ids;
    const uint4* table;
    int64_t table_rows;
    const uint4* inject;
    const int32_t* inject_index;  ///< null: no injection
    int64_t inject_rows;
    uint4* out;
    float4* pre;    ///< null: not wanted
    int64_t width;  ///< d / 8
};

// One block a row.
__global__ void embed_kernel(EmbedArgs a, unsigned long long* faults) {
    const int64_t t = blockIdx.x;
    const int32_t id = a.ids[t];
    const uint4* src = id >= 0 && id < a.table_rows ? a.table + id * a.width : nullptr;
    if (a.inject_index != nullptr && a.inject_index[t] >= 0) {
        const int32_t j = a.inject_index[t];
        src = j < a.inject_rows ? a.inject + j * a.width : nullptr;
        if (src == nullptr && threadIdx.x == 0) {
            fault(faults);
        }
    }
    uint4* out = a.out + t * 4 * a.width;
    for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        const uint4 v = src != nullptr ? src[i] : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            out[k * a.width + i] = v;
        }
    }
    if (a.pre != nullptr && threadIdx.x == 0) {
        a.pre[t] = make_float4(1, 0, 0, 0);
    }
}

}  // namespace tenon::cuda
