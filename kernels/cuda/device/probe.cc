// SPDX-License-Identifier: MIT
// Driver, GPU and built kernels compared; no context is created here.
#include "device/probe.h"

#include <cuda_runtime_api.h>

namespace tenon::cuda {

namespace {

// The build for a compute capability, or empty. "90a" runs on 9.0 alone; "121" on 12.1.
std::string build_for(int capability) {
    const std::string wanted = std::to_string(capability);
    std::string_view list = TENON_CUDA_ARCHITECTURES;
    while (!list.empty()) {
        const size_t comma = list.find(',');
        const std::string_view one = list.substr(0, comma);
        if (one.substr(0, one.find_first_not_of("0123456789")) == wanted) {
            return "sm_" + std::string(one);
        }
        list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    }
    return {};
}

std::string version_text(int version) {
    return format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

std::string built_architectures() {
    return TENON_CUDA_ARCHITECTURES;
}

Result<GpuFacts> inspect_gpu(int index) {
    int count = 0;
    const cudaError_t counted = cudaGetDeviceCount(&count);
    if (counted != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        int driver = 0;
        static_cast<void>(cudaDriverGetVersion(&driver));
        if (driver == 0) {
            return error(Code::unavailable, "no NVIDIA driver on this machine ({})",
                         cudaGetErrorName(counted));
        }
        return error(Code::unavailable, "no usable GPU: {} ({}); driver for CUDA {}, built with {}",
                     cudaGetErrorName(counted), static_cast<int>(counted), version_text(driver),
                     version_text(CUDART_VERSION));
    }
    if (index >= count) {
        return error(Code::unavailable, "GPU {} does not exist, this machine shows {}", index,
                     count);
    }
    cudaDeviceProp p{};
    const cudaError_t asked = cudaGetDeviceProperties(&p, index);
    if (asked != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return error(Code::unavailable, "GPU {}: {}", index, cudaGetErrorName(asked));
    }
    GpuFacts facts;
    facts.name = p.name;
    facts.capability = p.major * 10 + p.minor;
    facts.arch = build_for(facts.capability);
    facts.sms = p.multiProcessorCount;
    facts.memory_bytes = static_cast<int64_t>(p.totalGlobalMem);
    facts.unified_memory = p.integrated != 0;
    if (facts.arch.empty()) {
        return error(Code::unavailable,
                     "GPU {} ({}) has compute capability {}.{}, kernels are built for {}", index,
                     facts.name, p.major, p.minor, built_architectures());
    }
    return facts;
}

}  // namespace tenon::cuda
