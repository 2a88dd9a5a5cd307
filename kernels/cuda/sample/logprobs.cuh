// SPDX-License-Identifier: MIT
// sample.logprobs: log-softmax of raw logits by a cluster a row; and sample.count.
#pragma once

#include "sample/row.cuh"
#include "tenon/ops/sample.h"

namespace tenon::cuda::sample {

struct LogprobArgs {
    const float* logits;
    int64_t stride;
    int M;
    int64_t V;
    const int* token;
    int* ids;
    int64_t ids_stride;
    float* lp;
    int64_t lp_stride;
    float* token_lp;
    int n;
};

struct LogprobShared {
    Places places;
};

// Ordered logit and inverted id: larger is better, ties to the lower id, no two alike.
__device__ inline unsigned long long composite(float x, int64_t id) {
    return static_cast<unsigned long long>(ordered(x)) << 32 | static_cast<uint32_t>(~id);
}

__global__ void __launch_bounds__(kThreads) logprobs_kernel(const __grid_constant__ LogprobArgs a) {
    __shared__ LogprobShared sm;
    Cluster cluster = this_cluster();
    const int rank = static_cast<int>(cluster.block_rank());
    const int m = blockIdx.x / kRanks;
    const int tid = threadIdx.x;
    const Slice slice = slice_of(a.V, rank);
    const float* row = a.logits + m * a.stride;
    const float* l = row + slice.first;
    int turn = 0;
    int cluster_turn = 0;
    float top = -__builtin_huge_valf();
    for (int64_t i = tid; i < slice.n; i += kThreads) {
        top = fmaxf(top, l[i]);
    }
    top = cluster_fold(cluster, sm.places, top, MaxF32(), turn, cluster_turn);
    double sum = 0;
    for (int64_t i = tid; i < slice.n; i += kThreads) {
        sum += exp(static_cast<double>(l[i]) - static_cast<double>(top));
    }
    sum = cluster_fold(cluster, sm.places, sum, AddF64(), turn, cluster_turn);
    const double norm = static_cast<double>(top) + log(sum);
    const auto lp = [&](int64_t id) {
        return static_cast<float>(static_cast<double>(row[id]) - norm);
    };
    const bool writes = rank == 0 && tid == 0;
    if (writes) {
        const int token = a.token[m];
        a.token_lp[m] = token >= 0 && token < a.V ? lp(token) : 0.0f;
    }
    unsigned long long before = ~0ull;  // the id listed last
    unsigned long long mine = ~0ull;    // this thread's best below it
    for (int k = 0; k < a.n; ++k) {
        if (mine >= before) {
            mine = 0;
            for (int64_t i = tid; i < slice.n; i += kThreads) {
                const unsigned long long c = composite(l[i], slice.first + i);
                mine = c < before && c > mine ? c : mine;
            }
        }
        const unsigned long long best =
            cluster_fold(cluster, sm.places, mine, MaxU64(), turn, cluster_turn);
        if (writes) {
            const int id = best == 0 ? -1 : static_cast<int>(~static_cast<uint32_t>(best));
            a.ids[m * a.ids_stride + k] = id;
            a.lp[m * a.lp_stride + k] = id >= 0 ? lp(id) : -__builtin_huge_valf();
        }
        if (best == 0) {
            before = 0;  // nothing is left: mine stays 0
            mine = 0;
        } else {
            before = best;
        }
    }
    cluster.sync();  // others may still read this block's places
}

struct CountArgs {
    const int* token;
    const int* slot;
    int n;
    uint16_t* seen;
    int slots;
    int64_t V;
    unsigned long long* faults;
};

// Saturating, so the order of equal pairs does not matter.
__global__ void count_kernel(const CountArgs a) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n || a.token[i] < 0 || a.slot[i] < 0) {
        return;
    }
    if (a.token[i] >= a.V || a.slot[i] >= a.slots) {
        fault(a.faults);
        return;
    }
    const int64_t at = a.slot[i] * a.V + a.token[i];
    auto* word = reinterpret_cast<unsigned*>(a.seen) + at / 2;
    const int shift = at % 2 * 16;
    unsigned old = *word;
    for (;;) {
        if ((old >> shift & kSeenCount) == kSeenCount) {
            return;
        }
        const unsigned found = atomicCAS(word, old, old + (1u << shift));
        if (found == old) {
            return;
        }
        old = found;
    }
}

}  // namespace tenon::cuda::sample
