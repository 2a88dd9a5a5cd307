// SPDX-License-Identifier: MIT
// Cuts rows into launches and picks the rate.
#include "linear.h"

#include <algorithm>

#include "device_state.h"
#include "dispatch.cuh"
#include "exact.cuh"
#include "smem.h"

namespace tenon::exl3::cuda {

int shared_most() {
    return std::min(kSharedMost, device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
}

int shared_alone() {
    return std::min(shared_most(),
                    device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 + 1024);
}

namespace {

// Rows of a launch of the exact kernel for which some plan fits: devices with less shared memory
// than an H200 take long inputs in smaller passes. 0: not even one; that depends on the weight and
// the device alone.
int exact_rows(const LinearCall& call) {
    const int limit = shared_most();
    const int clusters = has_clusters() ? kMostCluster : 1;
    for (const int rows : {kRowsExact, kRowsExact / 2, kRowsFused, kRowsFused / 2, 1}) {
        ExactPlan p;
        p.cluster = std::min(clusters, call.k / kBlock);
        p.each = 2;
        p.stages = 1;
        p.rotated = rotated_first(call.k, rows);
        const int n_blocks = std::max(1, rows / kRowsFused);
        if (exact_layout(call.twice_k, n_blocks, rows, call.k, p).total <= limit) {
            return rows;
        }
    }
    return 0;
}

}  // namespace

cudaError_t linear(const LinearCall& call, cudaStream_t stream) {
    if (call.rows <= 0 || (call.job_count == 0 && call.experts.blocks == 0)) {
        return cudaSuccess;
    }
    const bool may_be_exact =
        call.code == Code::mul1 && call.job_count > 0 && !call.sliced && call.k <= kMostExactK;
    const int most_exact = may_be_exact ? exact_rows(call) : 0;
    const bool exact = most_exact > 0;
    int64_t slice = 0;
    for (int s = 0; s < call.slices; ++s) {
        slice = std::max(
            slice, slice_begin(call.k, call.slices, s + 1) - slice_begin(call.k, call.slices, s));
    }
    int most = exact
                   ? most_exact
                   : rows_that_fit(call.code, call.twice_k, static_cast<int>(slice), shared_most());
    if (!exact && call.job_count > 0 &&
        call.jobs[call.job_count - 1].block_end * call.slices >
            device_attribute(cudaDevAttrMultiProcessorCount)) {
        // Sixteen rows leave room for one block a multiprocessor: two passes are faster then.
        most = std::min(most, kMaxRows / 2);
    }
    if (most < 1) {
        return cudaErrorInvalidValue;
    }
    cudaError_t status = cudaSuccess;
    // An expert may be chosen in several slots of a row.
    const int all = call.job_count > 0 ? call.rows : call.rows * std::max(call.experts.k, 1);
    for (int row0 = 0; row0 < all && status == cudaSuccess; row0 += most) {
        const int rows = std::min(most, all - row0);
        const bool known = dispatch(call.twice_k, call.code, [&](auto rate, auto) {
            constexpr int kRate = decltype(rate)::value;
            if (exact && rotated_first(call.k, rows)) {
                status = rotate_rows(call, row0, rows, stream);
                if (status != cudaSuccess) {
                    return;
                }
            }
            status = exact ? launch_exact<kRate>(call, row0, rows, stream)
                           : launch_rate<kRate>(call, row0, rows, static_cast<int>(slice), stream);
        });
        status = known ? status : cudaErrorInvalidValue;
    }
    return status;
}

}  // namespace tenon::exl3::cuda
