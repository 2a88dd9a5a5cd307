// SPDX-License-Identifier: MIT
// Scores, choice and weights of a row's experts: one warp a row for many rows, one block a row, an
// expert a thread, for few. Both choose the same set exactly and add it in ascending order, so
// which one runs shows in no bit.
#pragma once

#include "common/device.cuh"
#include "tenon/ops/rows.h"

namespace tenon::cuda {

constexpr int kExpertsPerLane = 16;  // 512 experts, 32 lanes: expert e is at lane e % 32
constexpr int kMostChosen = 16;

/// sqrt(softplus(z)) within 3 ulp. Below -20, log1p(e^z) = e^z (1 - e^z / 2), so its root is
/// e^(z/2) to 5e-10, and stays normal where e^z does not.
__device__ inline float expert_score(float z) {
    if (z < -20.0f) {
        return expf(0.5f * z);
    }
    return sqrtf(z > 20.0f ? z : log1pf(expf(z)));
}

struct RouteArgs {
    const float* bias;
    const float* bias_image;  ///< null: bias
    const RowInfo* rows;
    int32_t E, k;
    float scale;
    int32_t* ids;
    float* weights;
};

// The warp chooses from `logits` (any memory, E values) for row t: k rounds of the largest key,
// ties to the lower index; then ids ascending, and the sum in that order.
__device__ inline void route_row(const RouteArgs& a, const float* logits, int64_t t) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    int32_t* ids = a.ids + t * a.k;
    float* weights = a.weights + t * a.k;
    const RowInfo row = a.rows[t];
    if (row.slot < 0) {
        if (lane < a.k) {
            ids[lane] = -1;
            weights[lane] = 0;
        }
        return;
    }
    const bool image = (row.flags & kRowImage) != 0 && a.bias_image != nullptr;
    const float* bias = image ? a.bias_image : a.bias;
    float score[kExpertsPerLane];
    float key[kExpertsPerLane];
#pragma unroll
    for (int i = 0; i < kExpertsPerLane; ++i) {
        const int e = i * 32 + lane;
        score[i] = e < a.E ? expert_score(logits[e]) : 0.0f;
        key[i] = e < a.E ? score[i] + bias[e] : __int_as_float(0x7FC00000);
    }
    unsigned taken = 0;  // bit i: this lane's expert i is chosen
    int found = 0;
    for (; found < a.k; ++found) {
        float best = 0;
        int best_e = 1 << 30;  // none
#pragma unroll
        for (int i = 0; i < kExpertsPerLane; ++i) {
            const bool free = (taken >> i & 1u) == 0 && !isnan(key[i]);
            if (free && (best_e == 1 << 30 || key[i] > best)) {
                best = key[i];
                best_e = i * 32 + lane;
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(kFullWarp, best, step);
            const int other_e = __shfl_xor_sync(kFullWarp, best_e, step);
            const bool better = other_e != 1 << 30 && (best_e == 1 << 30 || other > best ||
                                                       (other == best && other_e < best_e));
            best = better ? other : best;
            best_e = better ? other_e : best_e;
        }
        if (best_e == 1 << 30) {
            break;
        }
        if (best_e % 32 == lane) {
            taken |= 1u << (best_e / 32);
        }
    }
    // Rank of each chosen expert in ascending order, and its score at that rank.
    __shared__ float chosen[8][kMostChosen];  // one row a warp
    float* mine = chosen[threadIdx.x / 32];
    int before = 0;
#pragma unroll
    for (int i = 0; i < kExpertsPerLane; ++i) {
        const bool here = (taken >> i & 1u) != 0;
        const unsigned mask = __ballot_sync(kFullWarp, here);
        if (here) {
            const int rank = before + __popc(mask & ((1u << lane) - 1u));
            ids[rank] = i * 32 + lane;
            mine[rank] = score[i];
        }
        before += __popc(mask);
    }
    __syncwarp();
    float sum = 0;
    for (int i = 0; i < found; ++i) {
        sum += mine[i];
    }
    sum += 1e-20f;
    if (lane < a.k) {
        weights[lane] = lane < found ? mine[lane] / sum * a.scale : 0.0f;
        if (lane >= found) {
            ids[lane] = -1;
        }
    }
}

constexpr int kRouteThreads = 512;

// One block a row. An expert is chosen if fewer than k experts come before it (a larger key, or the
// same key and a lower index); NaN comes nowhere.
__global__ void __launch_bounds__(kRouteThreads)
    route_wide_kernel(RouteArgs a, const float* logits) {
    __shared__ __align__(16) float key[kRouteThreads];
    __shared__ int before_warp[kRouteThreads / 32];
    __shared__ float chosen[kMostChosen];
    const int64_t t = blockIdx.x;
    const int e = static_cast<int>(threadIdx.x);
    int32_t* ids = a.ids + t * a.k;
    float* weights = a.weights + t * a.k;
    const RowInfo row = a.rows[t];
    const float nan = __int_as_float(0x7FC00000);
    float score = 0;
    float mine = nan;
    if (row.slot >= 0 && e < a.E) {
        const bool image = (row.flags & kRowImage) != 0 && a.bias_image != nullptr;
        score = expert_score(logits[t * a.E + e]);
        mine = score + (image ? a.bias_image : a.bias)[e];
    }
    key[e] = mine;
    __syncthreads();
    int ahead = 0;
    for (int i = 0; i < a.E; i += 4) {
        const float4 other = *reinterpret_cast<const float4*>(key + i);
        ahead += other.x > mine || (other.x == mine && i < e);
        ahead += other.y > mine || (other.y == mine && i + 1 < e);
        ahead += other.z > mine || (other.z == mine && i + 2 < e);
        ahead += other.w > mine || (other.w == mine && i + 3 < e);
    }
    const bool here = !isnan(mine) && ahead < a.k;
    const unsigned mask = __ballot_sync(kFullWarp, here);
    if (e % 32 == 0) {
        before_warp[e / 32] = __popc(mask);
    }
    __syncthreads();
    int rank = __popc(mask & ((1u << (e % 32)) - 1u));
    int found = 0;
#pragma unroll
    for (int w = 0; w < kRouteThreads / 32; ++w) {
        rank += w < e / 32 ? before_warp[w] : 0;
        found += before_warp[w];
    }
    if (here) {
        ids[rank] = e;
        chosen[rank] = score;
    }
    __syncthreads();
    if (e < a.k) {
        float sum = 0;
        for (int i = 0; i < found; ++i) {
            sum += chosen[i];
        }
        sum += 1e-20f;
        weights[e] = e < found ? chosen[e] / sum * a.scale : 0.0f;
        if (e >= found) {
            ids[e] = -1;
        }
    }
}

// Four rows a block.
__global__ void route_kernel(RouteArgs a, const float* logits, int64_t T) {
    const int64_t t = blockIdx.x * 4 + threadIdx.x / 32;
    if (t < T) {
        route_row(a, logits + t * a.E, t);
    }
}

}  // namespace tenon::cuda
