// SPDX-License-Identifier: MIT
// The kernels here use these wrappers all over.
#pragma once

#include "../common/async.cuh"

namespace tenon::exl3::cuda {
using namespace tenon::cuda::async;
using tenon::cuda::kHasClusters;
}  // namespace tenon::exl3::cuda
