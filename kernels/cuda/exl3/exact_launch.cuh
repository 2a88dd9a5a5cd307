// SPDX-License-Identifier: MIT
// Launches instances of the exact and the wide kernel by the plans of linear.cu.
#pragma once

#include <algorithm>

#include "device_state.h"
#include "exact.cuh"
#include "exact_wide.cuh"
#include "linear.h"

namespace tenon::exl3::cuda {

template <class Kernel>
cudaError_t launch_plan(Kernel* kernel, const LinearCall& call, const ExactPlan& plan, int bytes,
                        int row0, int rows, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim =
        dim3(static_cast<unsigned int>(plan.places), 1, static_cast<unsigned int>(call.job_count));
    config.blockDim = dim3(kExactThreads);
    // A plan counts on one block a multiprocessor. A launch that starts early finds some of them
    // taken and would put two of its blocks on others, which then take twice as long.
    config.dynamicSmemBytes = static_cast<size_t>(std::max(shared_alone(), bytes));
    config.stream = stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = has_clusters() ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, call, plan, row0, rows);
}

template <int kTwiceK, int kBlocks>
cudaError_t launch_exact_instance(const LinearCall& call, int row0, int rows, cudaStream_t stream) {
    auto* kernel = &exact_kernel<kTwiceK, kBlocks>;
    static DeviceFlags allowed;
    const cudaError_t status =
        allow_shared(&allowed, reinterpret_cast<const void*>(kernel), shared_most());
    if (status != cudaSuccess) {
        return status;
    }
    const ExactPlan plan = choose_exact_plan(call, rows);
    if (plan.ranges == 0) {
        return cudaErrorInvalidValue;
    }
    return launch_plan(kernel, call, plan, exact_bytes(call, rows, plan), row0, rows, stream);
}

template <int kTwiceK>
cudaError_t launch_exact(const LinearCall& call, int row0, int rows, cudaStream_t stream) {
    if (rows <= kRowsFused) {
        return launch_exact_instance<kTwiceK, 1>(call, row0, rows, stream);
    }
    return rows <= 8 ? launch_exact_instance<kTwiceK, 2>(call, row0, rows, stream)
                     : launch_exact_instance<kTwiceK, 4>(call, row0, rows, stream);
}

template <int kTwiceK, int kColumns>
cudaError_t launch_wide_instance(const LinearCall& call, int row0, int rows, cudaStream_t stream) {
    auto* kernel = &wide_kernel<kTwiceK, kColumns>;
    static DeviceFlags allowed;
    const cudaError_t status =
        allow_shared(&allowed, reinterpret_cast<const void*>(kernel), shared_most());
    if (status != cudaSuccess) {
        return status;
    }
    const ExactPlan plan = choose_wide_plan(call, rows);
    if (plan.ranges == 0) {
        return cudaErrorInvalidValue;
    }
    return launch_plan(kernel, call, plan, wide_bytes(call, rows, plan), row0, rows, stream);
}

template <int kTwiceK>
cudaError_t launch_wide(const LinearCall& call, int row0, int rows, cudaStream_t stream) {
    return wide_columns(rows) == 32 ? launch_wide_instance<kTwiceK, 32>(call, row0, rows, stream)
                                    : launch_wide_instance<kTwiceK, 64>(call, row0, rows, stream);
}

}  // namespace tenon::exl3::cuda
