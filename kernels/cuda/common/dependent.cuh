// SPDX-License-Identifier: MIT
// Kernels that may start while the one before them in the stream still runs (programmatic dependent
// launch), in a stream and in a captured graph.
//
// A kernel launched by launch_dependent() calls wait_for_previous() in every thread before it
// touches anything that earlier work of the stream writes, or writes anything that earlier work
// reads; constant weights may be read before. Since each such kernel waits for its predecessor's
// end, the end of one is the end of all before it. let_next_start() anywhere in a kernel lets its
// successor come that early; without it the successor starts at the kernel's end.
#pragma once

#include <cuda_runtime.h>

#include "common/async.cuh"
#include "common/built_for.h"

namespace tenon::cuda {

__device__ inline void wait_for_previous() {
    async::wait_for_previous_kernel();
}
__device__ inline void let_next_start() {
    async::let_next_kernel_start();
}

/// As kernel<<<grid, block, shared_bytes, stream>>>(args...). The launch's error is left for
/// launched().
template <class... P, class... A>
void launch_dependent(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                      cudaStream_t stream, const A&... args) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = has_clusters(kernel) ? 1 : 0;
    static_cast<void>(cudaLaunchKernelEx(&config, kernel, P(args)...));
}

}  // namespace tenon::cuda
