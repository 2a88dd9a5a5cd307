// SPDX-License-Identifier: MIT
// Plans and launches one instance of the exact kernel. A plan changes speed, never bits.
#pragma once

#include <algorithm>
#include <array>
#include <mutex>

#include "device_state.h"
#include "exact.cuh"
#include "linear.h"

namespace tenon::exl3::cuda {

/// Clusters of 1 .. kMostCluster blocks, one a multiprocessor, that the current device runs at
/// once; 0 of those that it does not have.
using ClusterCounts = std::array<int, kMostCluster + 1>;
template <class Kernel>
cudaError_t clusters_at_once(Kernel* kernel, ClusterCounts* out) {
    if (!has_clusters()) {
        (*out)[1] = device_attribute(cudaDevAttrMultiProcessorCount);
        return cudaSuccess;
    }
    const int alone = shared_alone();
    for (int blocks = 1; blocks <= kMostCluster; ++blocks) {
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(static_cast<unsigned int>(blocks), 64, 1);
        config.blockDim = dim3(kExactThreads);
        config.dynamicSmemBytes = static_cast<size_t>(alone);
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim = {static_cast<unsigned int>(blocks), 1, 1};
        config.attrs = &attribute;
        config.numAttrs = 1;
        int count = 0;
        const cudaError_t status = cudaOccupancyMaxActiveClusters(&count, kernel, &config);
        if (status != cudaSuccess) {
            return status;
        }
        (*out)[static_cast<size_t>(blocks)] = count;
    }
    return cudaSuccess;
}

/// The plan with the least time on the busiest multiprocessor: a larger cluster must save more than
/// its exchanges cost. clusters = 0 if none fits.
inline ExactPlan choose_plan(const LinearCall& call, int rows, int n_blocks,
                             const ClusterCounts& at_once) {
    int blocks_n = 0;
    for (int j = 0; j < call.job_count; ++j) {
        blocks_n = std::max(blocks_n, call.jobs[j].blocks);
    }
    const int units_k = call.k / kUnit;
    ExactPlan best;
    best.clusters = 0;
    double best_cost = 0;
    for (int cluster = 1; cluster <= std::min(kMostCluster, units_k / 2); ++cluster) {
        const int count = at_once[static_cast<size_t>(cluster)];
        if (count == 0) {
            continue;
        }
        const int room = std::max(1, count / std::max(1, call.job_count));
        ExactPlan p;
        p.cluster = cluster;
        p.rotated = rotated_first(call.k, rows);
        p.each = (blocks_n + room - 1) / room;
        p.clusters = (blocks_n + p.each - 1) / p.each;
        const int units = (units_k + cluster - 1) / cluster;
        // Microseconds on an H200: half of the cost of a unit goes by the warp with the most.
        const double unit = n_blocks == 1 ? 0.19 : (n_blocks == 2 ? 0.24 : 0.40);
        const double decode =
            ((units + kExactSplits - 1) / kExactSplits * kExactSplits + units) * 0.5 * unit;
        p.stages = n_blocks == 1 ? 2 : kMostStages;
        while (p.stages >= 1 &&
               exact_layout(call.twice_k, n_blocks, rows, call.k, p).total > shared_most()) {
            --p.stages;
        }
        const double exchange = cluster == 1 ? 0.0 : (1.2 + 0.1 * cluster) * (1.0 + rows / 6.0);
        const double waits = p.stages > 1 ? 1.0 : (p.each > 1 ? 1.5 : 1.15);  // none ahead
        const double cost = p.each * (decode * waits + 0.9 + exchange);
        if (p.stages >= 1 && (best.clusters == 0 || cost < best_cost)) {
            best = p;
            best_cost = cost;
        }
    }
    return best;
}

template <int kTwiceK, int kBlocks>
cudaError_t launch_exact_instance(const LinearCall& call, int row0, int rows, cudaStream_t stream) {
    auto* kernel = &exact_kernel<kTwiceK, kBlocks>;
    static DeviceFlags allowed;
    static std::array<ClusterCounts, kKnownDevices> counts;
    static std::array<std::once_flag, kKnownDevices> counted;
    cudaError_t status =
        allow_shared(&allowed, reinterpret_cast<const void*>(kernel), shared_most());
    int device = 0;
    if (status == cudaSuccess) {
        status = cudaGetDevice(&device);
    }
    if (status != cudaSuccess) {
        return status;
    }
    ClusterCounts own{};
    if (device < kKnownDevices) {
        const auto at = static_cast<size_t>(device);
        std::call_once(counted[at], [&] { status = clusters_at_once(kernel, &counts[at]); });
        own = counts[at];
    } else {
        status = clusters_at_once(kernel, &own);
    }
    if (status != cudaSuccess) {
        return status;
    }
    const ExactPlan plan = choose_plan(call, rows, kBlocks, own);
    if (plan.clusters == 0) {
        return cudaErrorInvalidValue;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim =
        dim3(static_cast<unsigned int>(plan.cluster), static_cast<unsigned int>(plan.clusters),
             static_cast<unsigned int>(call.job_count));
    config.blockDim = dim3(kExactThreads);
    // A plan counts on one block a multiprocessor. A launch that starts early finds some of them
    // taken and would put two of its blocks on others, which then take twice as long.
    config.dynamicSmemBytes = static_cast<size_t>(
        std::max(shared_alone(), exact_layout(kTwiceK, kBlocks, rows, call.k, plan).total));
    config.stream = stream;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {static_cast<unsigned int>(plan.cluster), 1, 1};
    config.attrs = attributes;
    config.numAttrs = plan.cluster > 1 ? 2 : (has_clusters() ? 1 : 0);
    return cudaLaunchKernelEx(&config, kernel, call, plan, row0, rows);
}

template <int kTwiceK>
cudaError_t launch_exact(const LinearCall& call, int row0, int rows, cudaStream_t stream) {
    if (rows <= kRowsFused) {
        return launch_exact_instance<kTwiceK, 1>(call, row0, rows, stream);
    }
    return rows <= 8 ? launch_exact_instance<kTwiceK, 2>(call, row0, rows, stream)
                     : launch_exact_instance<kTwiceK, 4>(call, row0, rows, stream);
}

}  // namespace tenon::exl3::cuda
