// SPDX-License-Identifier: MIT
// The products of sorted rows for 2 K = 8.
#include "prefill_grouped.cuh"

namespace tenon::exl3::cuda {
template cudaError_t grouped<8>(const GroupedCall&, Code, cudaStream_t);
}  // namespace tenon::exl3::cuda
