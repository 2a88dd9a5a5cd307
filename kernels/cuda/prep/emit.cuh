// SPDX-License-Identifier: MIT
// compress.emit and index.key_emit: (pool,) norm, turn, quantisation and page store of a row. The
// sums, roundings and orders are those of compress.pool, norm.rms, rope.turn and cache.store, so
// the outputs have the parts' bits.
#pragma once

#include "common/rows.cuh"
#include "compress/pool.cuh"
#include "kvq/quantise.cuh"
#include "norm/rms.cuh"
#include "prep/qkv.cuh"
#include "rope/rope.cuh"

namespace tenon::cuda {

struct EmitArgs {
    const uint16_t* x;  ///< [T, n]; null: pooled
    PoolArgs pool;      ///< without `out`; used if x is null
    const void* weight;
    bool weight_bf16;
    float eps;
    const float* cs;  ///< [T, R]
    int64_t n, R;
    const RowInfo* rows;
    uint16_t* normed;  ///< [T, n], may be x; null: not wanted
    PagesRef pages;
};

/// The pooled latent of row t into `out` (shared), and the raw values that a later call needs into
/// their ring. Position pos0 + 64 i + 63 has the place of pos0 - 1, which row 0 of the segment
/// reads: row 0's block writes it, after its read. So one launch serves segments of any length.
__device__ inline void emit_pool(const PoolArgs& p, int64_t t, uint16_t* out,
                                 unsigned long long* faults) {
    const RowInfo row = p.rows[t];
    const SegInfo* seg = row.slot >= 0 ? segment_of(p.segs, p.S, row, t) : nullptr;
    if (row.slot >= 0 && (seg == nullptr || row.slot >= p.slots || row.pos < 0)) {
        seg = nullptr;
        if (threadIdx.x == 0) {
            fault(faults);
        }
    }
    const float* a0 = nullptr;
    const float* s0 = nullptr;
    const int64_t j = seg != nullptr ? t - seg->row0 : 0;
    if (seg != nullptr && row.pos % 2 != 0) {
        a0 = j > 0 ? p.a + (t - 1) * p.D : p.raw_pair(row.slot, row.pos - 1);
        s0 = j > 0 ? p.s + (t - 1) * p.D : a0 + p.D;
    }
    for (int64_t i = threadIdx.x; i < p.D; i += blockDim.x) {
        out[i] = a0 == nullptr ? uint16_t{0}
                               : pool_value(a0[i], s0[i], p.a[t * p.D + i], p.s[t * p.D + i]);
    }
    if (seg == nullptr) {
        return;
    }
    const int64_t kept = seg->rows > kStoredRows ? seg->rows - kStoredRows : 0;
    const auto store = [&](int64_t k) {
        float* dst = p.raw_pair(seg->slot, int64_t{seg->pos0} + k);
        const int64_t from = (int64_t{seg->row0} + k) * p.D;
        for (int64_t i = threadIdx.x; i < p.D; i += blockDim.x) {
            dst[i] = p.a[from + i];
            dst[p.D + i] = p.s[from + i];
        }
    };
    if (j >= kept && j % kRawPositions != kRawPositions - 1) {
        store(j);
    }
    const int64_t shared = (seg->rows / kRawPositions) * kRawPositions - 1;  // the last of its kind
    if (j == 0 && shared >= kept && shared > 0) {
        __syncthreads();
        store(shared);
    }
}

// One block a row.
template <RowFormat kQuantiser>
__global__ void __launch_bounds__(kNormThreads)
    emit_kernel(EmitArgs a, unsigned long long* faults) {
    __shared__ double partial[kNormThreads / 32];
    __shared__ __align__(16) uint16_t row[kPrepWidth];
    const int64_t t = blockIdx.x;
    let_next_start();
    wait_for_previous();
    const uint16_t* x = a.x + t * a.n;
    if (a.x == nullptr) {
        emit_pool(a.pool, t, row, faults);
        __syncthreads();
        x = row;
    }
    const float factor = prep_factor(x, a.n, a.eps, partial);
    for (int64_t i = threadIdx.x * 2; i < a.n; i += kNormThreads * 2) {
        const uint32_t raw = *reinterpret_cast<const uint32_t*>(x + i);
        const uint32_t pair =
            to_bf16x2(prep_weight(a.weight, a.weight_bf16, i) * (low_f32(raw) * factor),
                      prep_weight(a.weight, a.weight_bf16, i + 1) * (high_f32(raw) * factor));
        if (a.normed != nullptr) {
            *reinterpret_cast<uint32_t*>(a.normed + t * a.n + i) = pair;
        }
        const int64_t turned = (i - (a.n - a.R)) / 2;
        *reinterpret_cast<uint32_t*>(row + i) =
            i < a.n - a.R
                ? pair
                : turn_pair(pair, a.cs[t * a.R + turned], a.cs[t * a.R + a.R / 2 + turned]);
    }
    const RowInfo info = a.rows[t];
    if (info.slot < 0 || (info.pos + 1) % a.pages.ratio != 0) {
        return;
    }
    const StoredRow dst = a.pages.row(info.slot, info.pos / a.pages.ratio);
    if (dst.codes == nullptr) {
        if (threadIdx.x == 0) {
            fault(faults);
        }
        return;
    }
    __syncthreads();
    store_row<kQuantiser>(row, a.n, a.pages.format == RowFormat::bf16, dst.codes, dst.scales);
}

}  // namespace tenon::cuda
