// SPDX-License-Identifier: MIT
// What stands before the scores: batches of rows that share keys, and queries as the tensor-core
// kernels want them.
#pragma once

#include "index/keys.cuh"

#include <cuda_bf16.h>

namespace tenon::cuda::index {

constexpr int kWidth = 128;
constexpr int kGroups = 4;
constexpr int kTile = 32;         // keys of a warp's step
constexpr int kStep = 4 * kTile;  // keys of a warpgroup's step
constexpr int kKeyOctaves = 2;   // scales of a key that int8 holds: the largest and this many below
constexpr int kHeadOctaves = 3;  // of a head
constexpr int kFp8Octaves = 14;  // scales of a head that E4M3 bytes hold below the largest

/// Rows of the int8 kernel that need sums of single groups: E4M3 bytes hold their heads, or not.
constexpr int kFp8Row = 1;
constexpr int kWideRow = 2;

/// Rows of one segment that share the unpacking of their keys, and the tiles of keys (FP8) or steps
/// (int8) that they need.
struct alignas(16) Batch {
    int row0, rows, slot, tiles;
    int most;  // visible rows of the last row
};

/// What the set-up leaves in scratch; Hp is the head count rounded up to 32 or 64.
struct Prepared {
    uint8_t* q;         // [T][Hp * 128] bytes of the queries, in the order of the kernel
    float* weight;      // FP8: [T][Hp] w * w_scale * 2^(6 + exponent of the head)
    int4* pair;         // int8: [T][Hp / 2] weights of two heads, -64 times the sums of their bytes
    float* factor;      // int8: [T][Hp][4] scale of a group over the head's, of wide rows
    float* row_factor;  // int8: [T]
    int* wide;          // [T] FP8: whether bytes do not hold it; int8: 0, kFp8Row or kWideRow
    Batch* batch;       // [T]
    int* first_tile;    // [T + 1] tiles before each batch
    int* batches;       // [1]
    unsigned* hist;     // [T][kBins], with a selection
    unsigned* state;    // [T][4] counters of a selection
};

struct ScoreArgs {
    const __nv_bfloat16* iq;
    const __nv_bfloat16* w;
    float w_scale;
    Keys keys;
    const Row* row;
    const Segment* seg;
    int T, S, Hi, Di;
    const int* cand;  // [T, C] or null
    int C, block;
    float* out;
    int64_t stride, N;
    Prepared prepared;
    int share;             // rows of a batch at most; follows from the device
    int64_t skip_visible;  // rows with at most that many visible rows need no scores; -1: all do
    int64_t hist_visible;  // rows with more visible rows are counted in hist; -1: none
    unsigned long long* faults;
};

__device__ inline bool row_live(const ScoreArgs& a, int t) {
    const Row row = a.row[t];
    return row.slot >= 0 && row.slot < a.keys.table_slots;
}
/// Columns of row t that hold scores.
__device__ inline int64_t scored_columns(const ScoreArgs& a, int t) {
    if (!row_live(a, t)) {
        return 0;
    }
    const int64_t visible = visible_rows(a.row[t].pos, a.keys.ratio);
    if (a.cand != nullptr) {
        const bool all =
            a.skip_visible >= 0 && visible <= a.skip_visible && visible <= int64_t{a.C} * a.block;
        return all ? 0 : a.N;
    }
    return visible <= a.skip_visible ? 0 : (visible < a.N ? visible : a.N);
}

__device__ inline float e8m0(uint32_t code) {
    return __uint_as_float(code << 23);
}

/// E8M0 code of a group of q4u values: 2^ceil(log2(amax / 6)), which represents all of them.
__device__ inline uint32_t group_code(float amax) {
    const float least = 6.0f * 0x1p-126f;
    const float x = fmaxf(amax, least) * static_cast<float>(1.0 / 6.0);
    const uint32_t u = __float_as_uint(x);
    return (u >> 23) + ((u & 0x7FFFFFu) != 0 ? 1u : 0u);
}

/// E4M3 byte of an f32 that E4M3 holds exactly.
__device__ inline uint32_t e4m3_exact(float x) {
    const uint32_t sign = __float_as_uint(x) >> 24 & 0x80u;
    const float a = fabsf(x);
    if (a < 0x1p-6f) {
        return sign | static_cast<uint32_t>(a * 0x1p9f);
    }
    return sign | ((__float_as_uint(a) >> 20) - (120u << 3));
}

/// The batches of all rows, their keys counted in pieces of `piece`; one block of 256 threads.
__device__ inline void list_batches(const ScoreArgs& a, int piece) {
    __shared__ int running[2];
    __shared__ int counts[2][8];
    const Prepared& p = a.prepared;
    // The batches, in row order: a live row starts one at every a.share-th row of its
    // segment.
    if (threadIdx.x < 2) {
        running[threadIdx.x] = 0;
    }
    __syncthreads();
    const int share = a.cand != nullptr ? 1 : a.share;
    for (int base = 0; base < a.T; base += 256) {
        const int row = base + threadIdx.x;
        Batch b{row, 0, -1, 0, 0};
        if (row < a.T && row_live(a, row)) {
            const Row info = a.row[row];
            Segment s{};
            bool good = info.seg >= 0 && info.seg < a.S;
            if (good) {
                s = a.seg[info.seg];
                good = s.slot == info.slot && row >= s.row0 && row < s.row0 + s.rows;
            }
            // Rows without a sound segment stand alone: scores need position and slot only.
            const int place = good ? row - s.row0 : 0;
            if (place % share == 0) {
                b.rows = good ? min(min(share, s.rows - place), a.T - row) : 1;
                b.slot = info.slot;
                b.most = visible_rows(a.row[row + b.rows - 1].pos, a.keys.ratio);
                int64_t columns = 0;
                for (int i = 0; i < b.rows; ++i) {
                    const int64_t n = scored_columns(a, row + i);
                    columns = n > columns ? n : columns;
                }
                b.tiles = static_cast<int>((columns + piece - 1) / piece);
            }
        }
        const bool starts = b.tiles > 0;
        const unsigned ballot = __ballot_sync(~0u, starts);
        const int lane = threadIdx.x % 32;
        const int warp = threadIdx.x / 32;
        int sum = b.tiles;
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(~0u, sum, step);
            sum += lane >= step ? other : 0;
        }
        if (lane == 31) {
            counts[0][warp] = __popc(ballot);
            counts[1][warp] = sum;
        }
        __syncthreads();
        int index = running[0];
        int tile = running[1];
        for (int w = 0; w < warp; ++w) {
            index += counts[0][w];
            tile += counts[1][w];
        }
        if (starts) {
            index += __popc(ballot & ((1u << lane) - 1));
            p.batch[index] = b;
            p.first_tile[index] = tile + sum - b.tiles;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int w = 0; w < 8; ++w) {
                running[0] += counts[0][w];
                running[1] += counts[1][w];
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        *p.batches = running[0];
        p.first_tile[running[0]] = running[1];
    }
}

/// One group of a head as bf16, and the E8M0 codes of the row's groups.
struct QueryGroup {
    uint4 raw[4];
    __device__ float operator[](int column) const {
        const uint4& v = raw[column / 8];
        const uint32_t w = column % 8 < 2 ? v.x : column % 8 < 4 ? v.y : column % 8 < 6 ? v.z : v.w;
        return __uint_as_float(column % 2 == 0 ? w << 16 : w & 0xFFFF0000u);
    }
};

/// E4M3 fragments and weights of a row: [group][8 heads][k half][head][16 k], even columns in the
/// first half. Thread i has group i % 4 of head i / 4.
__device__ inline void prepare_e4m3(const ScoreArgs& a, int t, int Hp, const QueryGroup& mine,
                                    const int* codes) {
    __shared__ int exponent[64];
    __shared__ int wide;
    const Prepared& p = a.prepared;
    const int h = threadIdx.x / kGroups;
    const int g = threadIdx.x % kGroups;
    if (threadIdx.x == 0) {
        wide = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < Hp; i += 256) {
        int most = -1;
        int least = 1000;
        for (int k = 0; k < kGroups; ++k) {
            const int code = codes[i * kGroups + k];
            most = max(most, code);
            least = code < 0 ? least : min(least, code);
        }
        exponent[i] = most < 0 ? 127 : max(most - 6, 0);
        if (most >= 0 && most - least > kFp8Octaves) {
            wide = 1;
        }
    }
    __syncthreads();
    if (h < Hp) {
        uint32_t bytes[2][4] = {};
        if (codes[threadIdx.x] >= 0 && wide == 0) {
            const float scale = __uint_as_float(static_cast<uint32_t>(254 - exponent[h]) << 23);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    bytes[0][k] |= e4m3_exact(mine[8 * k + 2 * j] * scale) << (8 * j);
                    bytes[1][k] |= e4m3_exact(mine[8 * k + 2 * j + 1] * scale) << (8 * j);
                }
            }
        }
        // Head h stands at column 2 c + h % 2 of n tile nt: lane c of a quad owns a run of heads.
        const int run = Hp / 4;
        const int nt = h % run / 2;
        const int n = h / run * 2 + h % 2;
        uint8_t* to = p.q + int64_t{t} * Hp * kWidth + g * Hp * 32 + nt * 256 + n * 16;
        *reinterpret_cast<uint4*>(to) =
            make_uint4(bytes[0][0], bytes[0][1], bytes[0][2], bytes[0][3]);
        *reinterpret_cast<uint4*>(to + 128) =
            make_uint4(bytes[1][0], bytes[1][1], bytes[1][2], bytes[1][3]);
    }
    for (int i = threadIdx.x; i < Hp; i += 256) {
        float w = 0;
        if (i < a.Hi) {
            w = __bfloat162float(a.w[int64_t{t} * a.Hi + i]) * a.w_scale;
            if (wide == 0) {
                w = ldexpf(w, 6 + exponent[i] - 127);
            }
        }
        p.weight[int64_t{t} * Hp + i] = w;
    }
    if (threadIdx.x == 0) {
        p.wide[t] = wide;
    }
}

/// Int8 bytes and weights of a row: [k step][8 heads][k half][head][16 k], where columns
/// 32 c + 8 s + 4 f + j stand in step s, half f, byte 4 c + j (score_pages.cuh).
__device__ inline void prepare_int8(const ScoreArgs& a, int t, int Hp, const QueryGroup& mine,
                                    const int* codes) {
    __shared__ int base[64];  // E8M0 code of one byte unit of a head, times 2
    __shared__ int sums[64];
    __shared__ int top;     // largest exponent of a weight with its head's unit
    __shared__ int spread;  // most octaves between the scales of a head
    constexpr int kNone = -100000;
    const Prepared& p = a.prepared;
    const int h = threadIdx.x / kGroups;
    const int g = threadIdx.x % kGroups;
    if (threadIdx.x == 0) {
        spread = 0;
        top = kNone;
    }
    __syncthreads();
    float fraction = 0;  // of thread h < Hp: its weight is fraction 2^power
    int power = kNone;
    if (threadIdx.x < Hp) {
        const int i = threadIdx.x;
        int most = -1;
        int least = 1000;
        for (int k = 0; k < kGroups; ++k) {
            const int code = codes[i * kGroups + k];
            most = max(most, code);
            least = code < 0 ? least : min(least, code);
        }
        base[i] = most - kHeadOctaves;
        sums[i] = 0;
        if (most >= 0) {
            atomicMax(&spread, most - least);
        }
        if (most >= 0 && i < a.Hi) {
            const float w = __bfloat162float(a.w[int64_t{t} * a.Hi + i]) * a.w_scale;
            if (w != 0) {
                fraction = frexpf(w, &power);
                power += base[i] - 128;
                atomicMax(&top, power);
            }
        }
    }
    __syncthreads();
    const int wide = spread <= kHeadOctaves ? 0 : spread <= kFp8Octaves ? kFp8Row : kWideRow;
    const int run = Hp / 4;
    if (wide == kFp8Row) {
        prepare_e4m3(a, t, Hp, mine, codes);
        __syncthreads();
        if (threadIdx.x < Hp) {
            const int i = threadIdx.x;
            auto* to =
                reinterpret_cast<float*>(p.pair + int64_t{t} * Hp / 2 + i % run / 2 * 4 + i / run);
            to[i % 2] = p.weight[int64_t{t} * Hp + i];
        }
        if (threadIdx.x == 0) {
            p.wide[t] = kFp8Row;
            p.row_factor[t] = 1.0f;
        }
        return;
    }
    if (h < Hp) {
        uint32_t bytes[2][4] = {};  // [half][step]
        int sum = 0;
        const int code = codes[threadIdx.x];
        if (code >= 0) {
            // A byte is the value over half of its unit.
            const int unit = wide == 0 ? base[h] : code;
            const float scale = ldexpf(1.0f, (128 - unit) / 2);  // in two steps, for tiny groups
            const float rest = ldexpf(1.0f, 128 - unit - (128 - unit) / 2);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int low = static_cast<int>(mine[8 * k + j] * scale * rest);
                    const int high = static_cast<int>(mine[8 * k + 4 + j] * scale * rest);
                    bytes[0][k] |= (static_cast<uint32_t>(low) & 255u) << (8 * j);
                    bytes[1][k] |= (static_cast<uint32_t>(high) & 255u) << (8 * j);
                    sum -= low + high;
                }
            }
        }
        atomicAdd(&sums[h], 64 * sum);
        p.factor[(int64_t{t} * Hp + h) * kGroups + g] =
            wide == 0 || code < 0 ? 1.0f : ldexpf(1.0f, code - base[h]);
        const int nt = h % run / 2;
        const int n = h / run * 2 + h % 2;
        uint8_t* to = p.q + int64_t{t} * Hp * kWidth + nt * 256 + n * 16 + g * 4;
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            *reinterpret_cast<uint32_t*>(to + s * Hp * 32) = bytes[0][s];
            *reinterpret_cast<uint32_t*>(to + s * Hp * 32 + 128) = bytes[1][s];
        }
    }
    __syncthreads();
    if (threadIdx.x < Hp) {
        const int i = threadIdx.x;
        // Largest weight just below 2^126; the sums are integers times 2^-149.
        const float w = fraction == 0 ? 0.0f : ldexpf(fraction, power - top + 126);
        auto* to = reinterpret_cast<int*>(p.pair + int64_t{t} * Hp / 2 + i % run / 2 * 4 + i / run);
        to[i % 2] = __float_as_int(w);
        to[2 + i % 2] = sums[i];
    }
    if (threadIdx.x == 0) {
        p.wide[t] = wide;
        // Times 2^149, the half unit of a key at 2^-kKeyOctaves of its largest scale, and top.
        p.row_factor[t] = top == kNone ? 1.0f : ldexpf(1.0f, top - 126 + 149 - kKeyOctaves - 1);
    }
}

// One block a row: queries and weights in the form of the kernel, -inf where no score will be
// written, zeroed counters. One block more lists the batches.
template <bool kInt8>
__global__ void __launch_bounds__(256)
    prepare_kernel(const __grid_constant__ ScoreArgs a, int Hp, bool fill) {
    start_when_ready();
    const int t = blockIdx.x;
    const Prepared& p = a.prepared;
    if (t == a.T) {
        if (blockIdx.y == 0) {
            list_batches(a, kInt8 ? kStep : kTile);
        }
        return;
    }
    if (fill) {
        float* out = a.out + t * a.stride;
        for (int64_t j = scored_columns(a, t) + blockIdx.y * 256 + threadIdx.x; j < a.N;
             j += int64_t{gridDim.y} * 256) {
            out[j] = kMinusInf;
        }
    }
    if (blockIdx.y > 0) {
        return;
    }
    __shared__ int codes[64 * kGroups];
    if (p.hist != nullptr) {
        for (int i = threadIdx.x; i < kBins; i += 256) {
            p.hist[int64_t{t} * kBins + i] = 0;
        }
        if (threadIdx.x < 4) {
            p.state[t * 4 + threadIdx.x] = 0;
        }
    }
    // One thread a group of a head (Hp * 4 is at most 256).
    const int h = threadIdx.x / kGroups;
    QueryGroup mine{};
    if (h < a.Hi) {
        const auto* q = reinterpret_cast<const uint4*>(a.iq + (int64_t{t} * a.Hi + h) * kWidth +
                                                       threadIdx.x % kGroups * 32);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            mine.raw[k] = q[k];
        }
    }
    float amax = 0;
#pragma unroll
    for (int k = 0; k < 32; ++k) {
        amax = fmaxf(amax, fabsf(mine[k]));
    }
    codes[threadIdx.x] = amax == 0 ? -1 : static_cast<int>(group_code(amax));
    __syncthreads();
    if constexpr (kInt8) {
        prepare_int8(a, t, Hp, mine, codes);
    } else {
        prepare_e4m3(a, t, Hp, mine, codes);
    }
}

}  // namespace tenon::cuda::index
