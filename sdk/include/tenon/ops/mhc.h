// SPDX-License-Identifier: MIT
// The four residual streams: mixing coefficients, collapse to one row, expand back, mean (M 3.2).
#pragma once

#include "tenon/ops/rows.h"

namespace tenon {

/// pre, post, comb of a site from h. Another number of streams than 4 is `unsupported`. Class I.
/// All f32; comb is [source][destination]. `iters` counts column normalisations (the first one
/// included).
struct MhcMix {
    static constexpr OpId kOp{"mhc.mix", 1};
    TensorView h{};        ///< bf16[T, 4, d]
    TensorView fn{};       ///< f32[24, 4d]
    TensorView scale{};    ///< f32[3]: pre, post, comb
    TensorView base{};     ///< f32[24]
    float eps = 1e-20f;    ///< of the square mean over 4d values
    float hc_eps = 1e-6f;  ///< added to pre, to the softmax and to every divisor
    int32_t iters = 20;
    TensorView pre{};   ///< f32[T, 4]
    TensorView post{};  ///< f32[T, 4]
    TensorView comb{};  ///< f32[T, 4, 4]
    TensorView scratch{};
};

/// out = bf16(sum over streams ascending of fma(pre_j, h_j, acc)), acc from 0. Class I.
struct MhcCollapse {
    static constexpr OpId kOp{"mhc.collapse", 1};
    TensorView h{};    ///< bf16[T, 4, d]
    TensorView pre{};  ///< f32[T, 4]
    TensorView out{};  ///< bf16[T, d]
};

/// out[k] = bf16(fma(post_k, y, acc)), acc = sum over sources j ascending of fma(comb[j][k], h_j,
/// acc) from 0. A f32 y is rounded to bf16 first. Class I. In place: out is h.
struct MhcExpand {
    static constexpr OpId kOp{"mhc.expand", 1};
    TensorView y{};     ///< bf16 or f32 [T, d]
    TensorView h{};     ///< bf16[T, 4, d]
    TensorView post{};  ///< f32[T, 4]
    TensorView comb{};  ///< f32[T, 4, 4]
    TensorView out{};   ///< bf16[T, 4, d]
};

/// out = bf16((h0 + h1 + h2 + h3) / 4), f32 sum in that order. Class I.
struct MhcMean {
    static constexpr OpId kOp{"mhc.mean", 1};
    TensorView h{};    ///< bf16[T, 4, d]
    TensorView out{};  ///< bf16[T, d], rows may be strided (a third of [T, 3d])
};

/// Optional. = y = bf16(sum over ranks ascending of parts); mhc.expand. In place: out is h. Class
/// I.
struct MhcReduceExpand {
    static constexpr OpId kOp{"mhc.reduce_expand", 1};
    TensorView parts{};  ///< f32[W, T, d]
    TensorView h{};      ///< bf16[T, 4, d]
    TensorView post{};   ///< f32[T, 4]
    TensorView comb{};   ///< f32[T, 4, 4]
    TensorView out{};    ///< bf16[T, 4, d]
};

/// Optional. = mhc.mix(h); norm.rms(mhc.collapse(h, pre_in)). Class I.
struct MhcMixCollapseNorm {
    static constexpr OpId kOp{"mhc.mix_collapse_norm", 1};
    TensorView h{};      ///< bf16[T, 4, d]
    TensorView fn{};     ///< f32[24, 4d]
    TensorView scale{};  ///< f32[3]
    TensorView base{};   ///< f32[24]
    float eps = 1e-20f;  ///< of the mix and of the norm
    float hc_eps = 1e-6f;
    int32_t iters = 20;
    TensorView pre_in{};       ///< f32[T, 4], the previous site's
    TensorView norm_weight{};  ///< bf16 or f32 [d]
    TensorView x{};            ///< bf16[T, d]
    TensorView pre{};          ///< f32[T, 4]; in place: may be pre_in
    TensorView post{};         ///< f32[T, 4]
    TensorView comb{};         ///< f32[T, 4, 4]
    TensorView scratch{};
};

/// Optional. = norm.rms(mhc.collapse(h, pre)). Class I.
struct MhcCollapseNorm {
    static constexpr OpId kOp{"mhc.collapse_norm", 1};
    TensorView h{};            ///< bf16[T, 4, d]
    TensorView pre{};          ///< f32[T, 4]
    TensorView norm_weight{};  ///< bf16 or f32 [d]
    float eps = 1e-20f;
    TensorView x{};  ///< bf16[T, d]
};

/// Optional. = mhc.reduce_expand or mhc.expand (this site); mhc.mix, mhc.collapse, norm.rms (next
/// site). In place: out is h. `pre`, `post`, `comb` may be the input `post_in`, `comb_in`, `pre_in`
/// buffers. Class I.
struct MhcSeam {
    static constexpr OpId kOp{"mhc.seam", 1};
    TensorView parts{};    ///< f32[W, T, d], or null: use y
    TensorView y{};        ///< bf16 or f32 [T, d], or null: use parts
    TensorView h{};        ///< bf16[T, 4, d]
    TensorView post_in{};  ///< f32[T, 4], this site
    TensorView comb_in{};  ///< f32[T, 4, 4], this site
    TensorView fn{};       ///< f32[24, 4d], next site
    TensorView scale{};    ///< f32[3]
    TensorView base{};     ///< f32[24]
    float eps = 1e-20f;
    float hc_eps = 1e-6f;
    int32_t iters = 20;
    TensorView pre_in{};       ///< f32[T, 4], this site: what the next site collapses with
    TensorView norm_weight{};  ///< bf16 or f32 [d]
    TensorView out{};          ///< bf16[T, 4, d]
    TensorView x{};            ///< bf16[T, d]
    TensorView pre{};          ///< f32[T, 4], next site
    TensorView post{};         ///< f32[T, 4]
    TensorView comb{};         ///< f32[T, 4, 4]
    TensorView scratch{};
};

}  // namespace tenon
