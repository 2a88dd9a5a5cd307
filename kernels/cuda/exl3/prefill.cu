// SPDX-License-Identifier: MIT
// Decodes weights and rotates rows into panels, and multiplies them.
#include "prefill.h"

#include <algorithm>

#include "../common/built_for.h"
#include "async.cuh"
#include "dispatch.cuh"
#include "linear.h"
#include "prefill_decode.cuh"
#include "prefill_rotate.cuh"

namespace tenon::exl3::cuda {

namespace {

constexpr int kPanelWarps = 8;
constexpr int kPanelThreads = 32 * kPanelWarps;
constexpr int kUnitPanel = kUnit * kUnit * 2;  // bytes: half a tile
constexpr int kPanelShared = kPanelWarps * kUnitPanel;
constexpr int kRotateThreads = 256;

/// What is decoded by one launch.
struct PanelCall {
    int32_t job_count = 0;
    const uint32_t* words[kMaxJobs] = {};
    uint8_t* panel[kMaxJobs] = {};
    int32_t unit_end[kMaxJobs] = {};  ///< of this job and of those before it
};

// Columns g and g + 8 of tile `run` of a unit: 16 rows of k, two chunks each.
template <int kTwiceK, Code kCode, int kColumn, int kHalf>
__device__ __forceinline__ uint4 chunk_of(const uint32_t (&run)[run_registers(kTwiceK)]) {
    constexpr int kQ = 4 * kColumn + 2 * kHalf;
    return make_uint4(run_pair<kTwiceK, kCode, kQ>(run), run_pair<kTwiceK, kCode, kQ + 8>(run),
                      run_pair<kTwiceK, kCode, kQ + 16>(run),
                      run_pair<kTwiceK, kCode, kQ + 24>(run));
}

// A warp decodes a unit. Units lie in the order of half tiles of the panel. Runs beside the end of
// the rotation in front, which neither reads nor writes what this does.
template <int kTwiceK, Code kCode>
__global__ void __launch_bounds__(kPanelThreads, 3)
    panel_kernel(const __grid_constant__ PanelCall call) {
    extern __shared__ __align__(128) uint8_t shared[];
    let_next_kernel_start();
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int unit = static_cast<int>(blockIdx.x) * kPanelWarps + warp;
    if (unit >= call.unit_end[call.job_count - 1]) {
        wait_for_previous_kernel();
        return;
    }
    int job = 0;
    while (unit >= call.unit_end[job]) {
        ++job;
    }
    const int64_t local = unit - (job == 0 ? 0 : call.unit_end[job - 1]);
    uint32_t runs[4][run_registers(kTwiceK)];
    load_runs<kTwiceK>(call.words[job] + local * unit_words(kTwiceK), lane, runs);
    uint8_t* tile = shared + warp * kUnitPanel;
    const auto put = [&](int row, int chunk, uint4 v) {
        *reinterpret_cast<uint4*>(tile + gemm::cuda::chunk_at(row, chunk)) = v;
    };
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        const int row = 16 * t + lane / 4;
        const int chunk = 2 * (lane % 4);
        put(row, chunk, chunk_of<kTwiceK, kCode, 0, 0>(runs[t]));
        put(row, chunk + 1, chunk_of<kTwiceK, kCode, 0, 1>(runs[t]));
        put(row + 8, chunk, chunk_of<kTwiceK, kCode, 1, 0>(runs[t]));
        put(row + 8, chunk + 1, chunk_of<kTwiceK, kCode, 1, 1>(runs[t]));
    }
    bulk_store(call.panel[job] + local * kUnitPanel, tile, kUnitPanel, lane);
    wait_for_previous_kernel();  // its end is the end of the rotation too
}

/// Where the rotated rows of a job go.
struct RotateCall {
    const void* x[kMaxJobs] = {};
    int64_t x_stride[kMaxJobs] = {};
    const uint16_t* suh[kMaxJobs] = {};
    uint8_t* panel[kMaxJobs] = {};
    float* scale[kMaxJobs] = {};
    int32_t k = 0, in = 0;
    Element element = Element::bf16;
};

// Grid (rows, jobs).
__global__ void __launch_bounds__(kRotateThreads)
    rotate_panel_kernel(const __grid_constant__ RotateCall call) {
    __shared__ unsigned int most;
    let_next_kernel_start();
    const int64_t row = blockIdx.x;
    const int job = blockIdx.y;
    if (threadIdx.x == 0) {
        most = 0;
    }
    __syncthreads();
    const float inverse = rotate_row(
        call.k, call.suh[job], &most,
        [&](int at, float(&v)[4]) {
            load_x4(call.x[job], call.element, row * call.x_stride[job] + at, call.in - at, v);
        },
        [&](int at, uint32_t low, uint32_t high) {
            *reinterpret_cast<uint2*>(call.panel[job] +
                                      gemm::cuda::panel_at(row, at, call.k / kUnit)) =
                make_uint2(low, high);
        });
    if (threadIdx.x == 0) {
        call.scale[job][row] = inverse;
    }
}

// `early`: the launch in front is the rotation of the same call.
cudaError_t decode_panels(const PanelCall& panels, int twice_k, Code code, bool early,
                          cudaStream_t stream) {
    const int units = panels.unit_end[panels.job_count - 1];
    cudaError_t status = cudaSuccess;
    const bool known = dispatch(twice_k, code, [&](auto rate, auto which) {
        static_assert(kPanelShared <= tenon::cuda::kLeastSharedBlock);
        auto* kernel = &panel_kernel<decltype(rate)::value, decltype(which)::value>;
        static const cudaError_t allowed =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kPanelShared);
        status = allowed;
        if (status == cudaSuccess) {
            cudaLaunchAttribute dependent = {};
            dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
            dependent.val.programmaticStreamSerializationAllowed = 1;
            cudaLaunchConfig_t config = {};
            config.gridDim =
                dim3(static_cast<unsigned int>((units + kPanelWarps - 1) / kPanelWarps));
            config.blockDim = dim3(kPanelThreads);
            config.dynamicSmemBytes = kPanelShared;
            config.stream = stream;
            config.attrs = &dependent;
            config.numAttrs = early && has_clusters() ? 1 : 0;
            status = cudaLaunchKernelEx(&config, kernel, panels);
        }
    });
    return known ? status : cudaErrorInvalidValue;
}

/// Some jobs of a call, or some columns of one job.
struct Batch {
    int first = 0, count = 0;
    int64_t column0 = 0, columns = 0;  ///< if count is 1
};

cudaError_t multiply_batch(const LinearCall& call, const Batch& b, cudaStream_t stream) {
    auto* scratch = static_cast<uint8_t*>(call.scratch);
    const int64_t x_bytes = prefill_x_bytes(call.rows, call.k);
    uint8_t* w_panel = scratch + call.job_count * x_bytes;
    const int64_t tile_column = int64_t{call.k} * kBlock * 2;  // bytes of 128 columns
    PanelCall panels;
    panels.job_count = b.count;
    gemm::cuda::Call dense;
    dense.k = call.k;
    dense.job_count = b.count;
    int64_t units = 0;
    for (int i = 0; i < b.count; ++i) {
        const Job& job = call.jobs[b.first + i];
        const int64_t columns = b.count == 1 ? b.columns : job.out;
        const int64_t blocks = (columns + kBlock - 1) / kBlock;
        panels.words[i] =
            job.words + unit_index(call.k / kUnit, 0, b.column0 / kUnit) * unit_words(call.twice_k);
        panels.panel[i] = w_panel;
        units += blocks * 2 * (call.k / kUnit);
        panels.unit_end[i] = static_cast<int32_t>(units);
        gemm::cuda::Job& d = dense.jobs[i];
        d.w = w_panel;
        d.column_scale = job.svh + b.column0;
        d.bias = job.bias == nullptr ? nullptr : job.bias + b.column0;
        d.out = static_cast<int32_t>(columns);
        d.y_is_f32 = job.y_element == Element::f32 ? 1 : 0;
        d.y_stride = job.y_stride;
        w_panel += blocks * tile_column;
    }
    // Later columns of a job find its rows where the first have left them.
    const bool rotated = b.column0 > 0 && call.rows <= kPrefillRows;
    cudaError_t status = cudaSuccess;
    for (int64_t row = 0; row < call.rows && status == cudaSuccess; row += kPrefillRows) {
        const int64_t rows = std::min<int64_t>(kPrefillRows, call.rows - row);
        dense.rows = static_cast<int32_t>(rows);
        RotateCall rotate;
        rotate.k = call.k;
        rotate.in = call.in;
        rotate.element = call.x_element;
        const int64_t x_size = call.x_element == Element::f32 ? 4 : 2;
        for (int i = 0; i < b.count; ++i) {
            const Job& job = call.jobs[b.first + i];
            gemm::cuda::Job& d = dense.jobs[i];
            uint8_t* panel = scratch + i * x_bytes;
            auto* scale = reinterpret_cast<float*>(
                panel +
                gemm::cuda::panel_bytes(std::min<int64_t>(call.rows, kPrefillRows), call.k));
            rotate.x[i] = static_cast<const uint8_t*>(job.x) + row * job.x_stride * x_size;
            rotate.x_stride[i] = job.x_stride;
            rotate.suh[i] = job.suh;
            rotate.panel[i] = panel;
            rotate.scale[i] = scale;
            d.x = panel;
            d.row_scale = scale;
            d.y = static_cast<uint8_t*>(job.y) +
                  (row * job.y_stride + b.column0) * (d.y_is_f32 != 0 ? 4 : 2);
        }
        if (!rotated) {
            rotate_panel_kernel<<<dim3(static_cast<unsigned int>(rows), b.count), kRotateThreads, 0,
                                  stream>>>(rotate);
            status = cudaGetLastError();
        }
        if (status == cudaSuccess && row == 0) {
            status = decode_panels(panels, call.twice_k, call.code, !rotated, stream);
        }
        if (status == cudaSuccess) {
            status = gemm::cuda::dense(dense, stream);
        }
    }
    return status;
}

}  // namespace

cudaError_t prefill(const LinearCall& call, int64_t w_bytes, cudaStream_t stream) {
    if (call.rows <= 0) {
        return cudaSuccess;
    }
    const int64_t most = w_bytes / (int64_t{call.k} * kBlock * 2) * kBlock;  // columns at once
    if (most == 0) {
        return cudaErrorInvalidValue;
    }
    cudaError_t status = cudaSuccess;
    for (int first = 0; first < call.job_count && status == cudaSuccess;) {
        Batch b;
        b.first = first;
        int64_t columns = 0;
        while (first + b.count < call.job_count) {
            const int64_t out = call.jobs[first + b.count].out;
            columns += (out + kBlock - 1) / kBlock * kBlock;
            if (b.count > 0 && columns > most) {
                break;
            }
            ++b.count;
        }
        const int64_t out = call.jobs[first].out;
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

}  // namespace tenon::exl3::cuda
