// SPDX-License-Identifier: MIT
// CUDA errors as Status, and the calling thread's device.
#include "common/context.h"

namespace tenon::cuda {

Status use_device(int device) noexcept {
    int current = -1;
    if (cudaGetDevice(&current) == cudaSuccess && current == device) {
        return {};
    }
    return cuda_status(cudaSetDevice(device), "cudaSetDevice");
}

Status cuda_status(cudaError_t result, const char* what) noexcept {
    if (result == cudaSuccess) {
        return {};
    }
    // Said here, so nobody else's: `launched` must not find it again. A lost device stays lost.
    static_cast<void>(cudaGetLastError());
    return guard([&] {
        return error(result == cudaErrorMemoryAllocation ? Code::does_not_fit : Code::device,
                     "{}: {} ({}): {}", what, cudaGetErrorName(result), static_cast<int>(result),
                     cudaGetErrorString(result));
    });
}

}  // namespace tenon::cuda
