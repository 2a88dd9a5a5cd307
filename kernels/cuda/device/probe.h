// SPDX-License-Identifier: MIT
// Whether a GPU of this machine can run the kernels that were built, without touching it.
#pragma once

#include <string>

#include "tenon/base.h"

namespace tenon::cuda {

struct GpuFacts {
    std::string name;    ///< "NVIDIA H200"
    std::string arch;    ///< "sm_90a", the build that fits; "compute_80": its PTX
    int capability = 0;  ///< 90, 121
    int sms = 0;
    int64_t memory_bytes = 0;
    bool unified_memory = false;   ///< integrated: host and GPU share one pool
    bool maps_registered = false;  ///< kernels may use host pointers of registered memory
};

/// How pinned memory is made: by the driver, or as ordinary pages that are then registered.
enum class Pinned { allocated, registered };

/// Where GPU and CPU share memory, what the driver allocates is uncached for the CPU, which reads
/// results and fills step blocks there; registered pages are coherent and cached for both.
/// Elsewhere the driver's are as good and cost one call. errors  invalid_argument: `wanted` is none
/// of auto, allocated, registered; unavailable: registered, but kernels cannot use their pointers
/// here
Result<Pinned> choose_pinned(const GpuFacts& facts, std::string_view wanted);

/// Facts of GPU `index` (in the order of CUDA_VISIBLE_DEVICES).
/// errors  unavailable: no driver, too old a driver, no such GPU, or no kernels for it; one line
Result<GpuFacts> inspect_gpu(int index);

/// "90a, 121": what the kernels were compiled for.
std::string built_architectures();

}  // namespace tenon::cuda
