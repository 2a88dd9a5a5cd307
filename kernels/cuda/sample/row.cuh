// SPDX-License-Identifier: MIT
// A row of logits shared by a cluster of eight blocks: slices and reductions over the cluster.
// Where there are no clusters a block has the row alone.
#pragma once

#include "common/arch.cuh"
#include "common/cluster.cuh"
#include "sample/noise.cuh"

namespace tenon::cuda::sample {

/// Blocks of a row on an architecture.
__host__ __device__ constexpr int ranks_of(int arch) {
    return arch >= 90 ? 8 : 1;
}
constexpr int kRanks = ranks_of(kArch);  // in device code
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

/// Ids [first, first + n) of a row of V belong to this block; n is a multiple of 4 but in the last.
struct Slice {
    int64_t first, n;
};
__device__ inline Slice slice_of(int64_t V, int rank) {
    const int64_t each = ((V + kRanks - 1) / kRanks + 3) / 4 * 4;
    const int64_t first = rank * each;
    return {first, first >= V ? 0 : (first + each < V ? each : V - first)};
}

struct AddF64 {
    __device__ double operator()(double a, double b) const { return a + b; }
};
struct AddU64 {
    __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const {
        return a + b;
    }
};
struct MaxF32 {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct MaxU64 {
    __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const {
        return a > b ? a : b;
    }
};
struct Best {
    __device__ Ranked operator()(Ranked a, Ranked b) const { return better_of(a, b); }
};

template <class T>
__device__ inline T shuffle(T x, int step) {
    return __shfl_xor_sync(kFullWarp, x, step);
}
__device__ inline Ranked shuffle(Ranked x, int step) {
    return {__shfl_xor_sync(kFullWarp, x.value, step), __shfl_xor_sync(kFullWarp, x.id, step)};
}

/// Places for reductions. A place may be used again once two other syncs of its kind have passed.
struct Places {
    struct alignas(16) Value {
        unsigned char bytes[16];
    };
    Value warp[2][kWarps];
    Value block[2];
};

/// Folds over the block in a fixed order: a tree in each warp, then warps ascending. Every thread
/// gets it. `turn` alternates between calls.
template <class T, class F>
__device__ inline T block_fold(Places& p, T x, F f, int& turn) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        x = f(x, shuffle(x, step));
    }
    T* slots = reinterpret_cast<T*>(&p.warp[turn][0]);
    constexpr int kStep = sizeof(typename Places::Value) / sizeof(T);
    if (threadIdx.x % 32 == 0) {
        slots[threadIdx.x / 32 * kStep] = x;
    }
    __syncthreads();
    T sum = slots[0];
    for (int w = 1; w < kWarps; ++w) {
        sum = f(sum, slots[w * kStep]);
    }
    turn ^= 1;
    return sum;
}

/// Then over the blocks of the cluster, ranks ascending. Every thread of the cluster gets it.
template <class T, class F>
__device__ inline T cluster_fold(Cluster& cluster, Places& p, T x, F f, int& turn,
                                 int& cluster_turn) {
    x = block_fold(p, x, f, turn);
    T* mine = reinterpret_cast<T*>(&p.block[cluster_turn]);
    if (threadIdx.x == 0) {
        *mine = x;
    }
    cluster.sync();
    T sum = *cluster.map_shared_rank(mine, 0);
    for (int rank = 1; rank < kRanks; ++rank) {
        sum = f(sum, *cluster.map_shared_rank(mine, rank));
    }
    cluster_turn ^= 1;
    return sum;
}

}  // namespace tenon::cuda::sample
