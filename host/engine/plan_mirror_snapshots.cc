// SPDX-License-Identifier: MIT
// Snapshots in the mirror: which cells hold what, and the pages whose rows they keep from changing.
#include <algorithm>

#include "host/engine/plan_mirror.h"

namespace tenon::engine {

Status PlanMirror::find_snapshot(const char* record, const plan::SnapOp& op, Snapshot** out) {
    Snapshot* s = op.snapshot >= 1 && op.snapshot <= snapshots_.size()
                      ? &snapshots_[op.snapshot - 1]
                      : nullptr;
    if (s == nullptr || !s->first || s->kind != op.kind || s->at != op.at) {
        return refuse(format(
            "{} names snapshot {} of kind {} at {}, found {} of kind {} at {}", record, op.snapshot,
            static_cast<int>(op.kind), op.at, s != nullptr && s->first ? "one" : "none",
            s == nullptr ? 0 : static_cast<int>(s->kind), s == nullptr ? -1 : s->at));
    }
    *out = s;
    return {};
}

void PlanMirror::hold(int32_t page, int64_t rows) {
    const auto p = static_cast<size_t>(page);
    ++holders_[p];
    floor_[p] = std::max(floor_[p], static_cast<int32_t>(rows));
}

void PlanMirror::drop(uint32_t snapshot) {
    Snapshot& first = snapshots_[snapshot - 1];
    for (const int32_t page : first.pages) {
        if (--holders_[static_cast<size_t>(page)] == 0) {
            floor_[static_cast<size_t>(page)] = 0;
        }
    }
    for (int32_t i = 0; i < plan::cells_of(first.kind); ++i) {
        Snapshot& cell = snapshots_[snapshot - 1 + static_cast<uint32_t>(i)];
        cell.taken = cell.first = false;
        --cells_in_use_;
    }
    first.at = 0;
    first.pages.clear();
}

Status PlanMirror::apply_page_copy(const plan::PageCopy& c) {
    const auto pages = static_cast<int32_t>(references_.size());
    if (c.src >= pages || c.dst >= pages || c.tokens > config_.info.page_tokens) {
        return refuse(format("page_copy {} to {} of {} tokens; {} pages of {}", c.src, c.dst,
                             c.tokens, pages, config_.info.page_tokens));
    }
    const auto dst = static_cast<size_t>(c.dst);
    if (holders_[dst] > 0 || writer_[dst] >= 0 || references_[dst] != 1) {
        return refuse(
            format("page_copy into page {}, which {} slots refer to, {} snapshots hold "
                   "and slot {} writes",
                   c.dst, references_[dst], holders_[dst], writer_[dst]));
    }
    return {};
}

/// The slot's table must name the snapshot's whole pages; of a part of one it must have a copy.
Status PlanMirror::restore(const plan::SnapOp& op, const StepPlan& plan) {
    Slot* slot = nullptr;
    TENON_TRY(slot_of("snap_in", op.slot, op.generation, &slot));
    Snapshot* s = nullptr;
    TENON_TRY(find_snapshot("snap_in", op, &s));
    if (slot->length != 0 || slot->next_stage > 0) {
        return refuse(format("restore into slot {}, which has length {}", op.slot, slot->length));
    }
    const int64_t tokens = config_.info.page_tokens;
    for (size_t i = 0; i < s->pages.size(); ++i) {
        const int32_t mapped = slot->pages[i];
        const int64_t rows = std::min(op.at - static_cast<int64_t>(i) * tokens, tokens);
        const bool is_copy =
            rows < tokens && std::any_of(plan.page_copies.begin(), plan.page_copies.end(),
                                         [&](const plan::PageCopy& c) {
                                             return c.src == s->pages[i] && c.dst == mapped &&
                                                    c.tokens >= rows;
                                         });
        if (mapped != s->pages[i] && !is_copy) {
            return refuse(
                format("restore of snapshot {} into slot {}: entry {} is page {}, the "
                       "snapshot has page {}",
                       op.snapshot, op.slot, i, mapped, s->pages[i]));
        }
    }
    slot->length = op.at;
    slot->rewind_floor = op.at;
    slot->torn = false;
    return {};
}

Status PlanMirror::apply_snap_in(const plan::SnapOp& op, const StepPlan& plan) {
    switch (op.op) {
        case plan::SnapOpKind::restore:
            return restore(op, plan);
        case plan::SnapOpKind::drop: {
            Snapshot* s = nullptr;
            TENON_TRY(find_snapshot("snap_in", op, &s));
            drop(op.snapshot);
            return {};
        }
        default:
            return refuse(format("snap_in operation {} has no capacity in this engine",
                                 static_cast<int>(op.op)));
    }
}

Status PlanMirror::save(const plan::SnapOp& op, const Slot& slot) {
    const auto cells = static_cast<uint32_t>(plan::cells_of(op.kind));
    if (op.snapshot < 1 || op.snapshot - 1 + cells > snapshots_.size()) {
        return refuse(format("save into snapshot {} of {} cells, the arena has {}", op.snapshot,
                             cells, snapshots_.size()));
    }
    for (uint32_t i = 0; i < cells; ++i) {
        if (snapshots_[op.snapshot - 1 + i].taken) {
            return refuse(
                format("save into snapshot {}: cell {} is in use", op.snapshot, op.snapshot + i));
        }
    }
    if (op.kind != plan::CutKind::full && config_.info.partial_distance == 0) {
        return refuse(
            format("save of kind {}: the model has full cuts only", static_cast<int>(op.kind)));
    }
    const int64_t tokens = config_.info.page_tokens;
    const int64_t count = (op.at + tokens - 1) / tokens;
    if (op.at < std::max<int64_t>(slot.rewind_floor, 1) || op.at > slot.length ||
        count > slot.mapped) {
        return refuse(format("save of slot {} at {}, legal is {} to {} on {} pages", op.slot, op.at,
                             slot.rewind_floor, slot.length, slot.mapped));
    }
    Snapshot& s = snapshots_[op.snapshot - 1];
    s.first = true;
    s.kind = op.kind;
    s.at = op.at;
    s.pages.assign(slot.pages.begin(), slot.pages.begin() + count);
    for (int64_t i = 0; i < count; ++i) {
        hold(s.pages[static_cast<size_t>(i)], std::min(op.at - i * tokens, tokens));
    }
    for (uint32_t i = 0; i < cells; ++i) {
        snapshots_[op.snapshot - 1 + i].taken = true;
    }
    cells_in_use_ += cells;
    return {};
}

Status PlanMirror::apply_snap_out(const plan::SnapOp& op) {
    if (op.op != plan::SnapOpKind::save) {
        return refuse(format("snap_out operation {} has no capacity in this engine",
                             static_cast<int>(op.op)));
    }
    Slot* slot = nullptr;
    TENON_TRY(slot_of("snap_out", op.slot, op.generation, &slot));
    if (slot->in_step || slot->next_stage > 0 || slot->torn) {
        return refuse(format("save of slot {}, which {}", op.slot,
                             slot->torn ? "is torn" : "is not at rest"));
    }
    return save(op, *slot);
}

}  // namespace tenon::engine
