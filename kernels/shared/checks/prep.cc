// SPDX-License-Identifier: MIT
// Checks of the fused preparation of queries, keys and values.
#include "kernels/shared/op_checks.h"

namespace tenon::kernels {

namespace {

/// What an emitted row of n channels needs besides its input.
void check_emit(Check& c, const TensorView& weight, const TensorView& cs, const Rows& rows,
                const char* field, const Pages& pages, RowFormat quantiser, int64_t n) {
    const int64_t R = dim(cs, 1);
    c.rows(rows, rows.T).dense("norm_weight", weight, kFloats, {n});
    c.dense("cs", cs, kF32, {rows.T, R}).in_range("R", R, 0, n).multiple("R", R, 2);
    c.pages(field, pages, n).multiple("n", n, 32);
    c.unsupported(pages.format != RowFormat::bf16 && pages.format != quantiser, field,
                  "pages in neither bf16 nor the quantiser's format");
    c.unsupported(n > kMaxPrepWidth, "norm_weight", "more than 1024 channels");
}

}  // namespace

Status check_op(const AttnQkvPrep& p) {
    const int64_t T = p.rows.T;
    const int64_t D = dim(p.kv_raw, 1);
    const int64_t R = dim(p.cs, 1);
    Check c(AttnQkvPrep::kOp.name);
    c.rows(p.rows, T).strided("kv_raw", p.kv_raw, kBf16, {T, D});
    c.dense("kv_weight", p.kv_weight, kFloats, {D}).dense("kv", p.kv, kBf16, {T, D});
    c.dense("cs", p.cs, kF32, {T, R}).in_range("R", R, 0, D).multiple("R", R, 2);
    c.multiple("D", D, 32).in_place("kv", p.kv, "kv_raw", p.kv_raw).finite("eps", p.eps);
    c.unsupported(D > kMaxPrepWidth, "kv_raw", "more than 1024 channels");
    if (!p.qa_raw.null()) {
        const int64_t r = dim(p.qa_raw, 1);
        c.strided("qa_raw", p.qa_raw, kBf16, {T, r}).dense("qa", p.qa, kBf16, {T, r});
        c.dense("qa_weight", p.qa_weight, kFloats, {r}).multiple("r", r, 8);
        c.in_place("qa", p.qa, "qa_raw", p.qa_raw);
    }
    if (!p.ring.codes.null()) {
        c.ring(p.ring, D);
    }
    return c.take();
}

Status check_op(const CompressEmit& p) {
    const int64_t T = p.rows.T;
    const int64_t D = dim(p.latent, 1);
    Check c(CompressEmit::kOp.name);
    check_emit(c, p.norm_weight, p.cs, p.rows, "comp", p.comp, RowFormat::q4e, D);
    c.dense("latent", p.latent, kBf16, {T, D}).finite("eps", p.eps);
    if (!p.latent_raw.null()) {
        c.dense("latent_raw", p.latent_raw, kBf16, {T, D});
        c.in_place("latent", p.latent, "latent_raw", p.latent_raw);
        return c.take();
    }
    c.dense("a", p.a, kF32, {T, D}).dense("s", p.s, kF32, {T, D});
    c.dense("raw", p.raw, kF32, {kAny, kRawPositions, 2, D});
    return c.take();
}

Status check_op(const IndexKeyEmit& p) {
    const int64_t n = dim(p.k_raw, 1);
    Check c(IndexKeyEmit::kOp.name);
    c.dense("k_raw", p.k_raw, kBf16, {p.rows.T, n}).finite("eps", p.eps);
    check_emit(c, p.norm_weight, p.cs, p.rows, "keys", p.keys, RowFormat::q4u, n);
    return c.take();
}

Status check_op(const IndexQueryPrep& p) {
    const int64_t T = rows_of(p.iq);
    const int64_t Hi = dim(p.iq, 1);
    const int64_t Di = dim(p.iq, 2);
    const int64_t R = dim(p.cs, 1);
    const int64_t d = dim(p.x, 1);
    Check c(IndexQueryPrep::kOp.name);
    c.dense("iq", p.iq, kBf16, {T, Hi, Di}).multiple("Di", Di, 32);
    c.dense("cs", p.cs, kF32, {T, R}).in_range("R", R, 0, Di).multiple("R", R, 2);
    c.strided("x", p.x, kBf16, {T, d}).dense("weights_proj", p.weights_proj, kBf16, {Hi, d});
    c.dense("w", p.w, kBf16, {T, Hi}).multiple("d", d, 8);
    c.disjoint("w", p.w, "x", p.x).disjoint("iq", p.iq, "x", p.x).disjoint("w", p.w, "iq", p.iq);
    if (!p.codes.null() || !p.scales.null()) {
        c.dense("codes", p.codes, kU8, {T, Hi, Di / 2});
        c.dense("scales", p.scales, kU8, {T, Hi, Di / 32});
    }
    return c.take();
}

}  // namespace tenon::kernels
