// SPDX-License-Identifier: MIT
// The linear kernels for 2 K = 3.
#include "exact_launch.cuh"
#include "launch.cuh"

namespace tenon::exl3::cuda {
template cudaError_t launch_rate<3>(const LinearCall&, int, int, int, cudaStream_t);
template cudaError_t launch_exact<3>(const LinearCall&, int, int, cudaStream_t);
template cudaError_t launch_wide<3>(const LinearCall&, int, int, cudaStream_t);
}  // namespace tenon::exl3::cuda
