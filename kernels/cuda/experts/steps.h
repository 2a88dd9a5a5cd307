// SPDX-License-Identifier: MIT
// What the experts of every format do between and after their products on a GPU (ops.md 3.4).
// An entry is row * (k + 1) + slot; slot k is the shared expert.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tenon::experts::cuda {

/// a = bf16(weight silu(g) u) by entry, with g and u rounded to bf16 and clamped.
struct ActivationCall {
    int32_t rows = 0, k = 0, width = 0;
    const float* gate = nullptr;  ///< [entries, width]
    const float* up = nullptr;
    const float* weights = nullptr;  ///< [rows, k]
    float limit = 0;
    uint16_t* a = nullptr;  ///< bf16 [entries, a_stride]
    int64_t a_stride = 0;
};
cudaError_t activate(const ActivationCall& call, cudaStream_t stream);

/// out[t] = sum over the slots of t that have an expert here, ascending, then the shared expert.
struct CombineCall {
    int32_t rows = 0, k = 0, width = 0, experts = 0;
    const uint8_t* held = nullptr;  ///< device: [experts + 1], 1 if this rank holds the expert
    const int32_t* ids = nullptr;
    const float* products = nullptr;  ///< [entries, width]
    bool round = true;                ///< each product to bf16 first
    float* out = nullptr;
    int64_t out_stride = 0;
};
cudaError_t combine(const CombineCall& call, cudaStream_t stream);

}  // namespace tenon::experts::cuda
