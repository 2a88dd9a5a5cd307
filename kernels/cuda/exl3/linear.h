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
/// Whether the current device runs the wide kernel.
bool has_wide();

/// Rotates rows [row0, row0 + rows) of all jobs into call.scratch, 1 to kMostStagedRows of them,
/// and clears `clear` bytes of sums (exact_sums).
cudaError_t rotate_rows(const LinearCall& call, int row0, int rows, int64_t clear,
                        cudaStream_t stream);

/// The plan of a launch of the exact kernel for `rows` rows; ranges = 0: nothing fits.
struct ExactPlan;
ExactPlan choose_exact_plan(const LinearCall& call, int rows);
/// The same of the wide kernel.
ExactPlan choose_wide_plan(const LinearCall& call, int rows);
/// Shared memory of a thread block of a plan.
int exact_bytes(const LinearCall& call, int rows, const ExactPlan& plan);
int wide_bytes(const LinearCall& call, int rows, const ExactPlan& plan);
/// Whether rows of a launch of the exact kernel must have been rotated.
bool rotates_first(const LinearCall& call, int rows);

/// Rows [row0, row0 + rows) of mul1 jobs, 1 to 16 of them, by the exact kernel. Those of which
/// rotates_first says so must have been rotated, and sums cleared.
template <int kTwiceK>
cudaError_t launch_exact(const LinearCall& call, int row0, int rows, cudaStream_t stream);

/// Rows [row0, row0 + rows) of mul1 jobs, 1 to kRowsWide of them, rotated and with cleared sums, by
/// the wide kernel. Same bits as launch_exact. Devices of capability 9.0 only.
template <int kTwiceK>
cudaError_t launch_wide(const LinearCall& call, int row0, int rows, cudaStream_t stream);

}  // namespace tenon::exl3::cuda
