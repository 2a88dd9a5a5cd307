// SPDX-License-Identifier: MIT
// Cuts rows into launches and picks the rate.
#include "linear.h"

#include <algorithm>

#include "dispatch.cuh"
#include "smem.h"

namespace tenon::exl3::cuda {

namespace {

int attribute(cudaDeviceAttr which) {
    int device = 0;
    int value = 0;
    const bool known = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&value, which, device) == cudaSuccess;
    return known ? value : 0;
}

}  // namespace

int shared_most() {
    return std::min(kSharedMost, attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
}

cudaError_t linear(const LinearCall& call, cudaStream_t stream) {
    if (call.rows <= 0 || (call.job_count == 0 && call.experts.blocks == 0)) {
        return cudaSuccess;
    }
    const bool exact = call.code == Code::mul1 && call.job_count > 0 && !call.sliced;
    int64_t slice = 0;
    for (int s = 0; s < call.slices; ++s) {
        slice = std::max(
            slice, slice_begin(call.k, call.slices, s + 1) - slice_begin(call.k, call.slices, s));
    }
    int most = exact
                   ? kRowsExact
                   : rows_that_fit(call.code, call.twice_k, static_cast<int>(slice), shared_most());
    if (!exact && call.job_count > 0 &&
        call.jobs[call.job_count - 1].block_end * call.slices >
            attribute(cudaDevAttrMultiProcessorCount)) {
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
            if (exact && rows > kRowsFused) {
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
