// SPDX-License-Identifier: MIT
// Experts of codebook mul1.
#pragma once

#include "api.h"

namespace tenon::exl3::cuda {

constexpr int kExpertTokens = 16;  ///< of one call
constexpr int kMostSlots = 16;     ///< experts of a token
constexpr int kGroupRows = 4;      ///< rows for which a weight is decoded once

/// One projection of an expert and up to kGroupRows rows that chose it.
struct ExpertItem {
    const uint32_t* words;
    int32_t twice_k, rows;
    int32_t entry[kGroupRows];
};

/// Device memory of one call, in any state before it. Entry = row * (k + 1) + slot.
struct ExpertScratch {
    int32_t* groups = nullptr;       ///< [1]
    ExpertItem* items = nullptr;     ///< [3 most_groups]: gate and up of all groups, then down
    uint8_t* digits_up = nullptr;    ///< [entries][2][2 k_up] fixed-point inputs of gate and up
    uint8_t* digits_down = nullptr;  ///< [entries][2 k_down]
    float* most_up = nullptr;        ///< [entries][2] largest magnitude
    int32_t* total_up = nullptr;     ///< [entries][2] sum of fixed-point values
    float* most_down = nullptr;      ///< [entries]
    int32_t* total_down = nullptr;   ///< [entries]
    int64_t* sums_up = nullptr;      ///< [entries][2][k_down] exact products
    int64_t* sums_down = nullptr;    ///< [entries][128 blocks_down]
};

/// Groups that `rows` tokens of `k` slots can make, the shared expert's included.
TENON_HD constexpr int64_t most_groups(int64_t rows, int64_t k) {
    return rows * k + (rows + kGroupRows - 1) / kGroupRows;
}

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
    ExpertScratch scratch;
    float* out = nullptr;
    int64_t out_stride = 0;
};

/// Whether shared memory and the integers suffice.
bool experts_fit(int twice_k_up, int k_up, int twice_k_down, int k_down, int k);

cudaError_t run_experts(const ExpertStep& call, cudaStream_t stream);

}  // namespace tenon::exl3::cuda
