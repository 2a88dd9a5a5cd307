// SPDX-License-Identifier: MIT
// mhc.mix.
#include "mhc/mix.h"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"
#include "mhc/mix.cuh"

namespace tenon::cuda {

template <Regime kRegime>
void launch_mix_parts(const TensorView& h, const TensorView& fn, void* scratch,
                      cudaStream_t stream) {
    constexpr int kSlices = kRegime == Regime::decode ? 1 : 16;
    const int64_t T = h.shape[0];
    const int64_t n = 4 * h.shape[2];
    // How many rows share a block changes no row's arithmetic.
    const int rows = T == 1 ? 1 : 8;
    const dim3 grid(static_cast<unsigned>(mix_parts<kRegime>(n)),
                    static_cast<unsigned>((T + rows - 1) / rows));
    const auto kernel = rows == 1 ? &mix_parts_kernel<1, kSlices> : &mix_parts_kernel<8, kSlices>;
    kernel<<<grid, kMixThreads, 0, stream>>>(h.as<const uint16_t>(), fn.as<const float>(), T, n,
                                             static_cast<float*>(scratch));
}
template void launch_mix_parts<Regime::decode>(const TensorView&, const TensorView&, void*,
                                               cudaStream_t);
template void launch_mix_parts<Regime::prefill>(const TensorView&, const TensorView&, void*,
                                                cudaStream_t);

namespace {

using namespace kernels;

template <Regime kRegime>
int64_t scratch_bytes(void*, const MhcMix& p) noexcept {
    return mix_scratch<kRegime>(rows_of(p.h), dim(p.h, 2));
}

template <Regime kRegime>
Status mix(void* self, const MhcMix& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    Check c(MhcMix::kOp.name);
    c.scratch(p.scratch, scratch_bytes<kRegime>(self, p));
    TENON_TRY(c.take());
    const int64_t T = p.h.shape[0];
    const int64_t n = 4 * p.h.shape[2];
    if (T == 0 || n == 0) {
        return {};
    }
    launch_mix_parts<kRegime>(p.h, p.fn, p.scratch.data, native(stream));
    const MixFinish f{p.scratch.as<const float>(),
                      mix_parts<kRegime>(n),
                      n,
                      p.scale.as<const float>(),
                      p.base.as<const float>(),
                      p.eps,
                      p.hc_eps,
                      p.iters,
                      p.pre.as<float>(),
                      p.post.as<float>(),
                      p.comb.as<float>()};
    mix_finish_kernel<<<static_cast<unsigned>(T), kMixThreads, 0, native(stream)>>>(f);
    return launched(MhcMix::kOp.name);
}

}  // namespace

void add_mhc_streams(Registry& r);
void add_mhc_seam(Registry& r);

void add_mhc(Registry& r) {
    r.add<MhcMix>(&mix<Regime::decode>, Exactness::invariant, kDecode,
                  &scratch_bytes<Regime::decode>);
    r.add<MhcMix>(&mix<Regime::prefill>, Exactness::invariant, kPrefill,
                  &scratch_bytes<Regime::prefill>);
    add_mhc_streams(r);
    add_mhc_seam(r);
}

}  // namespace tenon::cuda
