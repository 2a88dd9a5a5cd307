// SPDX-License-Identifier: MIT
// The snapshot sections of a step plan: restore and drop before rows run, save after them.
#include <algorithm>

#include "model.h"

namespace tenon::dsv41 {

/// Classes of the tokens before `at`, oldest first.
void Dsv41Model::classes_before(uint32_t slot, int64_t at,
                                int32_t (&out)[SnapshotArena::kClasses]) const {
    for (int32_t i = 0; i < SnapshotArena::kClasses; ++i) {
        out[i] = slots_[slot].class_at(at - SnapshotArena::kClasses + i);
    }
}

Status Dsv41Model::check_snap_slot(const plan::SnapOp& op, const char* section) {
    TENON_TRY(check_slot(op.slot, op.generation, section));
    if (op.at < 1 || op.at > parts_.shape.context_tokens) {
        return error(Code::internal, "{} of slot {} at {}, the context is {}", section, op.slot,
                     op.at, parts_.shape.context_tokens);
    }
    return {};
}

Status Dsv41Model::restore(const plan::SnapOp& op) {
    TENON_TRY(check_snap_slot(op, "snap_in"));
    Slot& slot = slots_[op.slot];
    if (slot.length != 0) {
        return error(Code::internal, "restore into slot {}, which has {} positions", op.slot,
                     slot.length);
    }
    SnapshotArena::HostPart part;
    TENON_TRY(snapshots_.load(op, ops_[0], *stream_, &part, &slot.whole_from));
    for (int32_t i = 0; i < SnapshotArena::kClasses; ++i) {
        const int64_t position = op.at - SnapshotArena::kClasses + i;
        if (position >= 0) {
            slot.remember(position, part.classes[i]);
        }
    }
    slot.length = op.at;
    return {};
}

Status Dsv41Model::check_piece(const plan::SnapOp& op, const StepPlan& plan,
                               Span<const int32_t>* pages) {
    if (op.pages_off > plan.pages.size || op.pages_count > plan.pages.size - op.pages_off ||
        op.staged > op.pages_count || !staging_.exists()) {
        return error(Code::internal, "job {}: pages {} + {}, {} staged, of {}", op.job,
                     op.pages_off, op.pages_count, op.staged, plan.pages.size);
    }
    *pages = plan.pages.subspan(op.pages_off + op.pages_count - op.staged, op.staged);
    for (const int32_t page : *pages) {
        if (page < 0 || page >= parts_.shape.pages) {
            return error(Code::internal, "job {}: page {} of {}", op.job, page, parts_.shape.pages);
        }
    }
    job_results_.push_back({op.job, 0, 0});
    return {};
}

/// The last piece brings the snapshot, which exists from then on.
Status Dsv41Model::import_piece(const plan::SnapOp& op, const StepPlan& plan) {
    Span<const int32_t> pages;
    TENON_TRY(check_piece(op, plan, &pages));
    TensorView record;
    if (op.snapshot != 0) {
        SnapshotArena::HostPart part;
        TENON_TRY(staging_.host_part(op, &part));
        TENON_TRY(snapshots_.adopt(op, part));
        record = snapshots_.record(op.snapshot, op.kind);
    }
    return staging_.unpack(op, pages, state_.pool(), record, ops_[0], *device_, *stream_);
}

Status Dsv41Model::export_piece(const plan::SnapOp& op, const StepPlan& plan) {
    Span<const int32_t> pages;
    TENON_TRY(check_piece(op, plan, &pages));
    SnapshotArena::HostPart part;
    TensorView record;
    if (op.snapshot != 0) {
        TENON_TRY(snapshots_.host_part(op, &part));
        record = snapshots_.record(op.snapshot, op.kind);
    }
    return staging_.pack(op, pages, state_.pool(), record, part, ops_[0], *device_, *stream_);
}

Status Dsv41Model::apply_snap_in(const StepPlan& plan) {
    job_results_.clear();
    staging_.begin();
    for (const plan::SnapOp& op : plan.snap_in) {
        switch (op.op) {
            case plan::SnapOpKind::restore:
                TENON_TRY(restore(op));
                break;
            case plan::SnapOpKind::drop:
                TENON_TRY(snapshots_.drop(op));
                break;
            case plan::SnapOpKind::import:
                TENON_TRY(import_piece(op, plan));
                break;
            default:
                return error(Code::unsupported, "snap_in operation {} of snapshot {}",
                             static_cast<int>(op.op), op.snapshot);
        }
    }
    return {};
}

/// `at` may lie behind the length by what the rings hold beyond a window.
Status Dsv41Model::save(const plan::SnapOp& op, int64_t computed) {
    TENON_TRY(check_snap_slot(op, "snap_out"));
    if (op.at > computed || computed - op.at > parts_.info.ring_slack) {
        return error(Code::internal, "save of slot {} at {}: {} positions are computed, slack {}",
                     op.slot, op.at, computed, parts_.info.ring_slack);
    }
    const int64_t whole = slots_[op.slot].whole_from;
    if (op.kind == plan::CutKind::full && op.at < whole) {
        return error(Code::internal, "full save of slot {} at {}, which is whole from {} on",
                     op.slot, op.at, whole);
    }
    const int64_t whole_from = op.kind == plan::CutKind::full ? 0
                               : op.kind == plan::CutKind::partial
                                   ? op.at + parts_.info.partial_distance
                                   : whole;
    int32_t classes[SnapshotArena::kClasses];
    classes_before(op.slot, op.at, classes);
    return snapshots_.save(op, classes, whole_from, ops_[0], *stream_);
}

/// Targets of a chunk that ask for a cut; it just ran, so the rings end where it does.
Status Dsv41Model::capture_targets(const StepPlan& plan, const plan::Chunk& c) {
    for (const plan::Target& t : plan.targets.subspan(c.target_off, c.target_count)) {
        if (t.snapshot == 0 || t.at <= c.begin || t.at > c.end) {
            continue;
        }
        plan::SnapOp op;
        op.op = plan::SnapOpKind::save;
        op.kind = t.kind;
        op.snapshot = t.snapshot;
        op.slot = c.slot;
        op.generation = c.generation;
        op.at = t.at;
        TENON_TRY(save(op, c.end));
    }
    return {};
}

Status Dsv41Model::apply_snap_out(const StepPlan& plan) {
    for (const plan::SnapOp& op : plan.snap_out) {
        if (op.op == plan::SnapOpKind::exports) {
            TENON_TRY(export_piece(op, plan));
            continue;
        }
        if (op.op != plan::SnapOpKind::save) {
            return error(Code::unsupported, "snap_out operation {} of snapshot {}",
                         static_cast<int>(op.op), op.snapshot);
        }
        TENON_TRY(check_slot(op.slot, op.generation, "snap_out"));
        TENON_TRY(save(op, slots_[op.slot].length));
    }
    return {};
}

}  // namespace tenon::dsv41
