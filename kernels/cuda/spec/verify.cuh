// SPDX-License-Identifier: MIT
// How far each segment's drafts agree with what was drawn; one thread a segment, at most 16 rows.
#pragma once

#include "common/device.cuh"
#include "tenon/ops/spec.h"

namespace tenon::cuda {

struct VerifyArgs {
    const int32_t* drawn;
    int64_t M;
    const int32_t* ids;
    const RowInfo* rows;
    const SegInfo* segs;
    int64_t T, S;
    const VerifyLimits* limits;
    VerifyDecision* decision;
};

__device__ inline bool stops(const VerifyLimits& limits, int32_t token) {
    for (int32_t id : limits.stop_ids) {
        if (id >= 0 && id == token) {
            return true;
        }
    }
    return false;
}

/// The draw of row r of a segment; -1 if that row wanted no logits.
__device__ inline int32_t drawn_at(const VerifyArgs& a, const SegInfo& seg, int32_t r) {
    const RowInfo* rows = a.rows + seg.row0;
    int64_t at = seg.out0;
    for (int32_t i = 0; i < r; ++i) {
        at += (rows[i].flags & kRowLogits) != 0;
    }
    const bool has = (rows[r].flags & kRowLogits) != 0 && at >= 0 && at < a.M;
    return has ? a.drawn[at] : -1;
}

/// Emits a token; false: the segment ends here.
__device__ inline bool emit(VerifyDecision& d, const VerifyLimits& limits, int32_t token) {
    d.tokens[d.emitted++] = d.last = token;
    if (stops(limits, token)) {
        d.finish = static_cast<int32_t>(VerifyFinish::stop_id);
    } else if (d.emitted >= limits.accept_max) {
        d.finish = static_cast<int32_t>(VerifyFinish::accept_max);
    }
    return d.finish == 0;
}

__device__ inline void verify_segment(const VerifyArgs& a, const SegInfo& seg,
                                      const VerifyLimits& limits, VerifyDecision& d) {
    if (limits.accept_max <= 0) {
        d.finish = static_cast<int32_t>(VerifyFinish::accept_max);
        return;
    }
    const int32_t* ids = a.ids + seg.row0;
    int32_t r = 0;
    for (; r + 1 < seg.rows; ++r) {
        if (r >= limits.forced && ids[r + 1] != drawn_at(a, seg, r)) {
            break;
        }
        if (!emit(d, limits, ids[r + 1])) {
            d.accepted = d.emitted - 1;
            return;
        }
    }
    const int32_t token = drawn_at(a, seg, r);
    if (token < 0) {
        d.accepted = d.emitted;
        d.last = token;
        d.finish = static_cast<int32_t>(VerifyFinish::no_token);
        return;
    }
    emit(d, limits, token);
    d.accepted = d.emitted - 1;
}

__global__ void verify_kernel(VerifyArgs a, unsigned long long* faults) {
    const int64_t s = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
    if (s >= a.S) {
        return;
    }
    const SegInfo seg = a.segs[s];
    VerifyDecision& d = a.decision[s];
    d.accepted = d.emitted = d.finish = 0;
    d.last = -1;
    for (int32_t& token : d.tokens) {
        token = -1;
    }
    if (seg.slot < 0 || seg.rows <= 0 || seg.row0 < 0 || seg.rows > kVerifyTokens ||
        int64_t{seg.row0} + seg.rows > a.T) {
        if (seg.slot >= 0) {
            fault(faults);
        }
        return;
    }
    verify_segment(a, seg, a.limits[s], d);
}

}  // namespace tenon::cuda
