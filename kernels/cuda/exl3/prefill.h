// SPDX-License-Identifier: MIT
// Products of many rows: weights are decoded once into a panel of halves, rows are rotated into
// another, and a dense product (kernels/cuda/gemm) multiplies them. Class I, regime prefill.
#pragma once

#include "../gemm/dense.h"
#include "api.h"

namespace tenon::exl3::cuda {

/// Rows that are multiplied at once, and bytes of decoded weights at most.
constexpr int64_t kPrefillRows = 2048;
constexpr int64_t kPanelBytes = int64_t{128} << 20;

/// Bytes of the rotated rows of one job: panel and scales.
constexpr int64_t prefill_x_bytes(int64_t rows, int64_t k) {
    const int64_t count = rows < kPrefillRows ? rows : kPrefillRows;
    return gemm::cuda::panel_bytes(count, k) + (count * 4 + 255) / 256 * 256;
}
/// Bytes of the decoded weights of one job, uncut.
constexpr int64_t prefill_w_bytes(int64_t out, int64_t k) {
    return gemm::cuda::panel_bytes(out, k);
}

/// y = x W^T of the call's jobs. `scratch` holds prefill_x_bytes of every job, then w_bytes: at
/// least what the largest job has or kPanelBytes; as many jobs as fit are multiplied together.
cudaError_t prefill(const LinearCall& call, int64_t w_bytes, cudaStream_t stream);

}  // namespace tenon::exl3::cuda
