// SPDX-License-Identifier: MIT
// Ordinary matrices (f32, bf16, f16, FP8, FP4) on a GPU: what the format plugin calls. Every call
// enqueues on a stream and returns; nothing allocates or waits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tenon::plain::cuda {

/// As in the format plugin, in the same order.
enum class Stored : int32_t { f32, bf16, f16, fp8, fp4 };

/// Elements of a row that one step of a warp covers; rows are padded to it with zeros.
constexpr int64_t kStep = 256;
constexpr int64_t padded(int64_t in) {
    return (in + kStep - 1) / kStep * kStep;
}

/// One matrix [out, in] in device memory.
struct Weight {
    const uint8_t* codes = nullptr;   ///< [out] rows of `row_bytes`, 16-byte aligned
    const uint8_t* scales = nullptr;  ///< E8M0 codes [out, padded(in) / 32], or null
    int64_t row_bytes = 0;
    int32_t out = 0, in = 0;
    Stored stored = Stored::bf16;
    int32_t quantise = 0;  ///< 1: rows of x are rounded to E4M3 per 32 channels first
};

/// Rows of x as f32 [rows, padded(in)], once as they are and once quantised.
struct StageCall {
    const void* x = nullptr;
    bool is_f32 = false;
    int64_t x_stride = 0;
    int32_t rows = 0, in = 0;
    float* staged = nullptr;     ///< or null
    float* quantised = nullptr;  ///< or null
};
cudaError_t stage(const StageCall& call, cudaStream_t stream);

struct Job {
    Weight weight;
    const float* x = nullptr;  ///< staged as the weight asks
    void* y = nullptr;
    int64_t y_stride = 0;
    bool y_is_f32 = false;
};
constexpr int kMaxJobs = 8;
struct LinearCall {
    int32_t rows = 0;
    int32_t job_count = 0;
    Job jobs[kMaxJobs];  ///< of one `in`
};
/// y = x W^T, f32 sums in an order that depends on `in` alone. Any number of rows.
cudaError_t linear(const LinearCall& call, cudaStream_t stream);

/// Products of the experts that rows chose, by entry row * (k + 1) + slot.
struct ExpertCall {
    const Weight* table = nullptr;  ///< device: [experts + 1], codes null where not held
    const int32_t* ids = nullptr;   ///< device: [rows, k]
    int32_t rows = 0, k = 0, experts = 0;
    int32_t in = 0, out = 0;
    bool x_by_entry = false;  ///< x row of an entry is the entry itself, not its token
    const float* x = nullptr;
    const float* x_quantised = nullptr;
    float* y = nullptr;  ///< [entries, out]
};
cudaError_t experts(const ExpertCall& call, cudaStream_t stream);

/// Scales of an FP8 matrix, one per 32 x 32 elements, as one per row and 32 elements in w.scales.
///
/// blocks  device, E8M0 [.., columns], columns = ceil(w.in / 32); row 0 holds the scales of rows
///         -first .. 31 - first, 0 ≤ first < 32
cudaError_t expand_scales(const uint8_t* blocks, int64_t columns, int64_t first, const Weight& w,
                          cudaStream_t stream);

/// Exact values of rows [row0, row0 + rows) as f32.
cudaError_t dequantize(const Weight& w, int64_t row0, int64_t rows, float* dst, int64_t stride,
                       cudaStream_t stream);

}  // namespace tenon::plain::cuda
