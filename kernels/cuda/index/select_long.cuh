// SPDX-License-Identifier: MIT
// The choice of index/select.cuh for calls of more than kShortRow candidates: a 2048-bin histogram
// is made beside the scores or by hist_kernel, blocks collect what lies above and in the threshold
// bin, and the last block of the row decides. All counters are integers, so no result depends on
// the order of blocks.
#pragma once

#include "index/select.cuh"

namespace tenon::cuda::index {

constexpr int kLongThreads = 512;
constexpr int kSpan = 8192;  // scores that one block of a long row looks at
constexpr int kFew = 64;     // entries that are ranked by comparing all
constexpr int kHistThreads = 512;

/// Sorts `padded` ids in shared memory, ascending; a power of two. There is room for 2 kThreads
/// numbers. One number a thread has a form of its own: all steps are known, and those below
/// 32 stay in a warp.
template <int kThreads>
__device__ inline void sort_ids(int* ids, int padded) {
    const int tid = threadIdx.x;
    if (padded == kThreads) {
        int x = ids[tid];
        int at = 0;  // the half of `ids` that the next exchange uses
#pragma unroll
        for (int size = 2; size <= kThreads; size *= 2) {
            const bool up = (tid & size) == 0;
#pragma unroll
            for (int step = size / 2; step > 0; step /= 2) {
                int y;
                if (step < 32) {
                    y = __shfl_xor_sync(~0u, x, step);
                } else {
                    at ^= kThreads;
                    ids[at + tid] = x;
                    __syncthreads();
                    y = ids[at + (tid ^ step)];
                }
                x = ((tid & step) == 0) == up ? min(x, y) : max(x, y);
            }
        }
        __syncthreads();
        ids[tid] = x;
        __syncthreads();
        return;
    }
    for (int size = 2; size <= padded; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            for (int i = tid; i < padded / 2; i += kThreads) {
                const int low = 2 * i - (i & (step - 1));
                const int high = low + step;
                const bool up = (low & size) == 0;
                const int x = ids[low];
                const int y = ids[high];
                if ((x > y) == up) {
                    ids[low] = y;
                    ids[high] = x;
                }
            }
            __syncthreads();
        }
    }
}

// Zeroed counters; grid (1, T).
__global__ void __launch_bounds__(512) clear_kernel(const __grid_constant__ SelectArgs a) {
    start_when_ready();
    const int64_t t = blockIdx.y;
    for (int i = threadIdx.x; i < kBins; i += 512) {
        a.hist[t * kBins + i] = 0;
    }
    if (threadIdx.x < 4) {
        a.state[t * 4 + threadIdx.x] = 0;
    }
}

// Adds the counts of hist; grid (spans, T).
__global__ void __launch_bounds__(kHistThreads) hist_kernel(const __grid_constant__ SelectArgs a) {
    __shared__ unsigned bins[kBins];
    for (int i = threadIdx.x; i < kBins; i += kHistThreads) {
        bins[i] = 0;
    }
    start_when_ready();
    const int t = blockIdx.y;
    const SelectRow s = select_row(a, t, false);
    const int64_t first = int64_t{blockIdx.x} * kSpan;
    if (s.all || first >= s.n) {
        return;
    }
    __syncthreads();
    const int64_t last = first + kSpan < s.n ? first + kSpan : s.n;
    for (int64_t j = first + threadIdx.x; j < last; j += kHistThreads) {
        int id;
        const uint32_t key = candidate_key(s, j, &id);
        if (key != 0) {
            atomicAdd(&bins[bin_of(key)], 1u);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kBins; i += kHistThreads) {
        if (bins[i] != 0) {
            atomicAdd(&a.hist[int64_t{t} * kBins + i], bins[i]);
        }
    }
}

/// Keeps the entries of the row's threshold bin in registers, finds the `want`-th largest, and
/// appends the ids of it and of larger ones to `ids`, whose length is `count`. A digit of eleven
/// bits leaves few; more than kFew go on by digits of eight bits. All threads of the block call.
__device__ inline void refine(SelectShared& sm, const uint64_t* listed, unsigned n, unsigned want,
                              int* ids, unsigned* count, unsigned most) {
    constexpr int kEach = kListed / kLongThreads;
    const int tid = threadIdx.x;
    const int lane = tid % 32;
    uint64_t mine[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const unsigned at = i * kLongThreads + tid;
        mine[i] = at < n ? __ldcg(&listed[at]) : 0;
    }
    const auto append = [&](uint64_t entry) {
        const unsigned at = atomicAdd(count, 1u);
        if (at < most) {
            ids[at] = static_cast<int>(~static_cast<uint32_t>(entry));
        }
    };
    // The bin fixes the upper 11 bits; entries are distinct numbers.
    constexpr int kShift = 42;
    for (int i = tid; i < kBins; i += kLongThreads) {
        sm.bins[i] = 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        if (i * kLongThreads < n && mine[i] != 0) {
            atomicAdd(&sm.bins[mine[i] >> kShift & (kBins - 1)], 1u);
        }
    }
    __syncthreads();
    threshold_bin<kLongThreads>(sm, sm.bins, want);
    const unsigned digit = sm.chosen[0];
    const unsigned few = sm.bins[digit];
    want -= sm.chosen[1];
    uint64_t prefix = uint64_t{digit} << kShift;
    uint64_t mask = uint64_t{kBins - 1} << kShift;
    if (few <= kFew) {
        if (tid == 0) {
            sm.chosen[2] = 0;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (i * kLongThreads < n && mine[i] != 0 && (mine[i] & mask) >= prefix) {
                if ((mine[i] & mask) == prefix && few != want) {
                    sm.listed[atomicAdd(&sm.chosen[2], 1u)] = mine[i];
                } else {
                    append(mine[i]);
                }
            }
        }
        __syncthreads();
        if (few != want && tid < few) {
            const uint64_t entry = sm.listed[tid];
            unsigned larger = 0;
            for (unsigned i = 0; i < few; ++i) {
                larger += sm.listed[i] > entry ? 1 : 0;
            }
            if (larger < want) {
                append(entry);
            }
        }
        __syncthreads();
        return;
    }
    unsigned* bins = sm.bins;  // of this digit, and of the next
    unsigned* next = sm.bins + 256;
    __syncthreads();
    if (tid < 256) {
        bins[tid] = 0;
    }
    __syncthreads();
    for (int shift = kShift - 8;; shift = max(shift - 8, 0)) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (i * kLongThreads < n && mine[i] != 0 && (mine[i] & mask) == prefix) {
                atomicAdd(&bins[mine[i] >> shift & 0xFF], 1u);
            }
        }
        if (tid < 256) {
            next[tid] = 0;
        }
        __syncthreads();
        if (tid < 32) {  // lane l has bins 255 - 8 l and the seven below
            unsigned in[8];
            unsigned sum = 0;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                in[i] = bins[255 - 8 * lane - i];
                sum += in[i];
            }
            unsigned before = sum;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const unsigned other = __shfl_up_sync(~0u, before, step);
                before += lane >= step ? other : 0;
            }
            before -= sum;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (before < want && before + in[i] >= want) {
                    sm.chosen[0] = 255 - 8 * lane - i;
                    sm.chosen[1] = before;
                    sm.chosen[2] = in[i];
                }
                before += in[i];
            }
        }
        __syncthreads();
        want -= sm.chosen[1];
        prefix |= uint64_t{sm.chosen[0]} << shift;
        mask |= uint64_t{0xFF} << shift;
        if (sm.chosen[2] == want || shift == 0) {
            break;
        }
        unsigned* used = bins;
        bins = next;
        next = used;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        if (i * kLongThreads < n && mine[i] != 0 && (mine[i] & mask) >= prefix) {
            append(mine[i]);
        }
    }
    __syncthreads();
}

// Grid (spans, T); the last block of a row to finish decides.
__global__ void __launch_bounds__(kLongThreads)
    select_long_kernel(const __grid_constant__ SelectArgs a) {
    __shared__ SelectShared sm;
    start_when_ready();
    const int t = blockIdx.y;
    const int tid = threadIdx.x;
    const int64_t first = int64_t{blockIdx.x} * kSpan;
    constexpr int kEach = kSpan / kLongThreads;
    uint32_t keys[kEach];
    // Scores are asked for before the row says how many of them count.
    const float* values = a.values + t * a.stride + first + tid;
    const int64_t held = a.N - first - tid;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        keys[i] = i * kLongThreads < held ? __float_as_uint(values[i * kLongThreads]) : 0;
    }
    const SelectRow s = select_row(a, t, blockIdx.x == 0 && tid == 0);
    if (s.all) {
        if (blockIdx.x == 0) {
            select_all(a, s, t);
        }
        return;
    }
    const unsigned blocks = static_cast<unsigned>((s.n + kSpan - 1) / kSpan);
    if (first >= s.n && (s.n > 0 || blockIdx.x > 0)) {
        return;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int64_t j = first + i * kLongThreads + tid;
        bool counts = j < s.n;
        if (s.columns.cand != nullptr && counts) {
            const int id = s.columns.id(static_cast<int>(j));
            counts = id >= 0 && id < s.visible;
        }
        keys[i] = counts ? keys[i] : 0xFFFFFFFFu;  // a NaN
    }
    unsigned* state = a.state + t * 4;
    uint64_t* listed = a.listed + int64_t{t} * kListed;
    int* sure = a.sure + int64_t{t} * kMaxKept;
    if (tid < 4) {
        sm.warps[1][tid] = 0;  // sure and listed of this span, then their places in the row's lists
    }
    threshold_bin<kLongThreads>(sm, a.hist + int64_t{t} * kBins, static_cast<unsigned>(a.K));
    const int bin = static_cast<int>(sm.chosen[0]);  // -1: all eligible rows are chosen
    unsigned hits = 0;                               // of this thread's keys
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        keys[i] = order_key(__uint_as_float(keys[i]));
        hits |= keys[i] != 0 && bin_of(keys[i]) >= bin ? 1u << i : 0u;
    }
    while (hits != 0) {  // few, and one of each thread at a time
        const int hit = __ffs(static_cast<int>(hits)) - 1;
        hits &= hits - 1;
        uint32_t key = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            key = i == hit ? keys[i] : key;
        }
        const int id = s.columns.id(static_cast<int>(first + hit * kLongThreads + tid));
        if (bin_of(key) > bin) {
            const unsigned at = atomicAdd(&sm.warps[1][0], 1u);
            if (at < kMaxKept) {
                sm.ids[at] = id;
            }
        } else {
            const unsigned at = atomicAdd(&sm.warps[1][1], 1u);
            if (at < kSpanListed) {
                sm.listed[at] = uint64_t{key} << 32 | static_cast<uint32_t>(~id);
            }
        }
    }
    __syncthreads();
    const unsigned my_sure = sm.warps[1][0];
    const unsigned my_listed = sm.warps[1][1];
    if (tid == 0 && my_sure > 0) {
        sm.warps[1][2] = atomicAdd(&state[0], my_sure);
    }
    if (tid == 32 && my_listed > 0) {  // too many in one span count as too many in all
        sm.warps[1][3] = atomicAdd(&state[1], my_listed <= kSpanListed ? my_listed : kListed + 1);
    }
    __syncthreads();
    for (unsigned i = tid; i < my_sure; i += kLongThreads) {
        if (sm.warps[1][2] + i < kMaxKept) {
            sure[sm.warps[1][2] + i] = sm.ids[i];
        }
    }
    for (unsigned i = tid; i < my_listed && my_listed <= kSpanListed; i += kLongThreads) {
        if (sm.warps[1][3] + i < kListed) {
            listed[sm.warps[1][3] + i] = sm.listed[i];
        }
    }
    __threadfence();
    __syncthreads();
    if (tid == 0) {
        sm.chosen[2] = atomicAdd(&state[2], 1u) + 1 >= blocks;
    }
    __syncthreads();
    if (sm.chosen[2] == 0) {
        return;
    }
    __threadfence();
    const unsigned K = static_cast<unsigned>(a.K);
    const unsigned n_sure = __ldcg(&state[0]);
    const unsigned n_listed = __ldcg(&state[1]);
    if (n_listed > kListed) {  // a bin full of near ties: walk the row
        select_in_block<false, kLongThreads>(a, sm, s, t);
        return;
    }
    if (tid == 0) {
        sm.chosen[3] = n_sure;
    }
    for (unsigned i = tid; i < n_sure; i += kLongThreads) {
        sm.ids[i] = __ldcg(&sure[i]);
    }
    __syncthreads();
    const unsigned need = bin < 0 ? 0 : K - n_sure;  // at most n_listed, by the choice of the bin
    if (need > 0) {
        refine(sm, listed, n_listed, need, sm.ids, &sm.chosen[3], K);
    }
    const int kept = static_cast<int>(min(sm.chosen[3], K));
    int padded = 32;
    while (padded < kept) {
        padded *= 2;
    }
    for (int i = kept + tid; i < padded; i += kLongThreads) {
        sm.ids[i] = 0x7FFFFFFF;
    }
    __syncthreads();
    sort_ids<kLongThreads>(sm.ids, padded);
    for (int i = tid; i < a.K; i += kLongThreads) {
        a.out[int64_t{t} * a.K + i] = i < kept ? sm.ids[i] : -1;
    }
    if (tid == 0) {
        a.count[t] = kept;
    }
}

}  // namespace tenon::cuda::index
