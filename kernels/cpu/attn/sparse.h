// SPDX-License-Identifier: MIT
// What reference and SIMD version of attn.sparse share: checks, and the list of keys of a row.
#pragma once

#include <algorithm>

#include "common/check.h"
#include "common/rows.h"
#include "kernels/shared/token_checks.h"

namespace tenon::cpu {

/// The keys of one row in list order: ring positions [ring_first, ring_last), rows [kv_first,
/// kv_last) of `kv`, then `selected` compressed rows.
struct KeyList {
    int64_t ring_first = 0, ring_last = 0;
    int64_t kv_first = 0, kv_last = 0;
    int64_t selected = 0;
    const int32_t* sel = nullptr;
    int64_t slot = -1;

    int64_t window() const { return ring_last - ring_first + kv_last - kv_first; }
    int64_t size() const { return window() + selected; }
};

/// Keys of row t; no keys for dead rows and inconsistent tables.
inline KeyList key_list(Context& c, const AttnSparse& p, const SparseShape& s, int64_t t) {
    KeyList list;
    const RowInfo& row = row_infos(p.rows)[t];
    if (row.slot < 0) {
        return list;
    }
    const SegInfo* seg = segment_of(c, p.rows, row, t);
    if (seg == nullptr) {
        return list;
    }
    if (row.slot >= p.ring.codes.shape[0]) {
        c.fault();
        return list;
    }
    const int64_t low = std::max(0, seg->win_lo[p.half]);
    const int64_t pos0 = seg->pos0;
    list.slot = row.slot;
    if (p.mode == AttnMode::block) {
        list.ring_first = std::max(low, pos0 - p.window);
        list.ring_last = std::max(list.ring_first, pos0);
        list.kv_first = seg->row0;
        list.kv_last = int64_t{seg->row0} + seg->rows;
    } else {
        const int64_t first = std::max(low, int64_t{row.pos} - p.window + 1);
        list.ring_first = std::min(first, pos0);
        list.ring_last = pos0;
        list.kv_first = seg->row0 + std::max<int64_t>(0, first - pos0);
        list.kv_last = std::max(list.kv_first, t + 1);
    }
    // The ring holds the R newest positions before this call; older ones are gone.
    if (list.ring_last - list.ring_first > p.ring.R) {
        c.fault();
        list.ring_first = list.ring_last - p.ring.R;
    }
    if (s.K > 0) {
        list.sel = p.sel.row<const int32_t>(t);
        list.selected = std::clamp<int64_t>(p.count.as<const int32_t>()[t], 0, s.K);
    }
    return list;
}

/// The SIMD version for this CPU, or null: f32 in 16 fixed lanes, probabilities in f32, 64 keys at
/// a time with a running maximum. Within 2^-7 of the row's largest |o| of the reference (most
/// elements: the same bits).
OpCall<AttnSparse> attn_sparse_simd();

}  // namespace tenon::cpu
