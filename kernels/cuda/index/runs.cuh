// SPDX-License-Identifier: MIT
// What the scoring kernels that stay on their multiprocessors share: the run of tiles or steps that
// a block takes, and how its counts are added to those of the others.
#pragma once

#include "index/prepare.cuh"

namespace tenon::cuda::index {

/// Tiles (steps) [at, end) of all batches; `batch` is the last one that starts at or before `at`.
struct Run {
    int at, end, batch;
};
/// This block's equal share; the first blocks of the grid take one more where it is not even. All
/// lanes of a warp call together: the places of up to 31 batches come in one round trip, lane i has
/// number i.
__device__ __forceinline__ Run run_of_block(const Prepared& p, int T) {
    const int lane = threadIdx.x % 32;
    const int start_here = p.first_tile[min(lane, T)];
    const int batches = *p.batches;
    const bool few = batches < 32;
    const int total = few ? __shfl_sync(~0u, start_here, batches) : p.first_tile[batches];
    const int grid = static_cast<int>(gridDim.x);
    const int block = static_cast<int>(blockIdx.x);
    const int more = total % grid;
    const int at = total / grid * block + min(block, more);
    const int end = at + total / grid + (block < more ? 1 : 0);
    int batch = 0;
    if (few) {
        batch = __popc(__ballot_sync(~0u, lane < batches && start_here <= at)) - 1;
    } else {
        for (int low = 0, high = batches; low < high;) {
            const int middle = (low + high) / 2;
            if (p.first_tile[middle] <= at) {
                batch = middle;
                low = middle + 1;
            } else {
                high = middle;
            }
        }
    }
    return {at, end, batch};
}

/// Adds this block's counts of the scores of a batch, [rows][kBins] in shared memory, to those of
/// its rows. After a barrier; all kThreads threads.
template <int kThreads>
__device__ __forceinline__ void add_counts(const Prepared& p, const Batch& b,
                                           const unsigned* counts) {
    for (int i = threadIdx.x; i < b.rows * kBins; i += kThreads) {
        if (counts[i] != 0) {
            atomicAdd(&p.hist[int64_t{b.row0} * kBins + i], counts[i]);
        }
    }
}

}  // namespace tenon::cuda::index
