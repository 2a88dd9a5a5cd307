// SPDX-License-Identifier: MIT
// norm.rms.
#include "norm/rms.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

template <class X, class W, class Y>
void launch(const NormRms& p, cudaStream_t stream) {
    const int64_t n = p.x.shape[1];
    const auto T = static_cast<unsigned>(p.x.shape[0]);
    const auto kernel = n % 8 == 0 ? &rms_kernel<X, W, Y> : &rms_any_kernel<X, W, Y>;
    kernel<<<T, kNormThreads, 0, stream>>>(p.x.as<const X>(), p.x.stride[0], p.weight.as<const W>(),
                                           p.out.as<Y>(), p.out.stride[0], n, p.eps);
}

template <class X, class W>
void launch_out(const NormRms& p, cudaStream_t stream) {
    p.out.dtype == DType::bf16 ? launch<X, W, uint16_t>(p, stream) : launch<X, W, float>(p, stream);
}

template <class X>
void launch_weight(const NormRms& p, cudaStream_t stream) {
    p.weight.dtype == DType::bf16 ? launch_out<X, uint16_t>(p, stream)
                                  : launch_out<X, float>(p, stream);
}

Status rms(void*, const NormRms& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    if (p.x.shape[0] == 0 || p.x.shape[1] == 0) {
        return {};
    }
    p.x.dtype == DType::bf16 ? launch_weight<uint16_t>(p, native(stream))
                             : launch_weight<float>(p, native(stream));
    return launched(NormRms::kOp.name);
}

}  // namespace

void add_norm(Registry& r) {
    r.add<NormRms>(&rms, Exactness::invariant);
}

}  // namespace tenon::cuda
