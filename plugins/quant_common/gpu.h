// SPDX-License-Identifier: MIT
// What the GPU backends of the formats share: errors and the calling thread's device.
#pragma once

#include <cuda_runtime_api.h>

#include "tenon/plugin.h"

namespace tenon::quant {

/// Errors of the CUDA runtime as Status.
inline Status gpu_status(cudaError_t result, StrView what) {
    if (result == cudaSuccess) {
        return {};
    }
    return error(Code::device, "{}: {}: {}", what, cudaGetErrorName(result),
                 cudaGetErrorString(result));
}

/// Makes the GPU of a device current on this thread; cheap if it is.
inline Status use_gpu(int32_t index) {
    int current = -1;
    if (cudaGetDevice(&current) == cudaSuccess && current == index) {
        return {};
    }
    return gpu_status(cudaSetDevice(index), "cudaSetDevice");
}

constexpr int64_t kGpuAlign = 256;
constexpr int64_t gpu_aligned(int64_t bytes) {
    return (bytes + kGpuAlign - 1) / kGpuAlign * kGpuAlign;
}

}  // namespace tenon::quant
