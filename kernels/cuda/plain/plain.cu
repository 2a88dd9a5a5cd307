// SPDX-License-Identifier: MIT
// Products with ordinary matrices: a warp reads whole rows of the weight and multiplies up to eight
// rows of x with them. Bound by memory for few rows.
#include "plain.h"

#include <algorithm>

#include "load.cuh"

namespace tenon::plain::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 8;  // of one pass over the weight
constexpr int kMostEntries = 64 * 16;

// One warp a row and 32 channels; the values of quantise_row in the format plugin.
__global__ void stage_kernel(StageCall c) {
    const int64_t width = padded(c.in);
    const int64_t group = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
    const int64_t groups = width / kGroup;
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
    if (c.staged != nullptr) {
        c.staged[row * width + i] = v;
    }
    if (c.quantised == nullptr) {
        return;
    }
    v = quantise(v, i < c.in);
    c.quantised[row * width + i] = v;
}

struct RowsOf {
    const float* x[kRows];
};

// Sums of one output column for up to kCount rows, in all lanes. Element order of a lane: steps
// ascending; lanes are added in a fixed tree.
template <Stored kStored, int kCount>
__device__ __forceinline__ void dot(const Weight& w, int64_t o, const RowsOf& rows,
                                    float (&sum)[kCount]) {
    const int lane = threadIdx.x % 32;
    const uint8_t* row = w.codes + o * w.row_bytes;
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
        sum[r] = 0;
    }
    const int64_t width = padded(w.in);
#pragma unroll 2
    for (int64_t i = 8 * lane; i < width; i += kStep) {
        float v[8];
        load8<kStored>(w, row, o, i, v);
#pragma unroll
        for (int r = 0; r < kCount; ++r) {
            const auto* x = reinterpret_cast<const float4*>(rows.x[r] + i);
            const float4 a = x[0], b = x[1];
            float s = sum[r];
            s = __fmaf_rn(v[0], a.x, s);
            s = __fmaf_rn(v[1], a.y, s);
            s = __fmaf_rn(v[2], a.z, s);
            s = __fmaf_rn(v[3], a.w, s);
            s = __fmaf_rn(v[4], b.x, s);
            s = __fmaf_rn(v[5], b.y, s);
            s = __fmaf_rn(v[6], b.z, s);
            sum[r] = __fmaf_rn(v[7], b.w, s);
        }
    }
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], step);
        }
    }
}

template <int kCount, class Store>
__device__ __forceinline__ void dot_any(const Weight& w, int64_t o, const RowsOf& rows,
                                        Store&& store) {
    float sum[kCount];
    switch (w.stored) {
        case Stored::f32:
            dot<Stored::f32, kCount>(w, o, rows, sum);
            break;
        case Stored::bf16:
            dot<Stored::bf16, kCount>(w, o, rows, sum);
            break;
        case Stored::f16:
            dot<Stored::f16, kCount>(w, o, rows, sum);
            break;
        case Stored::fp8:
            dot<Stored::fp8, kCount>(w, o, rows, sum);
            break;
        case Stored::fp4:
            dot<Stored::fp4, kCount>(w, o, rows, sum);
            break;
    }
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int r = 0; r < kCount; ++r) {
            store(r, sum[r]);
        }
    }
}

// One warp an output column.
template <int kCount>
__global__ void __launch_bounds__(kThreads)
    linear_kernel(const __grid_constant__ LinearCall c, int row0) {
    const Job& job = c.jobs[blockIdx.y];
    const int64_t o = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
    if (o >= job.weight.out) {
        return;
    }
    const int count = min(c.rows - row0, kCount);
    RowsOf rows;
#pragma unroll
    for (int r = 0; r < kCount; ++r) {  // missing rows repeat the first
        rows.x[r] = job.x + (row0 + (r < count ? r : 0)) * padded(job.weight.in);
    }
    dot_any<kCount>(job.weight, o, rows, [&](int r, float v) {
        if (r >= count) {
            return;
        }
        const int64_t at = (row0 + r) * job.y_stride + o;
        if (job.y_is_f32) {
            static_cast<float*>(job.y)[at] = v;
        } else {
            static_cast<__nv_bfloat16*>(job.y)[at] = __float2bfloat16_rn(v);
        }
    });
}

// Grid (columns, entries). The first entry with an expert works for all of its rows.
__global__ void __launch_bounds__(kThreads) experts_kernel(ExpertCall c) {
    __shared__ int entries[kMostEntries];
    __shared__ int found;
    const int routed = c.rows * c.k;
    const int entry = blockIdx.y;
    const int id = entry < routed ? c.ids[entry] : c.experts;
    if (id < 0 || (entry < routed && id >= c.experts)) {
        return;
    }
    const Weight w = c.table[id];
    if (w.codes == nullptr) {
        return;
    }
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x;
        int count = 0;
        bool is_first = true;
        if (entry >= routed) {
            for (int row = lane; row < c.rows; row += 32) {
                entries[row] = row * (c.k + 1) + c.k;
            }
            count = c.rows;
        }
        for (int base = 0; entry < routed && base < routed; base += 32) {
            const int i = base + lane;
            const bool match = i < routed && c.ids[i] == id;
            const unsigned int mask = __ballot_sync(0xFFFFFFFFu, match);
            if (entry >= base + 32) {
                is_first = is_first && mask == 0;
            } else if (entry >= base) {
                is_first = is_first && (mask & ((1u << (entry - base)) - 1)) == 0;
            }
            if (match) {
                entries[count + __popc(mask & ((1u << lane) - 1))] = i / c.k * (c.k + 1) + i % c.k;
            }
            count += __popc(mask);
        }
        if (lane == 0) {
            found = is_first ? count : 0;
        }
    }
    __syncthreads();
    const int64_t o = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
    if (o >= w.out) {
        return;
    }
    const float* x = w.quantise != 0 ? c.x_quantised : c.x;
    for (int base = 0; base < found; base += kRows) {
        const int count = min(found - base, kRows);
        RowsOf rows;
        for (int r = 0; r < kRows; ++r) {
            const int e = entries[base + (r < count ? r : 0)];
            rows.x[r] = x + int64_t{c.x_by_entry ? e : e / (c.k + 1)} * padded(c.in);
        }
        dot_any<kRows>(w, o, rows, [&](int r, float v) {
            if (r < count) {
                c.y[int64_t{entries[base + r]} * c.out + o] = v;
            }
        });
    }
}

template <Stored kStored>
__device__ void write_row(const Weight& w, int64_t o, float* dst) {
    for (int64_t i = 8 * threadIdx.x; i < w.in; i += 8 * blockDim.x) {
        float v[8];
        load8<kStored>(w, w.codes + o * w.row_bytes, o, i, v);
        for (int j = 0; j < 8; ++j) {
            if (i + j < w.in) {
                dst[i + j] = v[j];
            }
        }
    }
}

__global__ void dequantize_kernel(Weight w, int64_t row0, float* dst, int64_t stride) {
    const int64_t o = row0 + blockIdx.x;
    float* to = dst + blockIdx.x * stride;
    switch (w.stored) {
        case Stored::f32:
            return write_row<Stored::f32>(w, o, to);
        case Stored::bf16:
            return write_row<Stored::bf16>(w, o, to);
        case Stored::f16:
            return write_row<Stored::f16>(w, o, to);
        case Stored::fp8:
            return write_row<Stored::fp8>(w, o, to);
        case Stored::fp4:
            return write_row<Stored::fp4>(w, o, to);
    }
}

// One block a row.
__global__ void expand_scales_kernel(const uint8_t* blocks, int64_t columns, int64_t first,
                                     uint8_t* scales, int64_t padded_columns) {
    const int64_t o = blockIdx.x;
    const uint8_t* from = blocks + (first + o) / kGroup * columns;
    for (int64_t c = threadIdx.x; c < padded_columns; c += blockDim.x) {
        scales[o * padded_columns + c] = c < columns ? from[c] : 0;
    }
}

unsigned int blocks_for(int64_t count, int64_t each) {
    return static_cast<unsigned int>((count + each - 1) / each);
}

}  // namespace

cudaError_t stage(const StageCall& call, cudaStream_t stream) {
    const int64_t groups = call.rows * (padded(call.in) / kGroup);
    if (groups == 0 || (call.staged == nullptr && call.quantised == nullptr)) {
        return cudaSuccess;
    }
    stage_kernel<<<blocks_for(groups, kWarps), kThreads, 0, stream>>>(call);
    return cudaGetLastError();
}

cudaError_t linear(const LinearCall& call, cudaStream_t stream) {
    int64_t out = 0;
    for (int j = 0; j < call.job_count; ++j) {
        out = std::max<int64_t>(out, call.jobs[j].weight.out);
    }
    const dim3 grid(blocks_for(out, kWarps), static_cast<unsigned int>(call.job_count), 1);
    for (int row0 = 0; row0 < call.rows; row0 += kRows) {
        const int rows = std::min(call.rows - row0, kRows);
        if (rows == 1) {
            linear_kernel<1><<<grid, kThreads, 0, stream>>>(call, row0);
        } else if (rows == 2) {
            linear_kernel<2><<<grid, kThreads, 0, stream>>>(call, row0);
        } else if (rows <= 4) {
            linear_kernel<4><<<grid, kThreads, 0, stream>>>(call, row0);
        } else {
            linear_kernel<kRows><<<grid, kThreads, 0, stream>>>(call, row0);
        }
    }
    return cudaGetLastError();
}

cudaError_t experts(const ExpertCall& call, cudaStream_t stream) {
    const int64_t entries = int64_t{call.rows} * call.k + 1;
    if (entries > kMostEntries) {
        return cudaErrorInvalidValue;
    }
    experts_kernel<<<dim3(blocks_for(call.out, kWarps), static_cast<unsigned int>(entries), 1),
                     kThreads, 0, stream>>>(call);
    return cudaGetLastError();
}

cudaError_t expand_scales(const uint8_t* blocks, int64_t columns, int64_t first, const Weight& w,
                          cudaStream_t stream) {
    expand_scales_kernel<<<static_cast<unsigned int>(w.out), 128, 0, stream>>>(
        blocks, columns, first, const_cast<uint8_t*>(w.scales), padded(w.in) / kGroup);
    return cudaGetLastError();
}

cudaError_t dequantize(const Weight& w, int64_t row0, int64_t rows, float* dst, int64_t stride,
                       cudaStream_t stream) {
    if (rows == 0) {
        return cudaSuccess;
    }
    dequantize_kernel<<<static_cast<unsigned int>(rows), 256, 0, stream>>>(w, row0, dst, stride);
    return cudaGetLastError();
}

}  // namespace tenon::plain::cuda
