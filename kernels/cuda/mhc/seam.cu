// SPDX-License-Identifier: MIT
// mhc.seam, mhc.mix_collapse_norm and mhc.collapse_norm.
#include "mhc/seam.cuh"

#include <type_traits>

#include "common/registry.h"
#include "kernels/shared/op_checks.h"
#include "mhc/seam_tile.cuh"

namespace tenon::cuda {

namespace {

using namespace kernels;

// Column parts of a row. Decode: so many that one row fills the GPU; prefill: few partial sums.
template <Regime kRegime>
int64_t seam_parts(int64_t d) {
    constexpr int64_t kColumns =
        kRegime == Regime::decode ? kSeamColumns : kSeamTileSlices * kSeamTileColumns;
    return (d + kColumns - 1) / kColumns;
}

template <Regime kRegime, class P>
int64_t scratch_bytes(void*, const P& p) noexcept {
    return rows_of(p.h) * kSeamValues * seam_parts<kRegime>(dim(p.h, 2)) * 4;
}

// What the two fused ops have in common: mix and norm of the next site, into x, pre, post, comb.
template <class P>
SeamArgs common_args(const P& p) {
    SeamArgs a{};
    a.h = p.h.template as<const uint16_t>();
    a.fn = p.fn.template as<const float>();
    a.pre_in = p.pre_in.template as<const float>();
    a.x = p.x.template as<uint16_t>();
    a.partial = p.scratch.template as<float>();
    a.T = p.h.shape[0];
    a.d = p.h.shape[2];
    return a;
}

template <Regime kRegime, class P>
void launch_finish(const P& p, const SeamArgs& a, cudaStream_t stream) {
    const MixFinish f{a.partial,
                      seam_parts<kRegime>(a.d),
                      4 * a.d,
                      p.scale.template as<const float>(),
                      p.base.template as<const float>(),
                      p.eps,
                      p.hc_eps,
                      p.iters,
                      p.pre.template as<float>(),
                      p.post.template as<float>(),
                      p.comb.template as<float>()};
    const auto launch = [&](const auto* weight) {
        using W = std::remove_cvref_t<decltype(*weight)>;
        constexpr int kThreads = kRegime == Regime::decode ? kSeamFewThreads : kMixThreads;
        launch_dependent(&seam_finish_kernel<kThreads, W>, static_cast<unsigned>(a.T), kThreads, 0,
                         stream, f, a.x, weight, a.d);
    };
    p.norm_weight.dtype == DType::bf16 ? launch(p.norm_weight.template as<const uint16_t>())
                                       : launch(p.norm_weight.template as<const float>());
}

template <Regime kRegime, bool kExpand, class Y>
void launch_parts(const SeamArgs& a, cudaStream_t stream) {
    constexpr bool kTiles = kRegime == Regime::prefill;
    const int64_t rows = kTiles ? kSeamTileRows : kSeamRows;
    const dim3 grid(static_cast<unsigned>(seam_parts<kRegime>(a.d)),
                    static_cast<unsigned>((a.T + rows - 1) / rows));
    if constexpr (kTiles) {
        launch_dependent(&seam_tile_kernel<kExpand, Y>, grid, kMixThreads, 0, stream, a);
    } else {
        launch_dependent(&seam_parts_kernel<kExpand, Y>, grid, kMixThreads, 0, stream, a);
    }
}

template <Regime kRegime>
Status seam(void* self, const MhcSeam& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    Check c(MhcSeam::kOp.name);
    c.scratch(p.scratch, scratch_bytes<kRegime>(self, p));
    TENON_TRY(c.take());
    SeamArgs a = common_args(p);
    if (a.T == 0 || a.d == 0) {
        return {};
    }
    const TensorView& y = p.parts.null() ? p.y : p.parts;
    a.y = y.data;
    a.y_parts = p.parts.null() ? 1 : p.parts.shape[0];
    a.out = p.out.as<uint16_t>();
    a.post = p.post_in.as<const float>();
    a.comb = p.comb_in.as<const float>();
    y.dtype == DType::bf16 ? launch_parts<kRegime, true, uint16_t>(a, native(stream))
                           : launch_parts<kRegime, true, float>(a, native(stream));
    launch_finish<kRegime>(p, a, native(stream));
    return launched(MhcSeam::kOp.name);
}

template <Regime kRegime>
Status mix_collapse_norm(void* self, const MhcMixCollapseNorm& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    Check c(MhcMixCollapseNorm::kOp.name);
    c.scratch(p.scratch, scratch_bytes<kRegime>(self, p));
    TENON_TRY(c.take());
    const SeamArgs a = common_args(p);
    if (a.T == 0 || a.d == 0) {
        return {};
    }
    launch_parts<kRegime, false, float>(a, native(stream));
    launch_finish<kRegime>(p, a, native(stream));
    return launched(MhcMixCollapseNorm::kOp.name);
}

Status collapse_norm(void*, const MhcCollapseNorm& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t d = p.h.shape[2];
    const auto T = static_cast<unsigned>(p.h.shape[0]);
    if (T == 0 || d == 0) {
        return {};
    }
    const auto launch = [&](const auto* weight) {
        collapse_norm_kernel<<<T, kMixThreads, 0, native(stream)>>>(p.h.as<const uint16_t>(),
                                                                    p.pre.as<const float>(), weight,
                                                                    p.x.as<uint16_t>(), d, p.eps);
    };
    p.norm_weight.dtype == DType::bf16 ? launch(p.norm_weight.as<const uint16_t>())
                                       : launch(p.norm_weight.as<const float>());
    return launched(MhcCollapseNorm::kOp.name);
}

template <Regime kRegime>
void add_regime(Registry& r, uint32_t bits) {
    r.add<MhcSeam>(&seam<kRegime>, Exactness::invariant, bits, &scratch_bytes<kRegime, MhcSeam>);
    r.add<MhcMixCollapseNorm>(&mix_collapse_norm<kRegime>, Exactness::invariant, bits,
                              &scratch_bytes<kRegime, MhcMixCollapseNorm>);
}

}  // namespace

void add_mhc_seam(Registry& r) {
    add_regime<Regime::decode>(r, kDecode);
    add_regime<Regime::prefill>(r, kPrefill);
    r.add<MhcCollapseNorm>(&collapse_norm, Exactness::invariant);
}

}  // namespace tenon::cuda
