// SPDX-License-Identifier: MIT
// What the EXL3 kernels are called with. Plain data, no CUDA types, so that host code can include
// it.
#pragma once

#include <cstdint>

#include "layout.h"

namespace tenon::exl3::cuda {

/// One packed matrix in device memory. k and n are multiples of 128; `in` and `out` of them exist.
struct Weight {
    const uint32_t* words = nullptr;
    const uint16_t* suh = nullptr;  ///< half[k]
    const uint16_t* svh = nullptr;  ///< half[n]
    const float* bias = nullptr;    ///< [n] or null
    int32_t k = 0, n = 0;
    int32_t in = 0, out = 0;
    int32_t twice_k = 0;
    Code code = Code::mul1;
    uint64_t* sums = nullptr;  ///< as in Job
};

enum class Element : int32_t { bf16 = 0, f32 = 1 };

/// One product of a launch. All jobs of a launch share k, rate, code, rows and slices.
struct Job {
    const uint32_t* words = nullptr;
    const uint16_t* suh = nullptr;
    const uint16_t* svh = nullptr;
    const float* bias = nullptr;
    const void* x = nullptr;
    void* y = nullptr;
    int64_t x_stride = 0;  ///< elements
    int64_t y_stride = 0;
    int32_t out = 0;
    Element y_element = Element::bf16;
    /// mul1: [shared_sums_of(blocks)][fused_rows(k)][128] zeros, which launches leave as zeros, so
    /// one stream at a time uses them; null: rows are rotated first, sums lie in scratch.
    uint64_t* sums = nullptr;
    int32_t blocks = 0;     ///< of 128 columns
    int32_t block_end = 0;  ///< of this job and of those before it
};
constexpr int kMaxJobs = 8;
constexpr int kMostStagedRows = 32;

/// A launch over the experts that rows chose, instead of over jobs. One thread block column per
/// (row, slot) entry, of which the first with an expert works for all of its rows.
struct ExpertCall {
    const Weight* table = nullptr;  ///< device: [experts + 1], the last is the shared expert
    const int32_t* ids = nullptr;   ///< device: [rows, k]
    int32_t experts = 0;
    int32_t k = 0;
    bool has_shared = false;
    bool x_by_entry = false;  ///< x row of an entry is the entry itself, not its token
    const void* x = nullptr;
    int64_t x_stride = 0;
    float* y = nullptr;  ///< f32 [rows * (k + 1), n] by entry row * (k + 1) + slot
    int64_t y_stride = 0;
    int32_t blocks = 0;  ///< n / 128
};

/// Rotated rows of one launch in device memory, for mul1 jobs where rotated_first says so: one set
/// a job.
struct StagedSet {
    uint8_t* digits = nullptr;  ///< [n8 blocks][k / 16][8 columns][16]
    float* most = nullptr;      ///< [kMostStagedRows] largest magnitude, by row
    int32_t* sums = nullptr;    ///< [kMostStagedRows][k / 128] sums of fixed-point values
};

/// Bytes of one set for `rows` rows, at most kMostStagedRows; a multiple of 256.
constexpr int64_t staged_set_bytes(int64_t rows, int64_t k) {
    const int64_t blocks = rows <= 8 ? 2 : (rows <= 16 ? 4 : 8);
    const int64_t bytes = 4 * kMostStagedRows * (1 + k / kBlock) + blocks * k * 8;
    return (bytes + 255) / 256 * 256;
}

constexpr int kMostPlaces = 192;  ///< thread blocks that share a list of units

/// Column blocks of a job whose sums may be shared by thread blocks of the exact kernel: each has
/// another one that finishes it.
TENON_HD constexpr int shared_sums_of(int blocks) {
    return blocks < kMostPlaces ? blocks : kMostPlaces;
}

/// Scratch of a launch of mul1 jobs: sets, and exact sums of `column_blocks` of 128, all of the
/// jobs' (a plan may use fewer).
constexpr int64_t exact_scratch_bytes(int64_t rows, int64_t k, int64_t jobs,
                                      int64_t column_blocks) {
    return jobs * staged_set_bytes(rows, k) + column_blocks * (rows * kBlock * 8 + 4) + 16;
}

struct LinearCall {
    int32_t rows = 0;
    int32_t k = 0;
    int32_t in = 0;
    int32_t twice_k = 0;
    Code code = Code::mul1;
    int32_t slices = 1;
    Element x_element = Element::bf16;
    int32_t job_count = 0;  ///< 0: `experts` describes the products
    bool sliced = false;    ///< mul1 jobs take the kernel of slices, which needs no scratch
    uint32_t zero = 0;      ///< 0: see runs_here (decode.cuh)
    Job jobs[kMaxJobs];
    /// exact_scratch_bytes of min(rows, kMostStagedRows), where rows are rotated first and mul1
    void* scratch = nullptr;
    ExpertCall experts;
};

}  // namespace tenon::exl3::cuda
