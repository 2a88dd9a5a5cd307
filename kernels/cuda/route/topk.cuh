// SPDX-License-Identifier: MIT
// Scores, choice and weights of a row's experts. A warp chooses: k rounds of the largest key, each
// two reductions in hardware. For many rows the warp also scores; for few a block does, an expert a
// thread. Both choose the same set exactly and add it in ascending order, so which one runs shows
// in no bit.
#pragma once

#include "common/device.cuh"
#include "tenon/ops/rows.h"

namespace tenon::cuda {

constexpr int kExpertsPerLane = 16;  // 512 experts, 32 lanes: expert e is at lane e % 32
constexpr int kMostChosen = 16;
constexpr int kRouteThreads = 512;  // an expert a thread

/// sqrt(softplus(z)) within 3 ulp. Below -20, log1p(e^z) = e^z (1 - e^z / 2), so its root is
/// e^(z/2) to 5e-10, and stays normal where e^z does not.
__device__ inline float expert_score(float z) {
    if (z < -20.0f) {
        return expf(0.5f * z);
    }
    return sqrtf(z > 20.0f ? z : log1pf(expf(z)));
}

/// Orders keys as unsigned numbers; -0 equals +0, NaN comes to 0, below all.
__device__ inline uint32_t expert_key(float key) {
    if (isnan(key)) {
        return 0;
    }
    const uint32_t bits = __float_as_uint(key + 0.0f);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

struct RouteArgs {
    const float* bias;
    const float* bias_image;  ///< null: bias
    const RowInfo* rows;
    int32_t E, k;
    float scale;
    int32_t* ids;
    float* weights;

    /// The bias of a row's choice.
    __device__ const float* bias_of(const RowInfo& row) const {
        return (row.flags & kRowImage) != 0 && bias_image != nullptr ? bias_image : bias;
    }
};

__device__ inline void choose_nobody(const RouteArgs& a, int64_t t) {
    const int i = static_cast<int>(threadIdx.x % 32);
    if (i < a.k) {
        a.ids[t * a.k + i] = -1;
        a.weights[t * a.k + i] = 0;
    }
}

/// A warp writes row t. `key(i)`: expert_key of expert i * 32 + lane, 0 if there is none;
/// `score(e)`: score of any expert.
template <class Key, class Score>
__device__ inline void choose_experts(const RouteArgs& a, int64_t t, Key&& key, Score&& score) {
    constexpr int kNone = 1 << 30;
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint32_t keys[kExpertsPerLane];
#pragma unroll
    for (int i = 0; i < kExpertsPerLane; ++i) {
        keys[i] = key(i);
    }
    uint32_t best = 0;  // of this lane, and its expert; ties: the lower one
    int best_e = kNone;
    const auto find_best = [&] {
        best = 0;
        best_e = kNone;
#pragma unroll
        for (int i = 0; i < kExpertsPerLane; ++i) {
            if (keys[i] > best) {
                best = keys[i];
                best_e = i * 32 + lane;
            }
        }
    };
    find_best();
    int mine = kNone;  // lane i < found: the expert of round i
    int found = 0;
    for (; found < a.k; ++found) {
        const uint32_t top = __reduce_max_sync(kFullWarp, best);
        if (top == 0) {
            break;
        }
        const int e = __reduce_min_sync(kFullWarp, best == top ? best_e : kNone);
        if (lane == found) {
            mine = e;
        }
        if (e % 32 == lane) {
#pragma unroll
            for (int i = 0; i < kExpertsPerLane; ++i) {
                keys[i] = i == e / 32 ? 0 : keys[i];
            }
            find_best();
        }
    }
    int rank = 0;  // of `mine` among the chosen, ascending
    for (int i = 0; i < found; ++i) {
        rank += __shfl_sync(kFullWarp, mine, i) < mine ? 1 : 0;
    }
    const bool chosen = lane < found;
    const float own = chosen ? score(mine) : 0.0f;
    float sum = 0;
    for (int r = 0; r < found; ++r) {
        const unsigned at = __ballot_sync(kFullWarp, chosen && rank == r);
        sum += __shfl_sync(kFullWarp, own, __ffs(static_cast<int>(at)) - 1);
    }
    sum += 1e-20f;
    if (lane < a.k) {
        const int place = chosen ? rank : lane;
        a.ids[t * a.k + place] = chosen ? mine : -1;
        a.weights[t * a.k + place] = chosen ? own / sum * a.scale : 0.0f;
    }
}

// The warp scores and chooses from `logits` (E values) for row t.
__device__ inline void route_row(const RouteArgs& a, const float* logits, int64_t t) {
    const RowInfo row = a.rows[t];
    if (row.slot < 0) {
        choose_nobody(a, t);
        return;
    }
    const float* bias = a.bias_of(row);
    const int lane = static_cast<int>(threadIdx.x % 32);
    choose_experts(
        a, t,
        [&](int i) {
            const int e = i * 32 + lane;
            return e < a.E ? expert_key(expert_score(logits[e]) + bias[e]) : 0u;
        },
        [&](int e) { return expert_score(logits[e]); });
}

/// A thread's two biases: constants, asked for before the work in front has ended.
struct RouteBias {
    float text, image;
};
__device__ inline RouteBias route_bias(const RouteArgs& a) {
    const int e = static_cast<int>(threadIdx.x);
    if (e >= a.E) {
        return {};
    }
    const float text = a.bias[e];
    return {text, a.bias_image == nullptr ? text : a.bias_image[e]};
}

// A block of kRouteThreads scores row t, its first warp chooses. `logit(e)`: of an expert < E.
template <class Logit>
__device__ inline void route_block(const RouteArgs& a, const RouteBias& bias, int64_t t,
                                   Logit&& logit) {
    __shared__ float score[kRouteThreads];
    __shared__ uint32_t key[kRouteThreads];
    const RowInfo row = a.rows[t];
    if (row.slot < 0) {
        if (threadIdx.x < 32) {
            choose_nobody(a, t);
        }
        return;
    }
    const int e = static_cast<int>(threadIdx.x);
    const float s = e < a.E ? expert_score(logit(e)) : 0.0f;
    score[e] = s;
    key[e] = e < a.E ? expert_key(s + ((row.flags & kRowImage) != 0 ? bias.image : bias.text)) : 0u;
    __syncthreads();
    if (e < 32) {
        choose_experts(
            a, t, [&](int i) { return key[i * 32 + e]; },
            [&](int chosen) { return score[chosen]; });
    }
}

// One block a row.
[[maybe_unused]] static __global__ void __launch_bounds__(kRouteThreads)
    route_wide_kernel(RouteArgs a, const float* logits) {
    const int64_t t = blockIdx.x;
    route_block(a, route_bias(a), t, [&](int e) { return logits[t * a.E + e]; });
}

// Four rows a block.
[[maybe_unused]] static __global__ void route_kernel(RouteArgs a, const float* logits, int64_t T) {
    const int64_t t = blockIdx.x * 4 + threadIdx.x / 32;
    if (t < T) {
        route_row(a, logits + t * a.E, t);
    }
}

}  // namespace tenon::cuda
