// SPDX-License-Identifier: MIT
// What the index kernels share: row tables, pages of keys, and the order of scores.
#pragma once

#include <stdint.h>

#include "common/dependent.cuh"
#include "tenon/ops/rows.h"

namespace tenon::cuda::index {

constexpr float kMinusInf = -__builtin_huge_valf();
constexpr float kPlusInf = __builtin_huge_valf();

using Row = RowInfo;
using Segment = SegInfo;

/// Pages of index keys; q4u rows are 64 bytes of codes and one scale byte per 32 columns.
struct Keys {
    const uint8_t* pool;
    const int* table;
    int64_t page_bytes, codes_at, scales_at;
    int pages, table_slots, table_width, rows_per_page, ratio;
    int page_shift;  // log2(rows_per_page), or -1
    __device__ int page_of(int row) const {
        return page_shift >= 0 ? row >> page_shift : row / rows_per_page;
    }
};

/// Columns of a score row: row ids in order, or rows of the candidate blocks of the row.
struct Columns {
    const int* cand;  // this row's [C], or null
    int block;
    /// The row id of column j, or -1.
    __device__ int id(int j) const {
        if (cand == nullptr) {
            return j;
        }
        const int b = j / block;
        const int first = cand[b];
        return first < 0 ? -1 : first * block + (j - b * block);
    }
};

__device__ inline int visible_rows(int pos, int ratio) {
    return static_cast<int>((static_cast<unsigned>(pos) + 1) / static_cast<unsigned>(ratio));
}

/// Scores as unsigned numbers in the same order: -0 equals +0; 0 for NaN and -inf, which are never
/// chosen.
__device__ inline uint32_t order_key(float score) {
    if (!(score > kMinusInf)) {
        return 0;
    }
    const uint32_t u = __float_as_uint(score == 0.0f ? 0.0f : score);
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

/// How every kernel here begins (common/dependent.cuh).
__device__ inline void start_when_ready() {
    wait_for_previous();
    let_next_start();
}

constexpr int kBins = 2048;  // first cut of a selection: sign, exponent, two bits of fraction
__device__ inline int bin_of(uint32_t key) {
    return static_cast<int>(key >> 21);
}

}  // namespace tenon::cuda::index
