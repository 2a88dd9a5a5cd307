// SPDX-License-Identifier: MIT
// Driver, GPU and built kernels compared; no context is created here.
#include "device/probe.h"

#include <cuda_runtime_api.h>

namespace tenon::cuda {

namespace {

// What a compute capability runs of the built architectures, or empty: its own code, else that of
// a lower minor version, else PTX of a lower one, which the driver compiles. "90a" runs on 9.0
// alone; CMake's "80" is both code and PTX, "80-real" and "80-virtual" are one of them.
std::string build_for(int capability) {
    std::string best;
    int best_worth = 0;
    std::string_view list = TENON_CUDA_ARCHITECTURES;
    while (!list.empty()) {
        const size_t comma = list.find(',');
        const std::string_view entry = list.substr(0, comma);
        list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
        const std::string_view one = entry.substr(0, entry.find('-'));
        int number = 0;
        size_t digits = 0;
        for (; digits < one.size() && one[digits] >= '0' && one[digits] <= '9'; ++digits) {
            number = number * 10 + (one[digits] - '0');
        }
        const bool general = digits == one.size();
        const auto offer = [&](const char* kind, bool fits, int worth) {
            if (fits && worth > best_worth) {
                best = kind + std::string(one);
                best_worth = worth;
            }
        };
        if (!entry.ends_with("-virtual")) {
            const bool minor = general && number / 10 == capability / 10 && number <= capability;
            offer("sm_", number == capability || minor, 1000 + number);
        }
        if (!entry.ends_with("-real")) {
            offer("compute_", number == capability || (general && number <= capability), number);
        }
    }
    return best;
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
    // Not pageableMemoryAccess: a GPU with memory of its own can have that too.
    facts.unified_memory = p.integrated != 0;
    int maps = 0;
    static_cast<void>(
        cudaDeviceGetAttribute(&maps, cudaDevAttrCanUseHostPointerForRegisteredMem, index));
    facts.maps_registered = maps != 0;
    if (facts.arch.empty()) {
        return error(Code::unavailable,
                     "GPU {} ({}) has compute capability {}.{}, kernels are built for {}", index,
                     facts.name, p.major, p.minor, built_architectures());
    }
    return facts;
}

}  // namespace tenon::cuda
