// SPDX-License-Identifier: MIT
// Launches one instance of the linear kernel.
#pragma once

#include "device_state.h"
#include "linear.cuh"
#include "linear.h"

namespace tenon::exl3::cuda {

template <int kTwiceK, Code kCode, int kBlocks>
cudaError_t launch_instance(const LinearCall& call, int row0, int rows, int slice,
                            cudaStream_t stream) {
    auto* kernel = &linear_kernel<kTwiceK, kCode, kBlocks>;
    const int limit = shared_most();
    static DeviceFlags allowed;
    const cudaError_t status = allow_shared(&allowed, reinterpret_cast<const void*>(kernel), limit);
    if (status != cudaSuccess) {
        return status;
    }
    const int stages = stages_that_fit(kCode, kTwiceK, rows, slice, limit);
    cudaLaunchConfig_t config = {};
    const ExpertCall& e = call.experts;
    const bool clusters = has_clusters();
    const int slices = clusters ? call.slices : 1;
    config.gridDim = call.job_count > 0
                         ? dim3(slices, call.jobs[call.job_count - 1].block_end, 1)
                         : dim3(slices, e.blocks, call.rows * e.k + (e.has_shared ? 1 : 0));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = smem_layout(kCode, kTwiceK, kBlocks, rows, slice, stages).total;
    config.stream = stream;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned int>(call.slices), 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs = clusters ? 2 : 0;
    return cudaLaunchKernelEx(&config, kernel, call, row0, rows, slice, stages);
}

template <int kTwiceK, Code kCode>
cudaError_t launch_code(const LinearCall& call, int row0, int rows, int slice,
                        cudaStream_t stream) {
    constexpr int kRows = rows_per_block(kCode);
    if (rows <= kRows) {
        return launch_instance<kTwiceK, kCode, 1>(call, row0, rows, slice, stream);
    }
    if (rows <= 2 * kRows) {
        return launch_instance<kTwiceK, kCode, 2>(call, row0, rows, slice, stream);
    }
    if constexpr (4 * kRows <= kMaxRows) {
        return launch_instance<kTwiceK, kCode, 4>(call, row0, rows, slice, stream);
    }
    return cudaErrorInvalidValue;
}

template <int kTwiceK>
cudaError_t launch_rate(const LinearCall& call, int row0, int rows, int slice,
                        cudaStream_t stream) {
    if (call.code == Code::mul1) {
        return launch_code<kTwiceK, Code::mul1>(call, row0, rows, slice, stream);
    }
    if constexpr (kTwiceK % 2 == 0) {
        return call.code == Code::mcg
                   ? launch_code<kTwiceK, Code::mcg>(call, row0, rows, slice, stream)
                   : launch_code<kTwiceK, Code::inst3>(call, row0, rows, slice, stream);
    }
    return cudaErrorInvalidValue;
}

}  // namespace tenon::exl3::cuda
