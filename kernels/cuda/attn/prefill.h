// SPDX-License-Identifier: MIT
// The prefill kernel of 64 heads: a library of its own, since it is compiled otherwise.
#pragma once

#include "attn/keys.cuh"
#include "common/context.h"
#include "tenon/compute.h"

namespace tenon::cuda::sparse {

/// Whether the kernel takes the call. Nothing of it follows from T.
bool flows(const Context& c, const Args& a, int64_t D, Regime regime);

template <bool kTurn>
cudaError_t launch_flow(const Context& c, const Args& a, cudaStream_t stream);

}  // namespace tenon::cuda::sparse
