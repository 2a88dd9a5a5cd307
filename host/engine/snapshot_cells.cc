// SPDX-License-Identifier: MIT
// Pairs are split for partial cuts and joined again when both halves are free.
#include "host/engine/snapshot_cells.h"

#include <algorithm>

namespace tenon::engine {
namespace {

uint32_t partner_of(uint32_t id) {
    return id % 2 == 1 ? id + 1 : id - 1;
}

}  // namespace

SnapshotCells::SnapshotCells(int32_t cells)
    : half_free_(static_cast<size_t>(cells) + 2, 0), total_(cells) {
    pairs_.reserve(static_cast<size_t>(cells) / 2 + 1);
    halves_.reserve(static_cast<size_t>(cells) + 1);
    for (int32_t pair = cells / 2 - 1; pair >= 0; --pair) {
        pairs_.push_back(static_cast<uint32_t>(2 * pair + 1));
    }
    if (cells % 2 == 1) {
        halves_.push_back(static_cast<uint32_t>(cells));
        half_free_[static_cast<size_t>(cells)] = 1;
    }
}

uint32_t SnapshotCells::take(plan::CutKind kind) {
    if (kind == plan::CutKind::partial && !halves_.empty()) {
        const uint32_t id = halves_.back();
        halves_.pop_back();
        half_free_[id] = 0;
        ++used_;
        return id;
    }
    if (pairs_.empty()) {
        return 0;
    }
    const uint32_t id = pairs_.back();
    pairs_.pop_back();
    used_ += plan::cells_of(kind);
    if (kind == plan::CutKind::partial) {
        halves_.push_back(id + 1);
        half_free_[id + 1] = 1;
    }
    return id;
}

void SnapshotCells::release(uint32_t snapshot, plan::CutKind kind) {
    TENON_CHECK(snapshot >= 1 && snapshot <= static_cast<uint32_t>(total_), "snapshot {} of {}",
                snapshot, total_);
    used_ -= plan::cells_of(kind);
    if (kind != plan::CutKind::partial) {
        pairs_.push_back(snapshot);
        return;
    }
    const uint32_t partner = partner_of(snapshot);
    if (partner <= static_cast<uint32_t>(total_) && half_free_[partner] != 0) {
        half_free_[partner] = 0;
        halves_.erase(std::find(halves_.begin(), halves_.end(), partner));
        pairs_.push_back(std::min(snapshot, partner));
        return;
    }
    halves_.push_back(snapshot);
    half_free_[snapshot] = 1;
}

}  // namespace tenon::engine
