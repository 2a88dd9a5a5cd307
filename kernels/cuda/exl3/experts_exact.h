// SPDX-License-Identifier: MIT
// Experts of codebook mul1 in two launches.
#pragma once

#include "api.h"

namespace tenon::exl3::cuda {

constexpr int kExpertTokens = 4;  ///< of one call
constexpr int kMostSlots = 16;    ///< experts of a token

/// Tables have experts + 1 entries, the last is the shared expert; `words` is null where this rank
/// holds none. All matrices are mul1; gate and up share k and n, all rates may differ.
struct ExpertStep {
    int32_t rows = 0;  ///< at most kExpertTokens
    int32_t k = 0;     ///< slots of a row, at most kMostSlots
    int32_t experts = 0;
    int32_t hidden = 0, width = 0;
    int32_t k_up = 0, k_down = 0;              ///< padded widths: inputs of up and of down
    int32_t twice_k_up = 0, twice_k_down = 0;  ///< largest rates
    int32_t blocks_down = 0;                   ///< of 128 columns of the down projection
    const Weight* gate = nullptr;
    const Weight* up = nullptr;
    const Weight* down = nullptr;
    const int32_t* ids = nullptr;    ///< [rows, k]
    const float* weights = nullptr;  ///< [rows, k]
    float limit = 0;
    bool round = true;
    const void* x = nullptr;  ///< bf16
    int64_t x_stride = 0;
    float* rotated = nullptr;         ///< scratch [rows * (k + 1), k_down]
    float* products = nullptr;        ///< scratch [rows * (k + 1), product_stride]
    int64_t product_stride = 0;       ///< 128 blocks_down
    unsigned int* arrived = nullptr;  ///< scratch [blocks_down]
    float* out = nullptr;
    int64_t out_stride = 0;
};

/// Whether shared memory suffices.
bool experts_fit(int twice_k_up, int k_up, int twice_k_down, int k_down, int k);

cudaError_t run_experts(const ExpertStep& call, cudaStream_t stream);

}  // namespace tenon::exl3::cuda
