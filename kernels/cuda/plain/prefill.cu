// SPDX-License-Identifier: MIT
// Brings weights and rows into panels of bf16 and multiplies them.
#include "prefill.h"

#include <algorithm>

#include "load.cuh"

namespace tenon::plain::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

uint32_t __device__ __forceinline__ two_bf16(float a, float b) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&two);
}

template <Stored kStored>
__device__ __forceinline__ void put_weights(const Weight& w, int64_t o, uint8_t* panel,
                                            int64_t row) {
    const int64_t width = padded(w.in);
    for (int64_t i = 8 * (threadIdx.x % 32); i < width; i += kStep) {
        float v[8];
        load8<kStored>(w, w.codes + o * w.row_bytes, o, i, v);
        *reinterpret_cast<uint4*>(panel +
                                  gemm::cuda::panel_at(row, i, width / gemm::cuda::kTileK)) =
            make_uint4(two_bf16(v[0], v[1]), two_bf16(v[2], v[3]), two_bf16(v[4], v[5]),
                       two_bf16(v[6], v[7]));
    }
}

// A warp a row of W, from column0 of y on.
__global__ void __launch_bounds__(kThreads)
    weights_kernel(const __grid_constant__ Weight w, int64_t column0, int64_t columns,
                   uint8_t* panel) {
    const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
    if (row >= columns) {
        return;
    }
    if (w.stored == Stored::bf16) {
        put_weights<Stored::bf16>(w, column0 + row, panel, row);
    } else if (w.stored == Stored::fp8) {
        put_weights<Stored::fp8>(w, column0 + row, panel, row);
    } else {
        put_weights<Stored::fp4>(w, column0 + row, panel, row);
    }
}

struct RowsCall {
    const void* x;
    int64_t x_stride;
    bool is_f32, quantised;
    int32_t rows, in, terms;
    uint8_t* panel;  // [rows, terms * padded(in)]
};

// A warp a row and 32 channels. An f32 is the sum of its upper eight bits, the next eight and the
// last eight.
__global__ void __launch_bounds__(kThreads) rows_kernel(const __grid_constant__ RowsCall c) {
    const int64_t width = padded(c.in);
    const int64_t groups = width / kGroup;
    const int64_t group = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
    if (group >= c.rows * groups) {
        return;
    }
    const int64_t row = group / groups;
    const int64_t i = group % groups * kGroup + threadIdx.x % 32;
    float v = 0;
    if (i < c.in) {
        const int64_t at = row * c.x_stride + i;
        v = c.is_f32 ? static_cast<const float*>(c.x)[at]
                     : __bfloat162float(static_cast<const __nv_bfloat16*>(c.x)[at]);
    }
    if (c.quantised) {
        v = quantise(v, i < c.in);
    }
    const bool finite = fabsf(v) <= 3.402823466e38f;
    for (int term = 0; term < c.terms; ++term) {
        // What is not finite stands in the first term, with its NaN kept one.
        const float upper =
            finite ? __uint_as_float(__float_as_uint(v) & 0xFFFF0000u) : (term == 0 ? v : 0.0f);
        *reinterpret_cast<__nv_bfloat16*>(
            c.panel +
            gemm::cuda::panel_at(row, term * width + i, c.terms * width / gemm::cuda::kTileK)) =
            __float2bfloat16_rn(upper);
        v = finite ? __fsub_rn(v, upper) : v;
    }
}

/// Some jobs of a call, or some columns of one job.
struct Batch {
    int first = 0, count = 0;
    int64_t column0 = 0, columns = 0;  ///< if count is 1
};

cudaError_t multiply_batch(const PrefillCall& call, const Batch& b, cudaStream_t stream) {
    auto* scratch = static_cast<uint8_t*>(call.scratch);
    const int64_t in = call.jobs[0].weight.in;
    const int64_t width = padded(in);
    const int64_t x_bytes = prefill_x_bytes(call.rows, in);
    const int32_t terms = call.x_is_f32 ? kTerms : 1;
    uint8_t* w_panel = scratch + call.job_count * x_bytes;
    gemm::cuda::Call dense;
    dense.k = static_cast<int32_t>(terms * width);
    dense.w_k = static_cast<int32_t>(width);
    dense.input = gemm::cuda::Input::bf16;
    dense.job_count = b.count;
    for (int i = 0; i < b.count; ++i) {
        const PrefillJob& job = call.jobs[b.first + i];
        const int64_t columns = b.count == 1 ? b.columns : job.weight.out;
        gemm::cuda::Job& d = dense.jobs[i];
        d.w = w_panel;
        d.out = static_cast<int32_t>(columns);
        d.y_is_f32 = job.y_is_f32 ? 1 : 0;
        d.y_stride = job.y_stride;
        if (columns > 0) {
            weights_kernel<<<static_cast<unsigned int>((columns + kWarps - 1) / kWarps), kThreads,
                             0, stream>>>(job.weight, b.column0, columns, w_panel);
        }
        w_panel += prefill_w_bytes(columns, in);
    }
    cudaError_t status = cudaGetLastError();
    const int64_t step = kPrefillRows / terms;
    for (int64_t row = 0; row < call.rows && status == cudaSuccess; row += step) {
        const int64_t rows = std::min<int64_t>(step, call.rows - row);
        dense.rows = static_cast<int32_t>(rows);
        for (int i = 0; i < b.count; ++i) {
            const PrefillJob& job = call.jobs[b.first + i];
            gemm::cuda::Job& d = dense.jobs[i];
            d.y = static_cast<uint8_t*>(job.y) +
                  (row * job.y_stride + b.column0) * (job.y_is_f32 ? 4 : 2);
            const auto same = [&](const PrefillJob& other) {
                return other.x == job.x && other.weight.quantise == job.weight.quantise;
            };
            const PrefillJob* begin = call.jobs + b.first;
            const auto first = static_cast<int>(std::find_if(begin, begin + i, same) - begin);
            uint8_t* panel = scratch + first * x_bytes;
            d.x = panel;
            if (first < i) {
                continue;
            }
            RowsCall r;
            r.x = static_cast<const uint8_t*>(job.x) + row * job.x_stride * (call.x_is_f32 ? 4 : 2);
            r.x_stride = job.x_stride;
            r.is_f32 = call.x_is_f32;
            r.quantised = job.weight.quantise != 0;
            r.rows = static_cast<int32_t>(rows);
            r.in = static_cast<int32_t>(in);
            r.terms = terms;
            r.panel = panel;
            const int64_t groups = rows * (width / kGroup);
            rows_kernel<<<static_cast<unsigned int>((groups + kWarps - 1) / kWarps), kThreads, 0,
                          stream>>>(r);
        }
        status = cudaGetLastError();
        if (status == cudaSuccess) {
            status = gemm::cuda::dense(dense, stream);
        }
    }
    return status;
}

}  // namespace

cudaError_t prefill(const PrefillCall& call, cudaStream_t stream) {
    if (call.rows <= 0 || call.job_count == 0) {
        return cudaSuccess;
    }
    const int64_t in = call.jobs[0].weight.in;
    const int64_t each = gemm::cuda::kTileRows;
    const int64_t most = call.w_bytes / prefill_w_bytes(each, in) * each;  // columns at once
    if (most == 0) {
        return cudaErrorInvalidValue;
    }
    cudaError_t status = cudaSuccess;
    for (int first = 0; first < call.job_count && status == cudaSuccess;) {
        Batch b;
        b.first = first;
        int64_t columns = 0;
        while (first + b.count < call.job_count) {
            columns += (call.jobs[first + b.count].weight.out + each - 1) / each * each;
            if (b.count > 0 && columns > most) {
                break;
            }
            ++b.count;
        }
        const int64_t out = call.jobs[first].weight.out;
        for (int64_t done = 0; done < out && status == cudaSuccess; done += most) {
            b.column0 = b.count == 1 ? done : 0;
            b.columns = std::min(most, out - done);
            status = multiply_batch(call, b, stream);
            if (b.count > 1) {
                break;
            }
        }
        first += b.count;
    }
    return status;
}

}  // namespace tenon::plain::cuda
