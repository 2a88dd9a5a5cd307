// SPDX-License-Identifier: MIT
// Products of many rows with ordinary matrices: weights and rows become panels of bf16, exactly,
// which a dense product (kernels/cuda/gemm) multiplies. Class I, regime prefill.
#pragma once

#include "../gemm/dense.h"
#include "plain.h"

namespace tenon::plain::cuda {

/// Rows of bf16 that are multiplied at once, and bytes of the panel of weights at most.
constexpr int64_t kPrefillRows = 2048;
constexpr int64_t kPanelBytes = int64_t{128} << 20;
/// Rows of f32 become three terms of bf16.
constexpr int64_t kTerms = 3;

/// Whether every weight is a bf16 number: others take the kernels of plain.h in both regimes.
constexpr bool has_prefill(const Weight& w) {
    return w.stored == Stored::bf16 || w.stored == Stored::fp8 || w.stored == Stored::fp4;
}

/// Bytes of the panel of rows of one job, whatever the rows' type.
constexpr int64_t prefill_x_bytes(int64_t rows, int64_t in) {
    // Tiles of 128 rows: the three terms of some rows, or more rows of one term.
    constexpr int64_t kSome = kPrefillRows / kTerms;
    const int64_t a = kTerms * gemm::cuda::panel_bytes(rows < kSome ? rows : kSome, padded(in));
    const int64_t b =
        gemm::cuda::panel_bytes(rows < kPrefillRows ? rows : kPrefillRows, padded(in));
    return a > b ? a : b;
}
constexpr int64_t prefill_w_bytes(int64_t out, int64_t in) {
    return gemm::cuda::panel_bytes(out, padded(in));
}

struct PrefillJob {
    Weight weight;
    const void* x = nullptr;  ///< [rows, in]
    int64_t x_stride = 0;     ///< elements
    void* y = nullptr;
    int64_t y_stride = 0;
    bool y_is_f32 = false;
};
struct PrefillCall {
    int32_t rows = 0;
    bool x_is_f32 = false;
    int32_t job_count = 0;
    PrefillJob jobs[kMaxJobs];  ///< of one `in`
    void* scratch = nullptr;    ///< prefill_x_bytes of every job, then w_bytes
    int64_t w_bytes = 0;        ///< what all jobs have, or kPanelBytes if that is less
};
cudaError_t prefill(const PrefillCall& call, cudaStream_t stream);

}  // namespace tenon::plain::cuda
