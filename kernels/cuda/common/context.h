// SPDX-License-Identifier: MIT
// What every CUDA op gets as `self`, and how a launcher ends: the launch's error as a Status.
#pragma once

#include <cuda_runtime_api.h>

#include "tenon/compute.h"

namespace tenon::cuda {

struct Context {
    int device = 0;
    int sms = 1;         ///< multiprocessors
    int arch = 0;        ///< 90, 121: what the kernels are built for (built_for.h)
    int smem_block = 0;  ///< most dynamic shared memory of a block, bytes
    /// Most blocks of a cluster in which each may have smem_block: 8 to 16; 1 where kernels have no
    /// clusters. A property of the device and its options, never of a call: bits may follow from
    /// it.
    int cluster_blocks = 1;
    /// Misuse that only the device sees (ops.md 1.3): kernels add to this pinned word, see fault()
    /// in common/device.cuh. Only the GPU writes it.
    unsigned long long* faults = nullptr;
};

inline Context& context(void* self) {
    return *static_cast<Context*>(self);
}

inline cudaStream_t native(Stream& stream) {
    return static_cast<cudaStream_t>(stream.native());
}

template <class P>
using OpCall = Status (*)(void*, const P&, Stream&) noexcept;

/// Makes `device` the calling thread's device.
Status use_device(int device) noexcept;

/// `device` with "what: name of the error (number)"; ok for cudaSuccess.
Status cuda_status(cudaError_t result, const char* what) noexcept;

/// The error of the launches since the last call on this thread. Ends every launcher.
inline Status launched(const char* op) noexcept {
    const cudaError_t result = cudaGetLastError();
    return result == cudaSuccess ? Status() : cuda_status(result, op);
}

}  // namespace tenon::cuda
