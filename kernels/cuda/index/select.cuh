// SPDX-License-Identifier: MIT
// Exact choice of the K largest scores of a row, ties to the lower row, emitted in ascending order.
//
// Calls of up to kShortRow candidates: one block a row, three histogram passes over the ordered key
// and one ordered emission. Longer ones: select_long.cuh.
#pragma once

#include "index/keys.cuh"

namespace tenon::cuda::index {

constexpr int kShortThreads = 1024;
constexpr int kShortRow = 16384;
constexpr int kMaxKept = 4096;
constexpr int kListed = 8192;      // entries of the threshold bin that are kept aside
constexpr int kSpanListed = 1024;  // of them from one span

/// A row to choose from: candidate j has score values[j] and row id columns.id(j).
struct SelectArgs {
    const float* values;
    int64_t stride, N;
    const Row* row;
    int T, ratio;
    int units;        // 1, or rows of a block where candidates are blocks
    const int* cand;  // [T, C] or null
    int C, block;
    int K;
    int* out;          // [T, K]
    int* count;        // [T]
    unsigned* hist;    // [T][kBins]
    unsigned* state;   // [T][4]: sure, listed, blocks done
    uint64_t* listed;  // [T][kListed] ordered key and inverted id
    int* sure;         // [T][kMaxKept]
    unsigned long long* faults;
};

struct SelectRow {
    const float* values;
    Columns columns;
    int64_t n;    // candidates to look at
    int visible;  // ids below are eligible
    bool all;     // the first `visible` ids are the answer
};

__device__ inline SelectRow select_row(const SelectArgs& a, int t, bool report) {
    SelectRow s;
    const Row row = a.row[t];
    int64_t visible = row.slot < 0 ? 0 : visible_rows(row.pos, a.ratio);
    if (a.units > 1) {
        visible = (visible + a.units - 1) / a.units;
    }
    s.values = a.values + t * a.stride;
    s.columns = {a.cand == nullptr ? nullptr : a.cand + int64_t{t} * a.C, a.block};
    s.all = visible <= a.K && (a.cand == nullptr || visible <= int64_t{a.C} * a.block);
    s.visible = static_cast<int>(visible);
    if (a.cand != nullptr) {
        const int64_t most = int64_t{a.C} * a.block;
        s.n = a.N < most ? a.N : most;
    } else {
        s.n = visible < a.N ? visible : a.N;
        if (!s.all && visible > a.N && report && a.faults != nullptr) {
            atomicAdd(a.faults, 1ull);
        }
    }
    return s;
}

/// Ordered key of candidate j; 0 = not eligible.
__device__ inline uint32_t candidate_key(const SelectRow& s, int64_t j, int* id) {
    *id = s.columns.id(static_cast<int>(j));
    return *id >= 0 && *id < s.visible ? order_key(s.values[j]) : 0;
}

struct SelectShared {
    unsigned bins[kBins];
    unsigned warps[2][32];
    unsigned chosen[4];
    int ids[kMaxKept];
    uint64_t listed[kSpanListed];
};

/// Largest bin b with at least `want` entries in bins b and above (want > 0); chosen[0] = b or -1
/// when there are fewer, chosen[1] = entries above b (of all bins when -1). All threads of the
/// block call.
template <int kThreads>
__device__ void threshold_bin(SelectShared& sm, const unsigned* bins, unsigned want) {
    constexpr int kEach = kBins / kThreads > 0 ? kBins / kThreads : 1;
    const int tid = threadIdx.x;
    const int lane = tid % 32;
    unsigned mine[kEach];
    unsigned sum = 0;
    // Thread 0 owns the largest bins.
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        mine[i] = bins[kBins - 1 - (tid * kEach + i)];
        sum += mine[i];
    }
    unsigned before = sum;
    for (int step = 1; step < 32; step *= 2) {
        const unsigned other = __shfl_up_sync(~0u, before, step);
        before += lane >= step ? other : 0;
    }
    if (lane == 31) {
        sm.warps[0][tid / 32] = before;
    }
    if (tid == 0) {
        sm.chosen[0] = ~0u;
    }
    __syncthreads();
    unsigned base = 0;
    unsigned total = 0;
    for (int w = 0; w < kThreads / 32; ++w) {
        base += w < tid / 32 ? sm.warps[0][w] : 0;
        total += sm.warps[0][w];
    }
    before += base - sum;  // entries in bins above this thread's
    if (tid == 0 && total < want) {
        sm.chosen[1] = total;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        if (before < want && before + mine[i] >= want) {
            sm.chosen[0] = static_cast<unsigned>(kBins - 1 - (tid * kEach + i));
            sm.chosen[1] = before;
        }
        before += mine[i];
    }
    __syncthreads();
}

/// Chooses and emits a whole row in one block. Each warp owns a run of candidates, so that emission
/// is in order. kShort: rows of at most kShortRow, whose keys stay in registers.
template <bool kShort, int kThreads>
__device__ inline void select_in_block(const SelectArgs& a, SelectShared& sm, const SelectRow& s,
                                       int t) {
    const int tid = threadIdx.x;
    const int lane = tid % 32;
    const int warp = tid / 32;
    constexpr int kWarps = kThreads / 32;
    constexpr int kRounds = kShort ? kShortRow / kThreads : 1;
    const int64_t each = kShort ? kRounds * 32 : (s.n + kThreads - 1) / kThreads * 32;
    const int64_t first = warp * each;
    const int64_t last = first + each < s.n ? first + each : s.n;
    uint32_t held[kRounds];
    if constexpr (kShort) {
#pragma unroll
        for (int i = 0; i < kRounds; ++i) {
            const int64_t j = first + i * 32 + lane;
            int id;
            held[i] = j < last ? candidate_key(s, j, &id) : 0;
        }
    }
    // Calls f(candidate, key) in order; all lanes of a warp call together, key 0 beyond the end.
    const auto each_key = [&](const auto& f) {
        if constexpr (kShort) {
#pragma unroll
            for (int i = 0; i < kRounds; ++i) {
                f(first + i * 32 + lane, held[i]);
            }
        } else {
            for (int64_t base = first; base < last; base += 32) {
                int id;
                f(base + lane, base + lane < last ? candidate_key(s, base + lane, &id) : 0);
            }
        }
    };
    unsigned want = static_cast<unsigned>(a.K);
    uint32_t prefix = 0;  // decided high bits of the threshold key
    uint32_t mask = 0;
    bool take_all = false;  // fewer than K eligible
    bool exact = false;     // all that share the prefix are wanted
    constexpr int kShift[3] = {21, 10, 0};
    constexpr int kBits[3] = {11, 11, 10};
    for (int pass = 0; pass < 3 && !take_all && !exact; ++pass) {
        for (int i = tid; i < kBins; i += kThreads) {
            sm.bins[i] = 0;
        }
        __syncthreads();
        const uint32_t field = (1u << kBits[pass]) - 1;
        each_key([&](int64_t, uint32_t key) {
            if (key != 0 && (key & mask) == prefix) {
                atomicAdd(&sm.bins[key >> kShift[pass] & field], 1u);
            }
        });
        __syncthreads();
        threshold_bin<kThreads>(sm, sm.bins, want);
        if (sm.chosen[0] == ~0u) {
            take_all = true;
        } else {
            want -= sm.chosen[1];
            prefix |= sm.chosen[0] << kShift[pass];
            mask |= field << kShift[pass];
            exact = sm.bins[sm.chosen[0]] == want;
        }
        __syncthreads();
    }
    const auto above = [&](uint32_t key) {
        return key != 0 && (take_all || (key & mask) > prefix);
    };
    const auto equal = [&](uint32_t key) {
        return key != 0 && !take_all && (key & mask) == prefix;
    };
    unsigned n_above = 0;
    unsigned n_equal = 0;
    each_key([&](int64_t, uint32_t key) {
        n_above += __popc(__ballot_sync(~0u, above(key)));
        n_equal += __popc(__ballot_sync(~0u, equal(key)));
    });
    if (lane == 0) {
        sm.warps[0][warp] = n_above;
        sm.warps[1][warp] = n_equal;
    }
    __syncthreads();
    unsigned at_above = 0;
    unsigned at_equal = 0;
    unsigned total_above = 0;
    unsigned total_equal = 0;
    for (int w = 0; w < kWarps; ++w) {
        at_above += w < warp ? sm.warps[0][w] : 0;
        at_equal += w < warp ? sm.warps[1][w] : 0;
        total_above += sm.warps[0][w];
        total_equal += sm.warps[1][w];
    }
    int* out = a.out + int64_t{t} * a.K;
    each_key([&](int64_t j, uint32_t key) {
        const unsigned b_above = __ballot_sync(~0u, above(key));
        const unsigned b_equal = __ballot_sync(~0u, equal(key));
        const unsigned below = (1u << lane) - 1;
        const unsigned e = at_equal + __popc(b_equal & below);
        if (above(key) || (equal(key) && e < want)) {
            const unsigned place = at_above + __popc(b_above & below) + (e < want ? e : want);
            if (place < static_cast<unsigned>(a.K)) {
                out[place] = s.columns.id(static_cast<int>(j));
            }
        }
        at_above += __popc(b_above);
        at_equal += __popc(b_equal);
    });
    const unsigned kept =
        take_all ? total_above : total_above + (total_equal < want ? total_equal : want);
    for (unsigned i = kept + tid; i < static_cast<unsigned>(a.K); i += kThreads) {
        out[i] = -1;
    }
    if (tid == 0) {
        a.count[t] = static_cast<int>(kept);
    }
}

/// Rows 0..visible-1, then -1.
__device__ inline void select_all(const SelectArgs& a, const SelectRow& s, int t) {
    for (int i = threadIdx.x; i < a.K; i += blockDim.x) {
        a.out[int64_t{t} * a.K + i] = i < s.visible ? i : -1;
    }
    if (threadIdx.x == 0) {
        a.count[t] = s.visible;
    }
}

// Rows of at most kShortRow candidates, a block each; grid (1, T).
__global__ void __launch_bounds__(kShortThreads)
    select_short_kernel(const __grid_constant__ SelectArgs a) {
    __shared__ SelectShared sm;
    start_when_ready();
    const int t = blockIdx.y;
    const SelectRow s = select_row(a, t, threadIdx.x == 0);
    if (s.all) {
        select_all(a, s, t);
    } else {
        select_in_block<true, kShortThreads>(a, sm, s, t);
    }
}

struct BlockArgs {
    const float* scores;
    int64_t stride, N;
    const Row* row;
    int T, ratio, block, C;
    float* best;  // [T][columns]: largest score of each block, +inf for the newest
    int64_t columns;
    unsigned long long* faults;
};

// Largest score of every block of a row that needs a choice; grid (spans of 1024 blocks, T).
__global__ void __launch_bounds__(256) block_max_kernel(const __grid_constant__ BlockArgs a) {
    start_when_ready();
    const int t = blockIdx.y;
    const Row row = a.row[t];
    int64_t visible = row.slot < 0 ? 0 : visible_rows(row.pos, a.ratio);
    const int64_t blocks = (visible + a.block - 1) / a.block;
    if (blocks <= a.C) {
        return;
    }
    if (visible > a.N) {
        if (blockIdx.x == 0 && threadIdx.x == 0 && a.faults != nullptr) {
            atomicAdd(a.faults, 1ull);
        }
        visible = a.N;
    }
    const float* scores = a.scores + t * a.stride;
    const int64_t first = int64_t{blockIdx.x} * 1024;
    for (int64_t b = first + threadIdx.x; b < first + 1024 && b < a.columns; b += 256) {
        float top = kMinusInf;
        const int64_t from = b * a.block;
        const int64_t to = from + a.block < visible ? from + a.block : visible;
        if (from < visible) {
            for (int64_t i = from; i < to; ++i) {
                top = scores[i] > top ? scores[i] : top;  // a NaN compares false
            }
            top = to == visible ? kPlusInf : top;
        }
        a.best[t * a.columns + b] = top;
    }
}

}  // namespace tenon::cuda::index
