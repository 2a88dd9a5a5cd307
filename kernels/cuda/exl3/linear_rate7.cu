// SPDX-License-Identifier: MIT
// The linear kernels for 2 K = 7.
#include "exact_launch.cuh"
#include "launch.cuh"

namespace tenon::exl3::cuda {
template cudaError_t launch_rate<7>(const LinearCall&, int, int, int, cudaStream_t);
template cudaError_t launch_exact<7>(const LinearCall&, int, int, cudaStream_t);
template cudaError_t launch_wide<7>(const LinearCall&, int, int, cudaStream_t);
}  // namespace tenon::exl3::cuda
