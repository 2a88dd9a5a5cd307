// SPDX-License-Identifier: MIT
// How large clusters may be on a device: a GPC, or what a MIG slice has of it, bounds them.
#pragma once

#include "kernels/cuda/device/probe.h"

namespace tenon::cuda {

/// What every cluster launch may count on (sample.*, exl3): the portable size.
constexpr int kLeastCluster = 8;
/// The largest that any kernel uses.
constexpr int kMostCluster = 16;

/// Blocks of the largest cluster that the current device runs, up to kMostCluster, if each block
/// takes `bytes` of dynamic shared memory, the most a block may have: one block a multiprocessor.
/// Asks the driver, launches nothing.
/// errors  device
Status largest_cluster(int bytes, int* out);

/// The size that ops count on: what the device has, `found`, but at most `wanted`.
/// errors  unavailable: `found` is less than kLeastCluster
Result<int> choose_cluster(const GpuFacts& facts, int found, int wanted);

}  // namespace tenon::cuda
