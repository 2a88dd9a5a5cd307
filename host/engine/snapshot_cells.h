// SPDX-License-Identifier: MIT
// Which cells of the snapshot arena are free: full cuts take an aligned pair, partial ones half of
// one.
#pragma once

#include <vector>

#include "tenon/plan.h"

namespace tenon::engine {

/// Rank 0's engine thread. Never allocates after construction. LIFO, hence deterministic. A lone
/// last cell of an odd number serves partial cuts only.
class SnapshotCells {
  public:
    explicit SnapshotCells(int32_t cells);

    int32_t total() const { return total_; }
    int32_t used() const { return used_; }
    /// Id of a snapshot (its first cell, from 1), 0 = none is free.
    uint32_t take(plan::CutKind kind);
    void release(uint32_t snapshot, plan::CutKind kind);

  private:
    std::vector<uint32_t> pairs_;     // first ids of free pairs; the back is next
    std::vector<uint32_t> halves_;    // ids of free single cells whose partner is in use
    std::vector<uint8_t> half_free_;  // by cell: it is in halves_
    int32_t total_ = 0, used_ = 0;
};

}  // namespace tenon::engine
