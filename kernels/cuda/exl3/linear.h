// SPDX-License-Identifier: MIT
// The instances of the linear kernel: one source file a rate.
#pragma once

#include "api.h"

namespace tenon::exl3::cuda {

/// Enqueues rows [row0, row0 + rows) of a call, 1 to 16 of them. `slice` is the longest slice.
using LaunchFn = cudaError_t (*)(const LinearCall& call, int row0, int rows, int slice,
                                 cudaStream_t stream);

/// The launcher of a rate; it knows the codes.
template <int kTwiceK>
cudaError_t launch_rate(const LinearCall& call, int row0, int rows, int slice, cudaStream_t stream);

/// Dynamic shared memory that a block may have on the current device, at most kSharedMost.
int shared_most();

/// With this much no two blocks share a multiprocessor: a little over half, or shared_most() if
/// that is less.
int shared_alone();

/// Whether the kernels have their form with clusters on the current device (common/arch.cuh).
bool has_clusters();

/// Rotates rows [row0, row0 + rows) of all jobs into call.scratch, 1 to 16 of them.
cudaError_t rotate_rows(const LinearCall& call, int row0, int rows, cudaStream_t stream);

/// Rows [row0, row0 + rows) of mul1 jobs, 1 to 16 of them, by the exact kernel. Those of which
/// rotated_first says so must have been rotated.
template <int kTwiceK>
cudaError_t launch_exact(const LinearCall& call, int row0, int rows, cudaStream_t stream);

}  // namespace tenon::exl3::cuda
