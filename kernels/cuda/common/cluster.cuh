// SPDX-License-Identifier: MIT
// Thread block clusters as cooperative groups have them, and the same of a single block for
// architectures without.
#pragma once

#include <cooperative_groups.h>

namespace tenon::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
using Cluster = cooperative_groups::cluster_group;
__device__ inline Cluster this_cluster() {
    return cooperative_groups::this_cluster();
}
#else
struct Cluster {
    __device__ static unsigned num_blocks() { return 1; }
    __device__ static unsigned block_rank() { return 0; }
    __device__ static void sync() { __syncthreads(); }
    template <class T>
    __device__ static T* map_shared_rank(T* here, int) {
        return here;
    }
};
__device__ inline Cluster this_cluster() {
    return {};
}
#endif

}  // namespace tenon::cuda
