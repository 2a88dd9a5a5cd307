// SPDX-License-Identifier: MIT
// draft.rows and draft.confidence.
#pragma once

#include "common/device.cuh"
#include "tenon/ops/draft.h"

namespace tenon::cuda::draft {

struct RowsArgs {
    const VerifyDecision* decision;
    const SegInfo* window;
    const int* slot;
    int S, B, noise_id;
    int* ids;
    RowInfo* row;
    SegInfo* seg;
};

// One thread a row.
__global__ void rows_kernel(const RowsArgs a) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= a.S * a.B) {
        return;
    }
    const int s = t / a.B;
    const int i = t % a.B;
    const SegInfo window = a.window[s];
    const VerifyDecision& d = a.decision[s];
    const bool live = a.slot[s] >= 0 && window.slot >= 0 && d.emitted > 0 &&
                      d.finish == static_cast<int>(VerifyFinish::none);
    const int pos0 = window.pos0 + d.emitted;
    RowInfo row;
    if (live) {
        row.pos = pos0 + i;
        row.slot = window.slot;
        row.seg = s;
    }
    a.row[t] = row;
    a.ids[t] = !live ? -1 : i == 0 ? d.last : a.noise_id;
    if (i == 0) {
        SegInfo seg;
        if (live) {
            seg.slot = window.slot;
            seg.rows = a.B;
            seg.pos0 = pos0;
            seg.win_lo[0] = window.win_lo[0];
            seg.win_lo[1] = window.win_lo[1];
        }
        seg.row0 = s * a.B;
        seg.out0 = seg.row0;
        a.seg[s] = seg;
    }
}

struct ConfidenceArgs {
    const uint16_t* c;  // [S, B, d]
    const int* prev;
    int64_t prev_stride;
    const void* embed;
    const void* proj;
    bool embed_bf16, proj_bf16;
    int64_t embed_rows;
    int B, d, r;
    float* out;
};

// One block a draft; each thread sums its columns in order, then the block in a fixed order.
__global__ void __launch_bounds__(256) confidence_kernel(const ConfidenceArgs a) {
    __shared__ float sums[8];
    const int i = blockIdx.x;
    const int prev = a.prev[i / a.B * a.prev_stride + i % a.B];
    const auto weight = [&](int j) {
        return a.proj_bf16 ? to_f32(static_cast<const uint16_t*>(a.proj)[j])
                           : static_cast<const float*>(a.proj)[j];
    };
    float sum = 0;
    const bool live = prev >= 0 && prev < a.embed_rows;
    if (live) {
        for (int j = threadIdx.x; j < a.d; j += 256) {
            sum = __fmaf_rn(to_f32(a.c[int64_t{i} * a.d + j]), weight(j), sum);
        }
        for (int j = threadIdx.x; j < a.r; j += 256) {
            const int64_t at = int64_t{prev} * a.r + j;
            const float e = a.embed_bf16 ? to_f32(static_cast<const uint16_t*>(a.embed)[at])
                                         : static_cast<const float*>(a.embed)[at];
            sum = __fmaf_rn(e, weight(a.d + j), sum);
        }
    }
    sum = block_sum<float, 8>(sum, sums);
    if (threadIdx.x == 0) {
        a.out[i] = live ? sum : 0.0f;
    }
}

}  // namespace tenon::cuda::draft
