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
    bool unified_memory = false;
};

/// Facts of GPU `index` (in the order of CUDA_VISIBLE_DEVICES).
/// errors  unavailable: no driver, too old a driver, no such GPU, or no kernels for it; one line
Result<GpuFacts> inspect_gpu(int index);

/// "90a, 121": what the kernels were compiled for.
std::string built_architectures();

}  // namespace tenon::cuda
