// SPDX-License-Identifier: MIT
// sample.draw: a cluster of blocks a row, without a full sort.
//
// Adjusted logits of a block's slice stay in shared memory (or in scratch where they do not fit).
// top_k and top_p need a threshold (logit, id): ids that can pass are gathered into one block,
// which finds the threshold by bisection over the ordered logit; with too many of them all blocks
// bisect over their slices. Probabilities are summed as integers of 2^-43 of the largest, so a sum
// has no order; it differs from the f64 sum by at most V 2^-44. Noise is drawn only where it can
// still win.
#pragma once

#include "sample/row.cuh"
#include "tenon/ops/sample.h"

namespace tenon::cuda::sample {

constexpr int kBins = 2048;
constexpr double kUnit = 0x1p43;

struct DrawArgs {
    const float* logits;
    int64_t stride;
    int M;
    int64_t V;
    const SampleParams* params;
    const uint16_t* seen;  // [slots, V] or null
    int slots;
    const RowInfo* row;
    const SegInfo* seg;
    int T, S;
    const int* index;
    const int* ids;
    const int* bias_begin;
    const int* bias_ids;
    const float* bias_add;
    int biases;
    const uint32_t* mask;
    int64_t mask_stride;
    const uint32_t* forbid;
    int* token;
    float* logprob;
    float* spill;  // [M, kRanks * slice] adjusted logits that do not fit in shared memory, or null
    int gathered;  // capacity of the gathered list
    unsigned long long* faults;
};

constexpr int kMaxDrafts = 64;

struct DrawShared {
    Places places;
    unsigned bins[kBins];
    int drafts[kMaxDrafts];
    int draft_count;
    int chosen_bin;
    unsigned gathered;
    Ranked start;
};

// Penalties as ops.md 3.9 writes them; count = occurrences in the output, drafts included.
__device__ inline float penalise(float l, unsigned count, const SampleParams& s) {
    l = l > 0 ? __fdiv_rn(l, s.repetition) : __fmul_rn(l, s.repetition);
    if (count > 0) {
        l = __fsub_rn(l, __fmul_rn(s.frequency, static_cast<float>(count)));
        l = __fsub_rn(l, s.presence);
    }
    return l;
}

// The drafts that row m counts beside `seen`, or -1 where the row has no penalties.
__device__ inline int list_drafts(const DrawArgs& a, int m, const SampleParams& s, DrawShared& sm,
                                  const uint16_t** seen, bool report) {
    *seen = nullptr;
    if (a.seen == nullptr || (s.repetition == 1 && s.presence == 0 && s.frequency == 0)) {
        return -1;
    }
    const int t = a.index[m];
    const RowInfo row = a.row[t];
    if (row.slot < 0 || row.slot >= a.slots) {
        if (report) {
            fault(a.faults);
        }
        return -1;
    }
    *seen = a.seen + row.slot * a.V;
    bool good = row.seg >= 0 && row.seg < a.S;
    SegInfo seg{};
    if (good) {
        seg = a.seg[row.seg];
        good = seg.slot == row.slot && t >= seg.row0 && t < seg.row0 + seg.rows &&
               row.pos == seg.pos0 + (t - seg.row0) && seg.row0 >= 0;
    }
    if (!good) {
        if (report) {
            fault(a.faults);
        }
        return 0;
    }
    int n = t - seg.row0;
    n = n > kMaxDrafts ? kMaxDrafts : n;
    for (int i = 0; i < n; ++i) {
        sm.drafts[i] = a.ids[seg.row0 + 1 + i];
    }
    return n;
}

// The highest bin from which the bins upwards hold at least `want`; 0 if they never do. One warp
// calls.
__device__ inline int bin_reaching(const unsigned* bins, unsigned long long want) {
    constexpr int kEach = kBins / 32;
    const int lane = threadIdx.x % 32;
    const int first = kBins - 1 - lane * kEach;  // lane 0 owns the highest bins
    unsigned long long mine = 0;
    for (int i = 0; i < kEach; ++i) {
        mine += bins[first - i];
    }
    unsigned long long before = mine;
    for (int step = 1; step < 32; step *= 2) {
        const unsigned long long other = __shfl_up_sync(kFullWarp, before, step);
        before += lane >= step ? other : 0;
    }
    before -= mine;
    int found = -1;
    if (before < want && before + mine >= want) {
        for (int i = 0; found < 0; ++i) {
            before += bins[first - i];
            found = before >= want ? first - i : -1;
        }
    }
    const unsigned who = __ballot_sync(kFullWarp, found >= 0);
    return who == 0 ? 0 : __shfl_sync(kFullWarp, found, __ffs(who) - 1);
}

// What decides whether an id is kept.
struct Cut {
    uint32_t key;  // ordered logit
    int id;        // highest id kept among those with `key`
    __device__ bool keeps(uint32_t k, int i) const { return k > key || (k == key && i <= id); }
};

__global__ void __launch_bounds__(kThreads) draw_kernel(const __grid_constant__ DrawArgs a) {
    extern __shared__ __align__(16) uint8_t draw_bytes[];
    auto& sm = *reinterpret_cast<DrawShared*>(draw_bytes);
    auto* list_weight = reinterpret_cast<unsigned long long*>(draw_bytes + sizeof(DrawShared));
    auto* list_key = reinterpret_cast<uint32_t*>(list_weight + a.gathered);
    auto* list_id = reinterpret_cast<int*>(list_key + a.gathered);
    Cluster cluster = this_cluster();
    const int rank = static_cast<int>(cluster.block_rank());
    const int m = blockIdx.x / kRanks;
    const int tid = threadIdx.x;
    const Slice slice = slice_of(a.V, rank);
    const int64_t each = slice_of(a.V, 0).n;
    float* l = a.spill != nullptr ? a.spill + (int64_t{m} * kRanks + rank) * ((each + 3) / 4 * 4)
                                  : reinterpret_cast<float*>(list_id + a.gathered);
    const float* raw = a.logits + m * a.stride + slice.first;
    const SampleParams s = a.params[m];
    int turn = 0;
    int cluster_turn = 0;
    const auto finish = [&](int token, float logprob) {
        if (rank == 0 && tid == 0) {
            a.token[m] = token;
            if (a.logprob != nullptr) {
                a.logprob[m] = logprob;
            }
        }
    };
    // Uniform over the cluster, so that leaving early is safe.
    if (a.seen != nullptr && (a.index[m] < 0 || a.index[m] >= a.T)) {
        finish(-1, 0);
        return;
    }

    float raw_top = -__builtin_huge_valf();
    bool bad = false;
    const auto keep_raw = [&](float x) {
        bad = bad || !(x <= 3.4028234663852886e38f);
        raw_top = fmaxf(raw_top, x);
    };
    const int64_t fours = a.stride % 4 == 0 ? slice.n / 4 : 0;  // short rows may start anywhere
#pragma unroll 4
    for (int64_t i = tid; i < fours; i += kThreads) {
        const float4 x = reinterpret_cast<const float4*>(raw)[i];
        reinterpret_cast<float4*>(l)[i] = x;
        keep_raw(x.x);
        keep_raw(x.y);
        keep_raw(x.z);
        keep_raw(x.w);
    }
    for (int64_t i = fours * 4 + tid; i < slice.n; i += kThreads) {
        const float x = raw[i];
        l[i] = x;
        keep_raw(x);
    }
    raw_top = cluster_fold(cluster, sm.places, bad ? __builtin_huge_valf() : raw_top, MaxF32(),
                           turn, cluster_turn);
    if (raw_top == __builtin_huge_valf()) {
        finish(-2, 0);
        cluster.sync();
        return;
    }
    // cluster_fold has synchronised the block: every thread may read what others wrote to l.
    double raw_sum = 0;
    if (a.logprob != nullptr) {
        for (int64_t i = tid; i < slice.n; i += kThreads) {
            raw_sum += exp(static_cast<double>(l[i]) - static_cast<double>(raw_top));
        }
        raw_sum = cluster_fold(cluster, sm.places, raw_sum, AddF64(), turn, cluster_turn);
    }

    // Bias, penalties, masks; in this order.
    if (a.bias_begin != nullptr) {
        const int begin = max(0, a.bias_begin[m]);
        const int end = min(a.biases, a.bias_begin[m + 1]);
        __syncthreads();
        for (int i = begin + tid; i < end; i += kThreads) {
            const int id = a.bias_ids[i];
            bool mine = id >= slice.first && id < slice.first + slice.n;
            for (int j = begin; mine && j < i; ++j) {
                mine = a.bias_ids[j] != id;
            }
            if (mine) {  // the first entry of an id adds all of them in order
                float x = l[id - slice.first];
                for (int j = i; j < end; ++j) {
                    if (a.bias_ids[j] == id) {
                        x = __fadd_rn(x, a.bias_add[j]);
                    }
                }
                l[id - slice.first] = x;
            }
        }
    }
    const uint16_t* seen = nullptr;
    if (tid == 0) {
        sm.draft_count = list_drafts(a, m, s, sm, &seen, rank == 0);
        sm.gathered = 0;
    }
    __syncthreads();
    const int drafts = sm.draft_count;
    if (drafts >= 0) {
        seen = a.seen + a.row[a.index[m]].slot * a.V;
    }
    Ranked strongest{0, -1};
    const auto adjusted = [&](int64_t i, float x, uint32_t allowed) {
        const int id = static_cast<int>(slice.first + i);
        if (drafts >= 0) {
            const unsigned before = seen[id];
            unsigned drafted = 0;
            for (int d = 0; d < drafts; ++d) {
                drafted += sm.drafts[d] == id;
            }
            if (before != 0 || drafted != 0) {
                x = penalise(x, (before & kSeenCount) + drafted, s);
            }
        }
        x = (allowed >> (id % 32) & 1u) != 0 ? x : -__builtin_huge_valf();
        if (x > -__builtin_huge_valf()) {
            strongest = better_of(strongest, {static_cast<double>(x), id});
        }
        return x;
    };
    const auto allowed_at = [&](int64_t i) {
        const int64_t word = (slice.first + i) / 32;
        const uint32_t allowed = a.mask == nullptr ? ~0u : a.mask[m * a.mask_stride + word];
        return allowed & (a.forbid == nullptr ? ~0u : ~a.forbid[word]);
    };
    // A slice starts at a multiple of four, so four ids share a word.
#pragma unroll 4
    for (int64_t i = tid; i < slice.n / 4; i += kThreads) {
        float4 x = reinterpret_cast<const float4*>(l)[i];
        const uint32_t allowed = allowed_at(4 * i);
        x.x = adjusted(4 * i, x.x, allowed);
        x.y = adjusted(4 * i + 1, x.y, allowed);
        x.z = adjusted(4 * i + 2, x.z, allowed);
        x.w = adjusted(4 * i + 3, x.w, allowed);
        reinterpret_cast<float4*>(l)[i] = x;
    }
    for (int64_t i = slice.n / 4 * 4 + tid; i < slice.n; i += kThreads) {
        l[i] = adjusted(i, l[i], allowed_at(i));
    }
    strongest = cluster_fold(cluster, sm.places, strongest, Best(), turn, cluster_turn);
    const auto logprob_of = [&](int token) {
        const double x = static_cast<double>(a.logits[m * a.stride + token]);
        return static_cast<float>(x - (static_cast<double>(raw_top) + log(raw_sum)));
    };
    if (strongest.id < 0 || !(s.temperature > 0)) {
        finish(strongest.id,
               strongest.id >= 0 && a.logprob != nullptr ? logprob_of(strongest.id) : 0.0f);
        cluster.sync();
        return;
    }

    const double temperature = s.temperature;
    const double top = strongest.value / temperature;
    const auto weight_of = [&](float x) -> unsigned long long {
        return __double2ull_rn(exp(static_cast<double>(x) / temperature - top) * kUnit);
    };
    const bool limits = s.top_k > 0 && s.top_k < a.V;
    const bool nucleus = s.top_p < 1;
    Cut cut{0, 0x7FFFFFFF};
    cut.key = ordered(-3.4028234663852886e38f);  // all finite logits
    bool compact = false;
    if (limits || nucleus) {
        // A key below which nothing can be kept, from a histogram over the upper bits of the key:
        // of ids for top_k, else of probability in units of 2^-11 of the largest, rounded down.
        uint32_t least = cut.key;
        unsigned long long total = 0;
        for (int i = tid; i < kBins; i += kThreads) {
            sm.bins[i] = 0;
        }
        cluster.sync();
        for (int64_t i = tid; i < slice.n; i += kThreads) {
            const float x = l[i];
            unsigned add = limits && x > -__builtin_huge_valf() ? 1 : 0;
            if (!limits) {
                const unsigned long long w = weight_of(x);
                total += w;
                add = static_cast<unsigned>(w >> 32);
            }
            if (add > 0) {
                atomicAdd(&sm.bins[ordered(x) >> 21], add);
            }
        }
        if (!limits) {
            total = cluster_fold(cluster, sm.places, total, AddU64(), turn, cluster_turn);
        }
        cluster.sync();
        if (rank != 0) {
            unsigned* first = cluster.map_shared_rank(sm.bins, 0);
            for (int i = tid; i < kBins; i += kThreads) {
                if (sm.bins[i] != 0) {
                    atomicAdd(&first[i], sm.bins[i]);
                }
            }
        }
        cluster.sync();
        if (rank == 0 && tid < 32) {
            const double mass = static_cast<double>(s.top_p) * static_cast<double>(total) * 0x1p-32;
            const int bin = bin_reaching(
                sm.bins, limits ? static_cast<unsigned long long>(s.top_k) : __double2ull_ru(mass));
            if (tid == 0) {
                sm.chosen_bin = bin;
            }
        }
        cluster.sync();
        const uint32_t edge = static_cast<uint32_t>(*cluster.map_shared_rank(&sm.chosen_bin, 0))
                              << 21;
        least = edge > least ? edge : least;
        if (!limits) {
            // Ids that weigh less than an even share of the excluded mass cannot be kept either;
            // the margin covers the rounding of exp and log.
            const double share = (1 - static_cast<double>(s.top_p)) *
                                 (static_cast<double>(total) / kUnit) / static_cast<double>(a.V);
            const double x = (top + log(share) - 1e-6) * temperature;
            if (share > 0 && x > -3e38) {
                const uint32_t key = ordered(__double2float_rd(x));
                least = key > least ? key : least;
            }
        }
        // Gather what may be kept in block 0.
        cluster.sync();
        unsigned* counter = cluster.map_shared_rank(&sm.gathered, 0);
        uint32_t* to_key = cluster.map_shared_rank(list_key, 0);
        int* to_id = cluster.map_shared_rank(list_id, 0);
        for (int64_t i = tid; i < slice.n; i += kThreads) {
            const uint32_t key = ordered(l[i]);
            if (key >= least && l[i] > -__builtin_huge_valf()) {
                const unsigned at = atomicAdd(counter, 1u);
                if (at < static_cast<unsigned>(a.gathered)) {
                    to_key[at] = key;
                    to_id[at] = static_cast<int>(slice.first + i);
                }
            }
        }
        cluster.sync();
        const unsigned gathered = *counter;
        compact = gathered <= static_cast<unsigned>(a.gathered);
        // Block 0 alone, or all blocks over their slices.
        if (compact && rank == 0) {
            for (unsigned i = tid; i < gathered; i += kThreads) {
                list_weight[i] = weight_of(unordered(list_key[i]));
            }
            __syncthreads();
        }
        const auto sum_of = [&](const auto& measure) -> unsigned long long {
            unsigned long long sum = 0;
            if (compact) {
                for (unsigned i = tid; i < gathered; i += kThreads) {
                    sum += measure(list_key[i], list_id[i], [&] { return list_weight[i]; });
                }
                return block_fold(sm.places, sum, AddU64(), turn);
            }
            for (int64_t i = tid; i < slice.n; i += kThreads) {
                if (l[i] > -__builtin_huge_valf()) {
                    sum += measure(ordered(l[i]), static_cast<int>(slice.first + i),
                                   [&] { return weight_of(l[i]); });
                }
            }
            return cluster_fold(cluster, sm.places, sum, AddU64(), turn, cluster_turn);
        };
        if (!compact || rank == 0) {
            // The largest key whose ids and those above measure at least `enough`.
            const auto threshold = [&](const auto& measure, const auto& enough) {
                uint32_t key = 0;
                for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
                    const uint32_t trial = key | bit;
                    const unsigned long long sum =
                        sum_of([&](uint32_t k, int i, const auto& w) -> unsigned long long {
                            return k >= trial ? measure(k, i, w) : 0;
                        });
                    key = enough(sum) ? trial : key;
                }
                return key;
            };
            // Keeps `n` of the ids at `key`, lowest first.
            const auto keep_ties = [&](uint32_t key, unsigned long long n) {
                const unsigned long long ties = sum_of(
                    [&](uint32_t k, int, const auto&) -> unsigned long long { return k == key; });
                if (n >= ties) {
                    return 0x7FFFFFFF;
                }
                int id = 0;  // largest id with fewer than n ties below it
                for (int bit = 1 << 20; bit > 0; bit >>= 1) {
                    const int trial = id | bit;
                    const unsigned long long below =
                        sum_of([&](uint32_t k, int i, const auto&) -> unsigned long long {
                            return k == key && i < trial;
                        });
                    id = below < n ? trial : id;
                }
                return id;
            };
            if (limits) {
                const auto one = [](uint32_t, int, const auto&) -> unsigned long long { return 1; };
                const auto k = static_cast<unsigned long long>(s.top_k);
                const uint32_t key = threshold(one, [&](unsigned long long n) { return n >= k; });
                if (key > cut.key) {  // else fewer than k ids are left
                    const unsigned long long above =
                        sum_of([&](uint32_t x, int, const auto&) -> unsigned long long {
                            return x > key;
                        });
                    cut = {key, keep_ties(key, k - above)};
                }
                if (nucleus) {
                    total = sum_of([&](uint32_t x, int i, const auto& w) -> unsigned long long {
                        return cut.keeps(x, i) ? w() : 0;
                    });
                }
            }
            if (nucleus) {
                const double target = static_cast<double>(s.top_p) * static_cast<double>(total);
                const Cut before = cut;
                const auto mass = [&](uint32_t x, int i, const auto& w) -> unsigned long long {
                    return before.keeps(x, i) ? w() : 0;
                };
                const uint32_t key = threshold(mass, [&](unsigned long long sum) {
                    return static_cast<double>(sum) >= target;
                });
                if (key > before.key || (key == before.key && limits)) {
                    const unsigned long long above =
                        sum_of([&](uint32_t x, int i, const auto& w) -> unsigned long long {
                            return x > key && before.keeps(x, i) ? w() : 0;
                        });
                    const unsigned long long w = weight_of(unordered(key));
                    const double missing = target - static_cast<double>(above);
                    unsigned long long n = 1;
                    if (w > 0 && missing > static_cast<double>(w)) {
                        n = __double2ull_ru(missing / static_cast<double>(w));
                    }
                    const int id = keep_ties(key, n);
                    cut = {key, key == before.key && before.id < id ? before.id : id};
                }
            }
        }
    }

    // The draw.
    if (compact && rank != 0) {
        cluster.sync();
        return;
    }
    if (tid == 0) {
        sm.start = {top + gumbel_of(noise_of(s.seed, s.pos, strongest.id)), strongest.id};
    }
    __syncthreads();
    Ranked best = sm.start;
    const double least =
        s.min_p > 0 ? top + log(static_cast<double>(s.min_p)) - 1e-6 : -1.7976931348623157e308;
    const auto offer = [&](int id, double x, uint32_t word) {
        if (x + gumbel_bound_of(word) < best.value) {
            return;
        }
        if (s.min_p > 0 && id != strongest.id && exp(x - top) < static_cast<double>(s.min_p)) {
            return;
        }
        best = better_of(best, {x + gumbel_of(word), id});
    };
    if (compact) {
        const unsigned gathered = sm.gathered;
        for (unsigned i = tid; i < gathered; i += kThreads) {
            if (cut.keeps(list_key[i], list_id[i])) {
                // -0 and +0 have one key; their noise sums agree.
                const double x = static_cast<double>(unordered(list_key[i])) / temperature;
                if (x >= least && x + kMostNoise >= best.value) {
                    offer(list_id[i], x, noise_of(s.seed, s.pos, list_id[i]));
                }
            }
        }
        best = block_fold(sm.places, best, Best(), turn);
    } else {
        for (int64_t i = tid * 4; i < slice.n; i += kThreads * 4) {
            Philox4 words{};
            bool drawn = false;
            for (int j = 0; j < 4 && i + j < slice.n; ++j) {
                const float logit = l[i + j];
                const int id = static_cast<int>(slice.first + i + j);
                const double x = static_cast<double>(logit) / temperature;
                if (logit > -__builtin_huge_valf() && x >= least && x + kMostNoise >= best.value &&
                    cut.keeps(ordered(logit), id)) {
                    if (!drawn) {
                        words = noise_block(s.seed, s.pos, static_cast<uint32_t>(id) >> 2);
                        drawn = true;
                    }
                    offer(id, x,
                          j == 0   ? words.word[0]
                          : j == 1 ? words.word[1]
                          : j == 2 ? words.word[2]
                                   : words.word[3]);
                }
            }
        }
        best = cluster_fold(cluster, sm.places, best, Best(), turn, cluster_turn);
    }
    finish(best.id, a.logprob != nullptr && rank == 0 && tid == 0 ? logprob_of(best.id) : 0.0f);
    cluster.sync();
}

}  // namespace tenon::cuda::sample
