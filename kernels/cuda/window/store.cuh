// SPDX-License-Identifier: MIT
// The newest rows of each segment into its slot's ring.
#pragma once

#include "common/rows.cuh"
#include "kvq/quantise.cuh"

namespace tenon::cuda {

// blockIdx.y: segment; blocks of x stride over the rows that stay. At most R rows of a segment are
// written, at R different places, so no two blocks meet.
__global__ void window_store_kernel(const uint16_t* kv, const SegInfo* segs, int64_t T,
                                    RingRef ring, unsigned long long* faults) {
    const SegInfo seg = segs[blockIdx.y];
    const Usable usable = segment_usable(seg, T, ring.slots);
    if (usable != Usable::yes) {
        if (usable == Usable::bad && blockIdx.x == 0 && threadIdx.x == 0) {
            fault(faults);
        }
        return;
    }
    const int64_t first = max(0, seg.rows - ring.R);
    for (int64_t j = first + blockIdx.x; j < seg.rows; j += gridDim.x) {
        const StoredRow dst = ring.row(seg.slot, seg.pos0 + j);
        store_row<RowFormat::q8>(kv + (seg.row0 + j) * ring.width, ring.width,
                                 ring.format == RowFormat::bf16, dst.codes, dst.scales);
    }
}

}  // namespace tenon::cuda
