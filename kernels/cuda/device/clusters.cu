// SPDX-License-Identifier: MIT
// Asks the driver which clusters a device runs.
#include "device/clusters.h"

#include "common/context.h"

namespace tenon::cuda {

namespace {

/// Never launched: it stands for any kernel with one block a multiprocessor.
__global__ void cluster_kernel() {}

}  // namespace

Status largest_cluster(int bytes, int* out) {
    const auto* kernel = reinterpret_cast<const void*>(&cluster_kernel);
    TENON_TRY(cuda_status(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "shared memory of a cluster"));
    // Where it is refused, larger clusters are too.
    static_cast<void>(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    int blocks = kMostCluster;
    for (; blocks > 1; --blocks) {
        cudaLaunchAttribute attribute{};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
        attribute.val.clusterDim.y = 1;
        attribute.val.clusterDim.z = 1;
        cudaLaunchConfig_t config{};
        config.gridDim = dim3(static_cast<unsigned>(blocks));
        config.blockDim = dim3(128);
        config.dynamicSmemBytes = static_cast<size_t>(bytes);
        config.attrs = &attribute;
        config.numAttrs = 1;
        int count = 0;
        if (cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess && count > 0) {
            break;
        }
    }
    static_cast<void>(cudaGetLastError());  // of the sizes that are refused
    *out = blocks;
    return {};
}

}  // namespace tenon::cuda
