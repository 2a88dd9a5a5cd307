// SPDX-License-Identifier: MIT
// attn.qkv_prep: norm of the query's low-rank row; norm, turn, quantisation and ring store of the
// key-value row. The sums, roundings and orders are those of norm.rms, rope.turn, kvq and
// window.store, so the outputs have the parts' bits.
#pragma once

#include "common/dependent.cuh"
#include "common/rows.cuh"
#include "kvq/quantise.cuh"
#include "norm/rms.cuh"
#include "rope/rope.cuh"

namespace tenon::cuda {

constexpr int kPrepWidth = 1024;  // largest key-value row

struct QkvPrepArgs {
    const uint16_t* qa_raw;  ///< null: key-value rows alone
    int64_t qa_stride;
    const void* qa_weight;
    uint16_t* qa;
    int64_t r;
    const uint16_t* kv_raw;
    int64_t kv_stride;
    const void* kv_weight;
    uint16_t* kv;
    int64_t D;
    const float* cs;
    int64_t R;
    float eps;
    const RowInfo* rows;
    const SegInfo* segs;
    int64_t T, S;
    RingRef ring;  ///< null codes: no store
    bool qa_weight_bf16, kv_weight_bf16;
};

__device__ inline float prep_weight(const void* weight, bool bf16, int64_t i) {
    return bf16 ? to_f32(static_cast<const uint16_t*>(weight)[i])
                : static_cast<const float*>(weight)[i];
}

/// Sum of squares of eight values, as rms_kernel adds them.
__device__ inline double prep_square(const float (&v)[8]) {
    float square = 0;
#pragma unroll
    for (float e : v) {
        square = fmaf(e, e, square);
    }
    return static_cast<double>(square);
}

/// The norm's factor of a row of n values (n % 8 = 0), as rms_kernel computes it.
__device__ inline float prep_factor(const uint16_t* x, int64_t n, float eps, double* partial) {
    double sum = 0;
    for (int64_t i = threadIdx.x * 8; i < n; i += kNormThreads * 8) {
        float v[8];
        load8(x + i, v);
        sum += prep_square(v);
    }
    return norm_factor(block_sum<double, kNormThreads / 32>(sum, partial), n, eps);
}

__device__ inline void prep_weights(const void* weight, bool bf16, int64_t i, float (&w)[8]) {
    bf16 ? load8(static_cast<const uint16_t*>(weight) + i, w)
         : load8(static_cast<const float*>(weight) + i, w);
}

/// Norm of a query row. A thread's first eight columns stay in registers, and their weights, which
/// come from memory, are asked for before the work in front has ended.
__device__ inline void prep_query(const QkvPrepArgs& a, int64_t t, double* partial) {
    constexpr int64_t kStep = kNormThreads * 8;
    const uint16_t* x = a.qa_raw + t * a.qa_stride;
    uint16_t* out = a.qa + t * a.r;
    const int64_t first = threadIdx.x * 8;
    float w[8];
    if (first < a.r) {
        prep_weights(a.qa_weight, a.qa_weight_bf16, first, w);
    }
    wait_for_previous();
    float held[8] = {};
    double sum = 0;
    if (first < a.r) {
        load8(x + first, held);
        sum = prep_square(held);
    }
    for (int64_t i = first + kStep; i < a.r; i += kStep) {
        float v[8];
        load8(x + i, v);
        sum += prep_square(v);
    }
    const float factor =
        norm_factor(block_sum<double, kNormThreads / 32>(sum, partial), a.r, a.eps);
    for (int64_t i = first; i < a.r; i += kStep) {
        if (i != first) {
            load8(x + i, held);
            prep_weights(a.qa_weight, a.qa_weight_bf16, i, w);
        }
        float v[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            v[e] = w[e] * (held[e] * factor);
        }
        store8(out + i, v);
    }
}

/// Where row t goes in the ring; null codes: nowhere. One thread asks.
__device__ inline StoredRow prep_place(const QkvPrepArgs& a, int64_t t,
                                       unsigned long long* faults) {
    const RowInfo row = a.rows[t];
    if (a.ring.codes == nullptr || row.slot < 0) {
        return {nullptr, nullptr};
    }
    const SegInfo* seg = segment_of(a.segs, a.S, row, t);
    if (seg == nullptr || row.slot >= a.ring.slots || row.pos < 0) {
        fault(faults);
        return {nullptr, nullptr};
    }
    const bool stays = t - seg->row0 >= seg->rows - a.ring.R;
    return stays ? a.ring.row(row.slot, row.pos) : StoredRow{nullptr, nullptr};
}

/// Two columns of a row and what they are multiplied and turned by.
struct PrepPair {
    uint32_t raw;
    float low, high;  ///< norm weights
    float c, s;
};

// blockIdx.x: row; blockIdx.y: 0 key-value row, 1 query row.
[[maybe_unused]] static __global__ void __launch_bounds__(kNormThreads)
    qkv_prep_kernel(QkvPrepArgs a, unsigned long long* faults) {
    __shared__ double partial[kNormThreads / 32];
    __shared__ __align__(16) uint16_t row[kPrepWidth];
    __shared__ StoredRow place;
    const int64_t t = blockIdx.x;
    let_next_start();
    if (blockIdx.y == 1) {
        prep_query(a, t, partial);
        return;
    }
    // The weights are asked for before the work in front has ended, everything else before the sum
    // of squares is waited for, the row's place by a thread that has no columns.
    constexpr int kPairs = kPrepWidth / (2 * kNormThreads);
    const uint16_t* x = a.kv_raw + t * a.kv_stride;
    PrepPair pairs[kPairs];
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
        const int64_t i = (threadIdx.x + k * kNormThreads) * 2;
        if (i < a.D) {
            pairs[k].low = prep_weight(a.kv_weight, a.kv_weight_bf16, i);
            pairs[k].high = prep_weight(a.kv_weight, a.kv_weight_bf16, i + 1);
        }
    }
    wait_for_previous();
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
        const int64_t i = (threadIdx.x + k * kNormThreads) * 2;
        if (i < a.D) {
            PrepPair& p = pairs[k];
            p.raw = *reinterpret_cast<const uint32_t*>(x + i);
            if (i >= a.D - a.R) {
                const int64_t turned = (i - (a.D - a.R)) / 2;
                p.c = a.cs[t * a.R + turned];
                p.s = a.cs[t * a.R + a.R / 2 + turned];
            }
        }
    }
    if (threadIdx.x == kNormThreads - 1) {
        place = prep_place(a, t, faults);
    }
    const float factor = prep_factor(x, a.D, a.eps, partial);
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
        const int64_t i = (threadIdx.x + k * kNormThreads) * 2;
        if (i < a.D) {
            const PrepPair& p = pairs[k];
            const uint32_t pair =
                to_bf16x2(p.low * (low_f32(p.raw) * factor), p.high * (high_f32(p.raw) * factor));
            *reinterpret_cast<uint32_t*>(row + i) =
                i >= a.D - a.R ? turn_pair(pair, p.c, p.s) : pair;
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x * 4; i < a.D; i += kNormThreads * 4) {
        const Quantised4 q = quantise4<RowFormat::q8>(*reinterpret_cast<const uint2*>(row + i));
        *reinterpret_cast<uint2*>(a.kv + t * a.D + i) = q.values;
        if (place.codes == nullptr) {
            continue;
        }
        if (a.ring.format == RowFormat::bf16) {
            *reinterpret_cast<uint2*>(place.codes + 2 * i) = q.values;
        } else {
            // Codes of the quantised values, as window.store makes them: their amax may have fallen
            // below a power of two, which changes scale and codes but no value.
            store_packed<RowFormat::q8>(quantise4<RowFormat::q8>(q.values), i, place.codes,
                                        place.scales);
        }
    }
}

}  // namespace tenon::cuda
