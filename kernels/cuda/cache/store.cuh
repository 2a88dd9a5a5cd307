// SPDX-License-Identifier: MIT
// Completed groups into their pages.
#pragma once

#include "common/rows.cuh"
#include "kvq/quantise.cuh"

namespace tenon::cuda {

// One block a row.
template <RowFormat kQuantiser>
__global__ void cache_store_kernel(const uint16_t* x, const RowInfo* rows, PagesRef pages,
                                   unsigned long long* faults) {
    const int64_t t = blockIdx.x;
    const RowInfo row = rows[t];
    if (row.slot < 0 || (row.pos + 1) % pages.ratio != 0) {
        return;
    }
    const StoredRow dst = pages.row(row.slot, row.pos / pages.ratio);
    if (dst.codes == nullptr) {
        if (threadIdx.x == 0) {
            fault(faults);
        }
        return;
    }
    store_row<kQuantiser>(x + t * pages.width, pages.width, pages.format == RowFormat::bf16,
                          dst.codes, dst.scales);
}

}  // namespace tenon::cuda
