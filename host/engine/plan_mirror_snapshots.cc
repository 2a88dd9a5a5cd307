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
        case plan::SnapOpKind::import:
            return import_piece(op, plan);
        default:
            return refuse(format("snap_in operation {} has no capacity in this engine",
                                 static_cast<int>(op.op)));
    }
}

Status PlanMirror::save(const plan::SnapOp& op, const Slot& slot) {
    const int64_t tokens = config_.info.page_tokens;
    const int64_t count = (op.at + tokens - 1) / tokens;
    if (op.at < std::max<int64_t>(slot.rewind_floor, 1) || op.at > slot.length ||
        count > slot.mapped) {
        return refuse(format("save of slot {} at {}, legal is {} to {} on {} pages", op.slot, op.at,
                             slot.rewind_floor, slot.length, slot.mapped));
    }
    return take_cells("save", op, {slot.pages.data(), static_cast<uint64_t>(count)});
}

/// Cells that are free take a snapshot on these pages, whose rows below `at` stay as they are.
Status PlanMirror::take_cells(const char* record, const plan::SnapOp& op,
                              Span<const int32_t> pages) {
    const auto cells = static_cast<uint32_t>(plan::cells_of(op.kind));
    if (op.snapshot < 1 || op.snapshot - 1 + cells > snapshots_.size()) {
        return refuse(format("{} into snapshot {} of {} cells, the arena has {}", record,
                             op.snapshot, cells, snapshots_.size()));
    }
    for (uint32_t i = 0; i < cells; ++i) {
        if (snapshots_[op.snapshot - 1 + i].taken) {
            return refuse(format("{} into snapshot {}: cell {} is in use", record, op.snapshot,
                                 op.snapshot + i));
        }
    }
    if (op.kind != plan::CutKind::full && config_.info.partial_distance == 0) {
        return refuse(format("{} of kind {}: the model has full cuts only", record,
                             static_cast<int>(op.kind)));
    }
    const int64_t tokens = config_.info.page_tokens;
    Snapshot& s = snapshots_[op.snapshot - 1];
    s.first = true;
    s.kind = op.kind;
    s.at = op.at;
    s.pages.assign(pages.begin(), pages.end());
    for (int64_t i = 0; i < static_cast<int64_t>(s.pages.size()); ++i) {
        hold(s.pages[static_cast<size_t>(i)], std::min(op.at - i * tokens, tokens));
    }
    for (uint32_t i = 0; i < cells; ++i) {
        snapshots_[op.snapshot - 1 + i].taken = true;
    }
    cells_in_use_ += cells;
    return {};
}

Status PlanMirror::check_piece(const char* record, const plan::SnapOp& op, const StepPlan& plan,
                               Span<const int32_t>* pages) {
    const auto areas = static_cast<uint64_t>(config_.staging_areas);
    if (areas == 0) {
        return refuse(format("{} has no capacity in this engine", record));
    }
    if (op.kind != plan::CutKind::full) {
        return refuse(format("{} of kind {}: only full cuts", record, static_cast<int>(op.kind)));
    }
    const bool shares = std::any_of(jobs_.begin(), jobs_.end(),
                                    [&](uint64_t job) { return job % areas == op.job % areas; });
    if (op.job == 0 || shares || op.staged > static_cast<uint32_t>(config_.staging_pages)) {
        return refuse(format("{} of job {} with {} pages: at most {}, and one job an area", record,
                             op.job, op.staged, config_.staging_pages));
    }
    *pages = plan.pages.subspan(op.pages_off, op.pages_count);
    for (const int32_t page : *pages) {
        if (page < 0 || page >= static_cast<int32_t>(references_.size())) {
            return refuse(format("{} of job {} names page {} of {}", record, op.job, page,
                                 references_.size()));
        }
    }
    jobs_.push_back(op.job);
    return {};
}

Status PlanMirror::import_piece(const plan::SnapOp& op, const StepPlan& plan) {
    Span<const int32_t> pages;
    TENON_TRY(check_piece("import", op, plan, &pages));
    const uint64_t first = pages.size - op.staged;
    for (uint64_t i = 0; i < pages.size; ++i) {
        const auto p = static_cast<size_t>(pages[i]);
        const bool is_free = references_[p] == 0 && holders_[p] == 0;
        if (i >= first && !is_free) {
            return refuse(
                format("import of job {} into page {}, which {} slots refer to and {} "
                       "snapshots hold",
                       op.job, pages[i], references_[p], holders_[p]));
        }
        if (i < first && is_free && imported_[p] == 0) {
            return refuse(format("import of job {}: nothing has filled page {}", op.job, pages[i]));
        }
        writer_[p] = is_free ? -1 : writer_[p];
        imported_[p] = 1;
    }
    if (op.snapshot == 0) {
        return {};
    }
    const int64_t tokens = config_.info.page_tokens;
    if (op.at < 1 || static_cast<int64_t>(pages.size) != (op.at + tokens - 1) / tokens) {
        return refuse(format("import of job {} at {} lists {} pages", op.job, op.at, pages.size));
    }
    for (const int32_t page : pages) {
        imported_[static_cast<size_t>(page)] = 0;
    }
    return take_cells("import", op, pages);
}

Status PlanMirror::export_piece(const plan::SnapOp& op, const StepPlan& plan) {
    Span<const int32_t> pages;
    TENON_TRY(check_piece("export", op, plan, &pages));
    for (const int32_t page : pages) {
        if (holders_[static_cast<size_t>(page)] == 0) {
            return refuse(format("export of job {}: no snapshot holds page {}", op.job, page));
        }
    }
    Snapshot* s = nullptr;
    return op.snapshot == 0 ? Status() : find_snapshot("export", op, &s);
}

Status PlanMirror::apply_snap_out(const plan::SnapOp& op, const StepPlan& plan) {
    if (op.op == plan::SnapOpKind::exports) {
        return export_piece(op, plan);
    }
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
