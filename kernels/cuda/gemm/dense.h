// SPDX-License-Identifier: MIT
// y = x W^T of many rows on tensor cores, both factors laid out as panels: what the prefill of the
// quantisation formats shares. Every call enqueues on a stream and returns; nothing allocates or
// waits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#if defined(__CUDACC__)
#define TENON_GEMM_HD __host__ __device__
#else
#define TENON_GEMM_HD
#endif

namespace tenon::gemm::cuda {

/// Rows of a tile of either panel, and columns of k in it.
constexpr int kTileRows = 128;
constexpr int kTileK = 64;
/// Bytes of a tile: 128 rows of 64 elements of 16 bits.
constexpr int kTileBytes = kTileRows * kTileK * 2;

/// Panels are [row / 128][k / 64] tiles. A tile is as a tensor core reads it from shared memory:
/// row r is 128 bytes at 128 r, and its 16-byte chunk c stands at chunk c ^ (r % 8).
TENON_GEMM_HD constexpr int chunk_at(int row, int chunk) {
    return row * 128 + ((chunk ^ (row & 7)) << 4);
}
/// Byte of element (row, column of k) in a panel of `k_tiles` tiles a row.
TENON_GEMM_HD constexpr int64_t panel_at(int64_t row, int64_t column, int64_t k_tiles) {
    return (row / kTileRows * k_tiles + column / kTileK) * kTileBytes +
           chunk_at(static_cast<int>(row % kTileRows), static_cast<int>(column % kTileK / 8)) +
           column % 8 * 2;
}
/// Bytes of the panel of `rows` rows, of x or of W. Rows that a tile has too many may hold
/// anything.
constexpr int64_t panel_bytes(int64_t rows, int64_t k) {
    return (rows + kTileRows - 1) / kTileRows * kTileRows * k * 2;
}

enum class Input : int32_t { f16, bf16 };

/// One product. All jobs of a call share rows and k.
struct Job {
    const void* x = nullptr;           ///< panel
    const void* w = nullptr;           ///< panel
    const float* row_scale = nullptr;  ///< [rows] or null: 1
    /// half[out up to a multiple of 128] or null. If set, sums of each 128 columns are rotated
    /// (Hadamard without its factor) and then multiplied by column_scale / 128.
    const uint16_t* column_scale = nullptr;
    const float* bias = nullptr;  ///< [out] or null
    void* y = nullptr;            ///< [rows, out]
    int64_t y_stride = 0;         ///< elements
    int32_t out = 0;
    int32_t y_is_f32 = 0;  ///< else bf16
};
constexpr int kMaxJobs = 8;

struct Call {
    int32_t rows = 0;
    int32_t k = 0;    ///< of x, a multiple of 64
    int32_t w_k = 0;  ///< of W, a divisor of k: its columns repeat. 0: k
    Input input = Input::f16;
    int32_t job_count = 0;
    Job jobs[kMaxJobs];
};

/// Sums in f32 over k ascending, one rounding at y. A row's bits depend neither on the other rows
/// nor on their number.
cudaError_t dense(const Call& call, cudaStream_t stream);

}  // namespace tenon::gemm::cuda
