// SPDX-License-Identifier: MIT
// EXL3 on a GPU: what the format plugin calls. Every call enqueues on a stream and returns; nothing
// allocates or waits.
#pragma once

#include <cuda_runtime_api.h>

#include "params.h"

namespace tenon::exl3::cuda {

/// Orders the words of rows [k_first, k_first + k_count) of a trellis for the kernels; both are
/// multiples of 64.
///
/// trellis  device, u16 [k_count / 16, n / 16, 8 * twice_k] as stored in a checkpoint
/// words    device, packed_words(k, n, twice_k) of the whole, 16-byte aligned; disjoint from
/// trellis
cudaError_t repack(const uint16_t* trellis, uint32_t* words, int64_t k, int64_t n, int twice_k,
                   int64_t k_first, int64_t k_count, cudaStream_t stream);

/// W rows [row0, row0 + rows) as f32 [rows, in], computed in double and rounded once. `stride` in
/// elements.
cudaError_t dequantize(const Weight& w, int64_t row0, int64_t rows, float* dst, int64_t stride,
                       cudaStream_t stream);

/// y = x W^T of the call's jobs, or of the experts that its rows chose. Any number of rows; bits of
/// a row do not depend on it. Class I, regime decode.
cudaError_t linear(const LinearCall& call, cudaStream_t stream);

}  // namespace tenon::exl3::cuda
