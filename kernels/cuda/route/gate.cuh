// SPDX-License-Identifier: MIT
// route.gate_topk for few rows: dots on tensor cores by fixed parts of K, then their sum in part
// order and the choice. The weight of a part is asked for before the kernel in front has ended.
#pragma once

#include "common/dependent.cuh"
#include "common/mma.cuh"
#include "route/topk.cuh"

namespace tenon::cuda {

constexpr int kGateExperts = 16;    // of a block: rows of one mma
constexpr int kGateColumns = 1024;  // of a part of K
constexpr int kGatePartThreads = 256;
constexpr int kGateWarps = kGatePartThreads / 32;
constexpr int kGateSteps = kGateColumns / kGateWarps / 32;  // 32 columns each: two mma

struct GatePartArgs {
    const uint16_t* x;  ///< rows at x_stride
    int64_t x_stride;
    const uint16_t* gate;  ///< [E, d]
    int64_t T, E, d;       ///< d % 8 = 0
    float* partial;        ///< [parts, T, E]
};

// blockIdx.x: 16 experts; blockIdx.y: part of K; blockIdx.z: 8 kTiles rows. A warp owns 128 columns
// of the part, whose eight sums are added in order; what row has which neighbours changes no bit.
template <int kTiles>
__global__ void __launch_bounds__(kGatePartThreads) gate_parts_kernel(GatePartArgs a) {
    __shared__ float sums[kGateWarps][kTiles * 8][kGateExperts + 1];
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int64_t e0 = int64_t{blockIdx.x} * kGateExperts;
    const int64_t first =
        int64_t{blockIdx.y} * kGateColumns + warp * (kGateSteps * 32) + lane % 4 * 8;
    const int64_t t0 = int64_t{blockIdx.z} * (8 * kTiles);
    const auto expert = [&](int64_t e) { return a.gate + (e < a.E ? e : a.E - 1) * a.d; };
    const uint16_t* low = expert(e0 + lane / 4);
    const uint16_t* high = expert(e0 + 8 + lane / 4);
    let_next_start();
    // Lane c of four holds columns 8 c .. 8 c + 7 of a step, in the k slots of two mma, on both
    // sides.
    uint4 w[kGateSteps][2];
#pragma unroll
    for (int s = 0; s < kGateSteps; ++s) {
        const int64_t k = first + s * 32;
        w[s][0] = k < a.d ? load_once(low + k) : make_uint4(0, 0, 0, 0);
        w[s][1] = k < a.d ? load_once(high + k) : make_uint4(0, 0, 0, 0);
    }
    wait_for_previous();
    float acc[kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
        const int64_t t = t0 + i * 8 + lane / 4;
        const uint16_t* x = a.x + (t < a.T ? t : a.T - 1) * a.x_stride;
#pragma unroll
        for (int s = 0; s < kGateSteps; ++s) {
            const int64_t k = first + s * 32;
            const uint4 v =
                k < a.d ? *reinterpret_cast<const uint4*>(x + k) : make_uint4(0, 0, 0, 0);
            const uint32_t even[4] = {w[s][0].x, w[s][1].x, w[s][0].y, w[s][1].y};
            const uint32_t odd[4] = {w[s][0].z, w[s][1].z, w[s][0].w, w[s][1].w};
            mma_bf16(acc[i], even, v.x, v.y);
            mma_bf16(acc[i], odd, v.z, v.w);
        }
    }
    // Element j of a lane: expert lane / 4 + 8 (j / 2), row 2 (lane % 4) + j % 2.
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            sums[warp][i * 8 + lane % 4 * 2 + j % 2][lane / 4 + j / 2 * 8] = acc[i][j];
        }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTiles * 8 * kGateExperts;
         i += kGatePartThreads) {
        const int r = i / kGateExperts;
        const int e = i % kGateExperts;
        if (t0 + r >= a.T || e0 + e >= a.E) {
            continue;
        }
        float sum = sums[0][r][e];
#pragma unroll
        for (int w8 = 1; w8 < kGateWarps; ++w8) {
            sum += sums[w8][r][e];
        }
        a.partial[(blockIdx.y * a.T + t0 + r) * a.E + e0 + e] = sum;
    }
}

// One block a row.
[[maybe_unused]] static __global__ void __launch_bounds__(kRouteThreads)
    gate_choice_kernel(RouteArgs a, const float* partial, int32_t parts, int64_t T) {
    let_next_start();
    const RouteBias bias = route_bias(a);
    wait_for_previous();
    const int64_t t = blockIdx.x;
    route_block(a, bias, t, [&](int e) {
        float z = partial[t * a.E + e];
        for (int32_t i = 1; i < parts; ++i) {
            z += partial[(i * T + t) * a.E + e];
        }
        return z;
    });
}

}  // namespace tenon::cuda
