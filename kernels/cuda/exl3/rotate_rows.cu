// SPDX-License-Identifier: MIT
// Rotates rows once for all blocks of a launch of the exact kernels: digits, scale and sums of a
// row. Clears sums that they share.
#include "../common/built_for.h"
#include "exact.cuh"
#include "linear.h"

namespace tenon::exl3::cuda {

namespace {

constexpr int kClearing = 32;  ///< blocks a job that clear, after those of rows

// Grid (rows, jobs), or (rows + kClearing, jobs) if there is something to clear. Same operations in
// the same order as where a block rotates for itself.
__global__ void __launch_bounds__(kExactThreads)
    rotate_rows_kernel(const __grid_constant__ LinearCall call, int row0, int rows, int64_t clear) {
    __shared__ unsigned int shared_most;
    const int lane = threadIdx.x % 32;
    const int row = static_cast<int>(blockIdx.x);
    const Job& job = call.jobs[blockIdx.y];
    const StagedSet set = staged_set(call.scratch, static_cast<int>(blockIdx.y),
                                     min(call.rows, kMostStagedRows), call.k);
    const int blocks = call.k / kBlock;
    if (threadIdx.x == 0) {
        shared_most = 0;
    }
    __syncthreads();
    // The scales come from memory while the rows are made.
    for (int at = static_cast<int>(threadIdx.x) * 64; at < call.k; at += kExactThreads * 64) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(job.suh + at));
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (row >= rows) {
        const int64_t step = int64_t{kClearing} * gridDim.y * kExactThreads;
        const int64_t begin = ((row - rows) * int64_t{gridDim.y} + blockIdx.y) * kExactThreads;
        auto* to = reinterpret_cast<uint4*>(exact_sums(call));
        for (int64_t i = begin + threadIdx.x; i < (clear + 15) / 16; i += step) {
            to[i] = make_uint4(0, 0, 0, 0);
        }
        return;
    }
    const auto rotate = [&](int block, float(&v)[16]) {
        const int at = block * kBlock + 16 * (lane % 8);
        if (block < blocks) {
            load_x16(job.x, call.x_element, (row0 + row) * job.x_stride + at, call.in - at, v);
            scale16(job.suh + at, v);
        }
        rotate_eighth(v, lane);
        const unsigned int most = largest16(v);
        if (block < blocks && lane % 8 == 0) {
            atomicMax(&shared_most, most);
        }
    };
    const auto put = [&](int block, const float(&v)[16]) {
        uint4 high, low;
        const int sum = sum_of_eight(digits16(v, __uint_as_float(shared_most), &high, &low));
        if (block < blocks) {
            const int at = block * kBlock + 16 * (lane % 8);
            uint8_t* tile = set.digits + (int64_t{row / 4} * call.k + at) * 8 + 2 * (row % 4) * 16;
            *reinterpret_cast<uint4*>(tile) = high;
            *reinterpret_cast<uint4*>(tile + 16) = low;
            if (lane % 8 == 0) {
                set.sums[row * blocks + block] = sum;
            }
        }
    };
    constexpr int kTurn = 4 * kExactWarps;  // blocks of 128 channels at a time
    const int first = static_cast<int>(threadIdx.x) / 8;
    float held[16] = {};
    rotate(first, held);
#pragma unroll 1
    for (int block = first + kTurn; block - first < blocks; block += kTurn) {
        float v[16] = {};
        rotate(block, v);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        set.most[row] = __uint_as_float(shared_most);
    }
    put(first, held);
#pragma unroll 1
    for (int block = first + kTurn; block - first < blocks; block += kTurn) {
        float v[16] = {};
        rotate(block, v);  // the maximum stays what it is
        put(block, v);
    }
}

}  // namespace

bool has_clusters() {
    return tenon::cuda::has_clusters(rotate_rows_kernel);
}

bool has_wide() {
    return tenon::cuda::built_for(reinterpret_cast<const void*>(rotate_rows_kernel)) == 90;
}

cudaError_t rotate_rows(const LinearCall& call, int row0, int rows, int64_t clear,
                        cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned int>(rows + (clear > 0 ? kClearing : 0)),
                          static_cast<unsigned int>(call.job_count), 1);
    config.blockDim = dim3(kExactThreads);
    config.stream = stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = has_clusters() ? 1 : 0;
    return cudaLaunchKernelEx(&config, rotate_rows_kernel, call, row0, rows, clear);
}

}  // namespace tenon::exl3::cuda
