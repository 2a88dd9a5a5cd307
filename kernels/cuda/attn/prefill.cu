// SPDX-License-Identifier: MIT
// Launches the prefill kernel of 64 heads.
#include "attn/prefill.h"

#include <algorithm>

#include "attn/prefill.cuh"

namespace tenon::cuda::sparse {

bool flows(const Context& c, const Args& a, int64_t D, Regime regime) {
    return c.arch == 90 && regime == Regime::prefill && D == kFlowD && a.H > kFlowHeads / 2 &&
           a.H <= kFlowHeads && a.R <= kFlowTurned &&
           (a.K == 0 || a.comp_format != kQ4e ||
            (reinterpret_cast<uintptr_t>(a.pool) | static_cast<uintptr_t>(a.page_bytes) |
             static_cast<uintptr_t>(a.codes_at) | static_cast<uintptr_t>(a.scales_at)) %
                    16 ==
                0) &&
           static_cast<size_t>(c.smem_block) >= kFlowBytes;
}

template <bool kTurn>
cudaError_t launch_flow(const Context& c, const Args& a, cudaStream_t stream) {
    auto* kernel = &prefill_kernel<kTurn>;
    const cudaError_t result =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kFlowBytes);
    if (result == cudaSuccess) {
        kernel<<<static_cast<unsigned>(std::min(a.T, c.sms)), kFlowThreads, kFlowBytes, stream>>>(
            a);
    }
    return result;
}
template cudaError_t launch_flow<false>(const Context&, const Args&, cudaStream_t);
template cudaError_t launch_flow<true>(const Context&, const Args&, cudaStream_t);

}  // namespace tenon::cuda::sparse
