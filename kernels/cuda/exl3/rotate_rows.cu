// SPDX-License-Identifier: MIT
// Rotates rows once for all blocks of a launch of the exact kernel: digits, scale and sums of a
// row.
#include "exact.cuh"
#include "linear.h"

namespace tenon::exl3::cuda {

namespace {

// Grid (rows, jobs). Same operations in the same order as where a block rotates for itself.
__global__ void __launch_bounds__(kExactThreads)
    rotate_rows_kernel(const __grid_constant__ LinearCall call, int row0) {
    __shared__ unsigned int shared_most;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int row = blockIdx.x;
    const Job& job = call.jobs[blockIdx.y];
    const StagedSet set =
        staged_set(call.scratch, blockIdx.y, min(call.rows, kMostStagedRows), call.k);
    const int blocks = call.k / kBlock;
    if (threadIdx.x == 0) {
        shared_most = 0;
    }
    __syncthreads();
    wait_for_previous_kernel();
    let_next_kernel_start();
    const auto load = [&](int block, float(&v)[4]) {
        const int at = block * kBlock + 4 * lane;
        load_x4(job.x, call.x_element, (row0 + row) * job.x_stride + at, call.in - at, v);
        scale_by(job.suh + at, v);
        rotate128(v, lane);
    };
    for (int block = warp; block < blocks; block += kExactWarps) {
        float v[4];
        load(block, v);
        const unsigned int most = largest(v);
        if (lane == 0) {
            atomicMax(&shared_most, most);
        }
    }
    __syncthreads();
    const float most = __uint_as_float(shared_most);
    if (threadIdx.x == 0) {
        set.most[row] = most;
    }
    for (int block = warp; block < blocks; block += kExactWarps) {
        float v[4];
        load(block, v);
        uint32_t high = 0, low = 0;
        const int sum = __reduce_add_sync(0xFFFFFFFFu, digits_of(v, most, &high, &low));
        const int at = block * kBlock + 4 * lane;
        uint8_t* tile =
            set.digits + (int64_t{row / 4} * call.k + at) / 16 * 128 + 2 * (row % 4) * 16 + at % 16;
        *reinterpret_cast<uint32_t*>(tile) = high;
        *reinterpret_cast<uint32_t*>(tile + 16) = low;
        if (lane == 0) {
            set.sums[row * blocks + block] = sum;
        }
    }
}

}  // namespace

cudaError_t rotate_rows(const LinearCall& call, int row0, int rows, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim =
        dim3(static_cast<unsigned int>(rows), static_cast<unsigned int>(call.job_count), 1);
    config.blockDim = dim3(kExactThreads);
    config.stream = stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, rotate_rows_kernel, call, row0);
}

}  // namespace tenon::exl3::cuda
