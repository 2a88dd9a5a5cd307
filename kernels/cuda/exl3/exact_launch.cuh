// SPDX-License-Identifier: MIT
// Plans and launches one instance of the exact kernel. A plan changes speed, never bits.
#pragma once

#include <algorithm>
#include <array>

#include "exact.cuh"
#include "linear.h"

namespace tenon::exl3::cuda {

constexpr int kSliceChoices[] = {1, 2, 4, 8};

/// Shared memory that a block may take.
inline int exact_limit(int twice_k, int n_blocks) {
    return exact_pairs(twice_k, n_blocks) ? std::min(112 * 1024, shared_most()) : shared_most();
}

/// Clusters of 1, 2, 4 and 8 blocks that the device runs at once.
template <class Kernel>
cudaError_t clusters_at_once(Kernel* kernel, int shared_bytes, std::array<int, 4>* out) {
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    for (size_t i = 0; i < 4 && status == cudaSuccess; ++i) {
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(kSliceChoices[i], 64, 1);
        config.blockDim = dim3(kExactThreads);
        config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim = {static_cast<unsigned int>(kSliceChoices[i]), 1, 1};
        config.attrs = &attribute;
        config.numAttrs = 1;
        status = cudaOccupancyMaxActiveClusters(&(*out)[i], kernel, &config);
    }
    return status;
}

/// Estimated microseconds of a plan on an H200. `at_once` thread blocks run together.
inline double plan_cost(const LinearCall& call, int rows, int blocks_n, const ExactPlan& p,
                        int n_blocks, int at_once) {
    const int items = (blocks_n + 8 / p.splits - 1) / (8 / p.splits);
    const int rounds = (items + p.clusters - 1) / p.clusters;
    const int units = (p.slice / kUnit + p.splits - 1) / p.splits;
    const bool paired =
        exact_pairs(call.twice_k, n_blocks) && 2 * p.clusters * p.slices * call.job_count > at_once;
    // One unit of each of 16 warps: alone on a multiprocessor the warps wait more.
    const double unit = n_blocks == 1 ? (paired ? 2.2 : 1.4) : (n_blocks == 2 ? 1.9 : 3.2);
    const int rotated = (p.by_parts ? p.slice : call.k) + p.slice;
    const double staging = n_blocks > 1 ? 0.5 : 0.1 * (rows * (rotated / kBlock) / kExactWarps + 1);
    return rounds * (units * unit + (p.slices > 1 ? 1.0 : 0.6)) + staging +
           (p.by_parts ? 0.5 : 0.0);
}

/// The cheapest plan that fits, or one with clusters = 0.
inline ExactPlan choose_plan(const LinearCall& call, int rows, int n_blocks,
                             const std::array<int, 4>& at_once) {
    int blocks_n = 0;
    for (int j = 0; j < call.job_count; ++j) {
        blocks_n = std::max(blocks_n, call.jobs[j].blocks);
    }
    const int limit = exact_limit(call.twice_k, n_blocks);
    ExactPlan best;
    best.clusters = 0;
    double best_cost = 0;
    for (size_t c = 0; c < 4; ++c) {
        for (const int splits : {8, 4}) {
            ExactPlan p;
            p.slices = kSliceChoices[c];
            p.splits = splits;
            if (p.slices > call.k / kBlock) {
                continue;
            }
            for (int s = 0; s < p.slices; ++s) {
                p.slice = std::max(p.slice, static_cast<int>(slice_begin(call.k, p.slices, s + 1) -
                                                             slice_begin(call.k, p.slices, s)));
            }
            p.by_parts = n_blocks == 1 && p.slices > 1 &&
                         rows * (call.k / kBlock) > kTaskBatch * kExactWarps;
            const int units = (p.slice / kUnit + splits - 1) / splits;
            p.stages = std::min(kMostStages, std::max(2, units * 2));
            while (p.stages > 1 && exact_layout(call.twice_k, n_blocks, rows, p).total > limit) {
                --p.stages;
            }
            if (exact_layout(call.twice_k, n_blocks, rows, p).total > limit) {
                continue;
            }
            const int items = (blocks_n + 8 / splits - 1) / (8 / splits);
            p.clusters = std::max(1, std::min(items, at_once[c] / call.job_count));
            const double cost = plan_cost(call, rows, blocks_n, p, n_blocks, at_once[0]) *
                                (p.stages == 1 ? 1.5 : 1.0);  // one unit in flight is none ahead
            if (best.clusters == 0 || cost < best_cost) {
                best = p;
                best_cost = cost;
            }
        }
    }
    return best;
}

template <int kTwiceK, int kBlocks>
cudaError_t launch_exact_instance(const LinearCall& call, int row0, int rows, cudaStream_t stream) {
    auto* kernel = &exact_kernel<kTwiceK, kBlocks>;
    static std::array<int, 4> at_once{};
    static const cudaError_t ready =
        clusters_at_once(kernel, exact_limit(kTwiceK, kBlocks), &at_once);
    if (ready != cudaSuccess) {
        return ready;
    }
    const ExactPlan plan = choose_plan(call, rows, kBlocks, at_once);
    if (plan.clusters == 0) {
        return cudaErrorInvalidValue;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(plan.slices, plan.clusters, call.job_count);
    config.blockDim = dim3(kExactThreads);
    config.dynamicSmemBytes = exact_layout(kTwiceK, kBlocks, rows, plan).total;
    config.stream = stream;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned int>(plan.slices), 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, kernel, call, plan, row0);
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
