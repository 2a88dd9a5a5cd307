// SPDX-License-Identifier: MIT
// The decoded weight W, in double.
#include <utility>

#include "../common/built_for.h"
#include "api.h"
#include "decode.cuh"
#include "dispatch.cuh"

namespace tenon::exl3::cuda {

namespace {

template <int kTwiceK, Code kCode, class Store, int... kPositions>
__device__ __forceinline__ void decode_run(const uint32_t (&run)[run_registers(kTwiceK)],
                                           Store&& store,
                                           std::integer_sequence<int, kPositions...>) {
    (store(run_row(kPositions), run_column(kPositions),
           exact_weight<kCode>(window<kTwiceK, kPositions>(run))),
     ...);
}

// A warp decodes a unit; store(row, column, half) with row and column in the unit.
template <int kTwiceK, Code kCode, class Store>
__device__ __forceinline__ void decode_unit(const uint32_t* unit, Store&& store) {
    const int lane = threadIdx.x % 32;
    uint32_t runs[4][run_registers(kTwiceK)];
    load_runs<kTwiceK>(unit, lane, runs);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        decode_run<kTwiceK, kCode>(
            runs[t],
            [&](int row, int column, __half v) {
                store(16 * (lane % 4) + row, 16 * t + lane / 4 + column, v);
            },
            std::make_integer_sequence<int, 32>{});
    }
}

template <int kCount>
__device__ void butterflies(double* v, int stride) {
    for (int half = 1; half < kCount; half *= 2) {
        for (int i = 0; i < kCount; ++i) {
            if ((i & half) == 0) {
                const double a = v[i * stride], b = v[(i + half) * stride];
                v[i * stride] = a + b;
                v[(i + half) * stride] = a - b;
            }
        }
    }
}

constexpr int kStride = kUnit + 1;
constexpr int kSharedBytes = kBlock * kStride * static_cast<int>(sizeof(double));
static_assert(kSharedBytes <= tenon::cuda::kLeastSharedBlock);

// One block of 128 threads a rotation block, 64 columns at a time: the last butterfly of a row,
// over columns c and c + 64, comes first. The butterflies of halves are exact in double, so each
// element is rounded by the scales and once to f32.
template <int kTwiceK, Code kCode>
__global__ void dequantize_kernel(Weight w, int64_t row0, int64_t rows, float* dst,
                                  int64_t stride) {
    extern __shared__ double block[];  // [128][65]
    const int kb = blockIdx.x;
    const auto nb = static_cast<int>(row0 / kBlock + blockIdx.y);
    const int warp = threadIdx.x / 32;
    const uint32_t* unit = w.words + unit_index(w.k / kUnit, 2 * kb + warp / 2, 2 * nb + warp % 2) *
                                         unit_words(kTwiceK);
    const int i = threadIdx.x;
    const int channel = kb * kBlock + i;
    const double suh = static_cast<double>(__half2float(__ushort_as_half(w.suh[channel])));
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
        const double sign = part == 0 ? 1.0 : -1.0;
#pragma unroll 1
        for (int side = 0; side < 2; ++side) {
            if (warp % 2 == side) {
                decode_unit<kTwiceK, kCode>(unit, [&](int row, int column, __half v) {
                    double& sum = block[(kUnit * (warp / 2) + row) * kStride + column];
                    const auto value = static_cast<double>(__half2float(v));
                    sum = side == 0 ? value : sum + sign * value;
                });
            }
            __syncthreads();
        }
        butterflies<kUnit>(block + i * kStride, 1);
        __syncthreads();
        if (i < kUnit) {
            butterflies<kBlock>(block + i, kStride);
        }
        __syncthreads();
        for (int c = 0; c < kUnit; ++c) {
            const int64_t column = int64_t{nb} * kBlock + part * kUnit + c;
            if (channel < w.in && column >= row0 && column < row0 + rows) {
                const double scale_out =
                    static_cast<double>(__half2float(__ushort_as_half(w.svh[column]))) / 128.0;
                dst[(column - row0) * stride + channel] =
                    static_cast<float>(suh * scale_out * block[i * kStride + c]);
            }
        }
        __syncthreads();
    }
}

}  // namespace

cudaError_t dequantize(const Weight& w, int64_t row0, int64_t rows, float* dst, int64_t stride,
                       cudaStream_t stream) {
    if (rows == 0) {
        return cudaSuccess;
    }
    const int64_t blocks = (row0 + rows + kBlock - 1) / kBlock - row0 / kBlock;
    cudaError_t status = cudaSuccess;
    const bool known = dispatch(w.twice_k, w.code, [&](auto rate, auto code) {
        auto* kernel = &dequantize_kernel<decltype(rate)::value, decltype(code)::value>;
        status =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (status == cudaSuccess) {
            kernel<<<dim3(w.k / kBlock, static_cast<unsigned int>(blocks)), kBlock, kSharedBytes,
                     stream>>>(w, row0, rows, dst, stride);
            status = cudaGetLastError();
        }
    });
    return known ? status : cudaErrorInvalidValue;
}

}  // namespace tenon::exl3::cuda
