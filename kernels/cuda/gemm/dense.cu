// SPDX-License-Identifier: MIT
// Picks the kernel that the device has and cuts a call into tiles.
#include "dense.h"

#include <algorithm>

#include "../common/built_for.h"
#include "dense_mma.cuh"
#include "dense_sm90.cuh"

namespace tenon::gemm::cuda {

namespace {

cudaError_t processor_count(int* processors) {
    int device = 0;
    const cudaError_t status = cudaGetDevice(&device);
    return status == cudaSuccess
               ? cudaDeviceGetAttribute(processors, cudaDevAttrMultiProcessorCount, device)
               : status;
}

constexpr int tiles_of(int64_t extent, int64_t each) {
    return static_cast<int>((extent + each - 1) / each);
}

template <Input kInput>
cudaError_t launch_wgmma(const Call& call, int processors, cudaStream_t stream) {
    auto* kernel = &dense_kernel<kInput>;
    static const cudaError_t allowed =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kDenseShared);
    if (allowed != cudaSuccess) {
        return allowed;
    }
    Schedule schedule;
    schedule.row_tiles = tiles_of(call.rows, kTileRows);
    int all = 0;
    for (int j = 0; j < call.job_count; ++j) {
        all += schedule.row_tiles * tiles_of(call.jobs[j].out, kColumns);
        schedule.tile_end[j] = all;
    }
    if (all == 0) {
        return cudaSuccess;
    }
    cudaLaunchAttribute early = {};  // the kernel waits for the one in front before it reads
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned int>(std::min(all, processors)));
    config.blockDim = dim3(kDenseThreads);
    config.dynamicSmemBytes = kDenseShared;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, call, schedule);
}

template <Input kInput>
cudaError_t launch_mma(const Call& call, cudaStream_t stream) {
    static_assert(kMmaShared <= tenon::cuda::kLeastSharedBlock);
    auto* kernel = &dense_mma_kernel<kInput>;
    static const cudaError_t allowed =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMmaShared);
    if (allowed != cudaSuccess) {
        return allowed;
    }
    int64_t out = 0;
    for (int j = 0; j < call.job_count; ++j) {
        out = std::max<int64_t>(out, call.jobs[j].out);
    }
    if (out == 0) {
        return cudaSuccess;
    }
    const dim3 grid(tiles_of(call.rows, kTileRows), tiles_of(out, kTileRows), call.job_count);
    kernel<<<grid, kMmaThreads, kMmaShared, stream>>>(call);
    return cudaGetLastError();
}

template <Input kInput>
cudaError_t launch(const Call& call, cudaStream_t stream) {
    // Hopper's code is 90a or none (cmake/TenonCuda.cmake), so it has wgmma.
    if (tenon::cuda::built_for(reinterpret_cast<const void*>(&dense_kernel<kInput>)) != 90) {
        return launch_mma<kInput>(call, stream);
    }
    int processors = 0;
    const cudaError_t status = processor_count(&processors);
    return status == cudaSuccess ? launch_wgmma<kInput>(call, processors, stream) : status;
}

}  // namespace

cudaError_t dense(const Call& call, cudaStream_t stream) {
    if (call.rows <= 0 || call.job_count == 0) {
        return cudaSuccess;
    }
    return call.input == Input::f16 ? launch<Input::f16>(call, stream)
                                    : launch<Input::bf16>(call, stream);
}

}  // namespace tenon::gemm::cuda
