// SPDX-License-Identifier: MIT
// A latent for each pair of positions, and the raw ring that carries an open pair to the next call.
#pragma once

#include "common/rows.cuh"

namespace tenon::cuda {

constexpr int32_t kStoredRows = 32;

struct PoolArgs {
    const float* a;
    const float* s;
    const RowInfo* rows;
    const SegInfo* segs;
    int64_t T, S, D, slots;
    float* raw;
    uint16_t* out;

    __device__ float* raw_pair(int64_t slot, int64_t pos) const {
        return raw + (slot * kRawPositions + pos % kRawPositions) * 2 * D;
    }
};

__device__ inline uint16_t pool_value(float a0, float s0, float a1, float s1) {
    const float top = fmaxf(s0, s1);
    const float e0 = expf(s0 - top);
    const float e1 = expf(s1 - top);
    const float sum = e0 + e1;
    return to_bf16(a0 * (e0 / sum) + a1 * (e1 / sum));
}

// One block a row.
__device__ inline void pool_row(const PoolArgs& p, int64_t t, unsigned long long* faults) {
    uint16_t* out = p.out + t * p.D;
    const RowInfo row = p.rows[t];
    const bool live = row.slot >= 0 && row.pos % 2 != 0;
    const SegInfo* seg = live ? segment_of(p.segs, p.S, row, t) : nullptr;
    const float* a0 = nullptr;
    const float* s0 = nullptr;
    if (seg != nullptr && t > seg->row0) {
        a0 = p.a + (t - 1) * p.D;
        s0 = p.s + (t - 1) * p.D;
    } else if (seg != nullptr && row.slot < p.slots) {
        a0 = p.raw_pair(row.slot, row.pos - 1);
        s0 = a0 + p.D;
    } else if (live && threadIdx.x == 0) {
        fault(faults);
    }
    for (int64_t i = threadIdx.x; i < p.D; i += blockDim.x) {
        out[i] = a0 == nullptr ? uint16_t{0}
                               : pool_value(a0[i], s0[i], p.a[t * p.D + i], p.s[t * p.D + i]);
    }
}

// Block j of a segment stores its row rows - kStoredRows + j.
__device__ inline void store_raw(const PoolArgs& p, const SegInfo& seg, int32_t back) {
    const int32_t j = seg.rows - 1 - back;
    if (j < 0) {
        return;
    }
    float* dst = p.raw_pair(seg.slot, int64_t{seg.pos0} + j);
    const int64_t from = (int64_t{seg.row0} + j) * p.D;
    for (int64_t i = threadIdx.x; i < p.D; i += blockDim.x) {
        dst[i] = p.a[from + i];
        dst[p.D + i] = p.s[from + i];
    }
}

[[maybe_unused]] static __global__ void pool_kernel(PoolArgs p, unsigned long long* faults) {
    pool_row(p, blockIdx.x, faults);
}

// blockIdx.x: rows back from the segment's end; blockIdx.y: segment.
[[maybe_unused]] static __global__ void store_raw_kernel(PoolArgs p, unsigned long long* faults) {
    const SegInfo seg = p.segs[blockIdx.y];
    const Usable usable = segment_usable(seg, p.T, p.slots);
    if (usable == Usable::yes) {
        store_raw(p, seg, static_cast<int32_t>(blockIdx.x));
    } else if (usable == Usable::bad && blockIdx.x == 0 && threadIdx.x == 0) {
        fault(faults);
    }
}

}  // namespace tenon::cuda
