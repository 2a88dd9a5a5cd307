// SPDX-License-Identifier: MIT
// The linear kernels for 2 K = 2.
#include "exact_launch.cuh"
#include "launch.cuh"

namespace tenon::exl3::cuda {
template cudaError_t launch_rate<2>(const LinearCall&, int, int, int, cudaStream_t);
template cudaError_t launch_exact<2>(const LinearCall&, int, int, cudaStream_t);
template cudaError_t launch_wide<2>(const LinearCall&, int, int, cudaStream_t);
}  // namespace tenon::exl3::cuda
