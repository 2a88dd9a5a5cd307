// SPDX-License-Identifier: MIT
// Generations, lengths, page bounds, writers and capacities, checked plan by plan.
#include "host/engine/plan_mirror.h"

#include <algorithm>

namespace tenon::engine {

PlanMirror::PlanMirror(const MirrorConfig& config)
    : config_(config),
      slots_(static_cast<size_t>(config.slots)),
      references_(static_cast<size_t>(config.pool_pages), 0),
      writer_(static_cast<size_t>(config.pool_pages), -1),
      holders_(static_cast<size_t>(config.pool_pages), 0),
      floor_(static_cast<size_t>(config.pool_pages), 0),
      snapshots_(static_cast<size_t>(config.snapshot_cells)),
      imported_(static_cast<size_t>(config.pool_pages), 0) {
    jobs_.reserve(static_cast<size_t>(config.staging_areas));
    const int64_t pages =
        (config.context_tokens + config.info.page_tokens - 1) / config.info.page_tokens;
    for (Slot& s : slots_) {
        s.pages.assign(static_cast<size_t>(pages), -1);
    }
    for (Snapshot& s : snapshots_) {
        s.pages.reserve(static_cast<size_t>(pages));
    }
}

Status PlanMirror::refuse(std::string_view what) const {
    return error(Code::internal, "step {}: {}", step_, what);
}

Status PlanMirror::slot_of(const char* record, uint32_t slot, uint32_t generation, Slot** out) {
    if (slot >= slots_.size()) {
        return refuse(format("{} names slot {} of {}", record, slot, slots_.size()));
    }
    Slot& s = slots_[slot];
    if (!s.open || s.generation != generation) {
        return refuse(format("{} names slot {} generation {}, the slot is {} with generation {}",
                             record, slot, generation, s.open ? "open" : "closed", s.generation));
    }
    *out = &s;
    return {};
}

void PlanMirror::reference(int32_t page, int32_t delta) {
    int32_t& count = references_[static_cast<size_t>(page)];
    const bool was = count > 0;
    count += delta;
    if (was != (count > 0)) {
        pages_in_use_ += delta;
    }
}

void PlanMirror::close(uint32_t index) {
    Slot& s = slots_[index];
    for (int32_t& page : s.pages) {
        if (page >= 0) {
            reference(page, -1);
            if (writer_[static_cast<size_t>(page)] == static_cast<int32_t>(index)) {
                writer_[static_cast<size_t>(page)] = -1;
            }
            page = -1;
        }
    }
    if (s.next_stage > 0) {
        --open_chunks_;
    }
    s.open = s.has_sampler = s.torn = false;
    s.length = s.rewind_floor = s.mapped = 0;
    s.next_stage = s.window_rows = 0;
}

Status PlanMirror::apply_slot_op(const plan::SlotOp& op) {
    if (op.op == plan::SlotOpKind::open) {
        if (op.slot >= slots_.size()) {
            return refuse(format("open names slot {} of {}", op.slot, slots_.size()));
        }
        Slot& s = slots_[op.slot];
        if (s.open || op.generation != s.generation + 1 || op.length != 0) {
            return refuse(format("open of slot {} generation {}, the slot is {} with generation {}",
                                 op.slot, op.generation, s.open ? "open" : "closed", s.generation));
        }
        s.open = true;
        s.generation = op.generation;
        return {};
    }
    Slot* s = nullptr;
    TENON_TRY(slot_of("slot_op", op.slot, op.generation, &s));
    switch (op.op) {
        case plan::SlotOpKind::close:
            close(op.slot);
            return {};
        case plan::SlotOpKind::rewind:
            if (s->torn || op.length < s->rewind_floor || op.length > s->length) {
                return refuse(format("rewind of slot {} to {}, legal is {} to {}", op.slot,
                                     op.length, s->rewind_floor, s->length));
            }
            s->length = op.length;
            return {};
        case plan::SlotOpKind::abandon_chunk:
            if (s->next_stage == 0) {
                return refuse(format("slot {} has no open chunk to abandon", op.slot));
            }
            s->next_stage = 0;
            s->torn = true;
            --open_chunks_;
            return {};
        case plan::SlotOpKind::open:
            break;
    }
    return {};
}

Status PlanMirror::apply_page_map(const plan::PageMap& map, const StepPlan& plan) {
    Slot* s = nullptr;
    TENON_TRY(slot_of("page_map", map.slot, map.generation, &s));
    if (uint64_t{map.first_index} + map.count > s->pages.size()) {
        return refuse(format("page_map of slot {} sets entries {} to {}, the table has {}",
                             map.slot, map.first_index, uint64_t{map.first_index} + map.count,
                             s->pages.size()));
    }
    for (uint32_t i = 0; i < map.count; ++i) {
        const int32_t page = plan.pages[map.pages_off + i];
        if (page < 0 || page >= static_cast<int32_t>(references_.size())) {
            return refuse(format("page_map of slot {} names page {} of {}", map.slot, page,
                                 references_.size()));
        }
        int32_t& entry = s->pages[map.first_index + i];
        reference(page, 1);
        imported_[static_cast<size_t>(page)] = 0;
        if (entry >= 0) {
            reference(entry, -1);
        }
        entry = page;
    }
    while (s->mapped < static_cast<int64_t>(s->pages.size()) &&
           s->pages[static_cast<size_t>(s->mapped)] >= 0) {
        ++s->mapped;
    }
    return {};
}

Status PlanMirror::check_ids(const char* record, uint32_t slot, Span<const int32_t> ids) const {
    for (const int32_t id : ids) {
        if (id < 0 || id >= config_.info.vocab) {
            return refuse(format("{} of slot {} has token {}, the vocabulary has {}", record, slot,
                                 id, config_.info.vocab));
        }
    }
    return {};
}

Status PlanMirror::apply_sampler(const plan::Sampler& sampler, const StepPlan& plan) {
    Slot* s = nullptr;
    TENON_TRY(slot_of("sampler", sampler.slot, sampler.generation, &s));
    TENON_TRY(check_ids("sampler", sampler.slot,
                        plan.tokens.subspan(sampler.stop_off, sampler.stop_count)));
    const Span<const plan::Pair> runs[] = {
        plan.pairs.subspan(sampler.bias_off, sampler.bias_count),
        plan.pairs.subspan(sampler.counts_off, sampler.counts_count)};
    for (const Span<const plan::Pair>& run : runs) {
        for (const plan::Pair& pair : run) {
            TENON_TRY(check_ids("sampler", sampler.slot, {&pair.token, 1}));
        }
    }
    s->has_sampler = true;
    return {};
}

Status PlanMirror::write_pages(uint32_t slot, const char* record, int64_t begin, int64_t end) {
    const Slot& s = slots_[slot];
    if (end > config_.context_tokens || end > s.mapped * config_.info.page_tokens) {
        return refuse(format("{} of slot {} writes up to {}, the context is {} and pages reach {}",
                             record, slot, end, config_.context_tokens,
                             s.mapped * config_.info.page_tokens));
    }
    for (int64_t i = begin / config_.info.page_tokens; i <= (end - 1) / config_.info.page_tokens;
         ++i) {
        const int32_t page = s.pages[static_cast<size_t>(i)];
        int32_t& writer = writer_[static_cast<size_t>(page)];
        if (writer >= 0 && writer != static_cast<int32_t>(slot)) {
            return refuse(format("{} of slot {} writes page {}, whose writer is slot {}", record,
                                 slot, page, writer));
        }
        const int64_t first = std::max<int64_t>(begin - i * config_.info.page_tokens, 0);
        if (floor_[static_cast<size_t>(page)] > first) {
            return refuse(format("{} of slot {} writes page {} from row {}, snapshots hold {} rows",
                                 record, slot, page, first, floor_[static_cast<size_t>(page)]));
        }
        writer = static_cast<int32_t>(slot);
    }
    return {};
}

Status PlanMirror::apply_window(const plan::Window& w, const StepPlan& plan) {
    Slot* s = nullptr;
    TENON_TRY(slot_of("window", w.slot, w.generation, &s));
    if (s->in_step || s->next_stage > 0 || s->torn || !s->has_sampler) {
        return refuse(format("window of slot {}: {}", w.slot,
                             s->in_step          ? "the slot occurs twice"
                             : s->next_stage > 0 ? "a chunk is open"
                             : s->torn           ? "the slot is torn"
                                                 : "the slot has no sampler"));
    }
    if (w.position != s->length) {
        return refuse(
            format("window of slot {} at {}, the length is {}", w.slot, w.position, s->length));
    }
    if (w.rows > config_.window_rows || w.rows > config_.info.max_window_rows) {
        return refuse(format("window of slot {} has {} rows, limit {}", w.slot, w.rows,
                             std::min(config_.window_rows, config_.info.max_window_rows)));
    }
    if (w.source != 0) {
        return refuse(format(
            "window of slot {} takes its rows from the device; one step is in flight", w.slot));
    }
    if ((w.flags & plan::kMasked) != 0 && (plan.header.flags & plan::kNeedsMasks) == 0) {
        return refuse(format("window of slot {} is masked, the plan needs no masks", w.slot));
    }
    TENON_TRY(check_ids("window", w.slot,
                        plan.tokens.subspan(w.tokens_off, static_cast<uint64_t>(w.rows))));
    TENON_TRY(write_pages(w.slot, "window", w.position, w.position + w.rows));
    s->in_step = true;
    s->window_rows = w.rows;
    s->accept_max = w.accept_max;
    return {};
}

Status PlanMirror::apply_draft(const plan::Draft& d) {
    Slot* s = nullptr;
    TENON_TRY(slot_of("draft", d.slot, d.generation, &s));
    if (s->window_rows == 0 || s->drafted || d.rows > config_.info.draft_max) {
        return refuse(format(
            "draft of slot {} with {} rows: needs one window of the slot and at most {} rows",
            d.slot, d.rows, config_.info.draft_max));
    }
    s->drafted = true;
    return {};
}

Status PlanMirror::apply_chunk(const plan::Chunk& c, const StepPlan& plan) {
    Slot* s = nullptr;
    TENON_TRY(slot_of("chunk", c.slot, c.generation, &s));
    if (s->in_step || s->torn) {
        return refuse(
            format("chunk of slot {}: the slot {}", c.slot, s->torn ? "is torn" : "occurs twice"));
    }
    if (c.begin != s->length || (s->next_stage > 0 && c.end != s->chunk_end)) {
        return refuse(format("chunk of slot {} covers {} to {}, the length is {}", c.slot, c.begin,
                             c.end, s->length));
    }
    if (c.end - c.begin > config_.chunk_rows || c.end - c.begin > config_.info.max_chunk_rows) {
        return refuse(format("chunk of slot {} has {} rows, limit {}", c.slot, c.end - c.begin,
                             std::min(config_.chunk_rows, config_.info.max_chunk_rows)));
    }
    if (c.stage_begin != s->next_stage || c.stage_end > config_.info.prefill_stages) {
        return refuse(format("chunk of slot {} runs stages {} to {}, next is {} of {}", c.slot,
                             c.stage_begin, c.stage_end, s->next_stage,
                             config_.info.prefill_stages));
    }
    for (const plan::Target& t : plan.targets.subspan(c.target_off, c.target_count)) {
        const bool inside = t.at <= c.end && config_.info.capture_inside;
        if (t.at <= c.begin || t.at > config_.context_tokens ||
            (t.snapshot != 0 && t.at != c.end && !inside)) {
            return refuse(format("chunk of slot {} has a target at {} with snapshot {}", c.slot,
                                 t.at, t.snapshot));
        }
    }
    TENON_TRY(check_ids("chunk", c.slot,
                        plan.tokens.subspan(c.tokens_off, static_cast<uint64_t>(c.end - c.begin))));
    TENON_TRY(write_pages(c.slot, "chunk", c.begin, c.end));
    open_chunks_ -= s->next_stage > 0 ? 1 : 0;
    s->in_step = true;
    if (c.stage_end == config_.info.prefill_stages) {
        s->next_stage = 0;
        s->length = c.end;
        s->rewind_floor = c.end;
        for (const plan::Target& t : plan.targets.subspan(c.target_off, c.target_count)) {
            if (t.snapshot != 0) {
                plan::SnapOp op;
                op.op = plan::SnapOpKind::save;
                op.kind = t.kind;
                op.snapshot = t.snapshot;
                op.slot = c.slot;
                op.generation = c.generation;
                op.at = t.at;
                TENON_TRY(save(op, *s));
            }
        }
    } else {
        s->next_stage = c.stage_end;
        s->chunk_end = c.end;
        if (++open_chunks_ > 1) {
            return refuse(format("chunk of slot {} is left open beside another one", c.slot));
        }
    }
    return {};
}

Status PlanMirror::apply(const StepPlan& plan) {
    const uint64_t expected = step_ + 1;
    step_ = plan.header.step;
    if (plan.header.step != expected || plan.header.group_epoch != config_.group_epoch ||
        !has_result_) {
        return refuse(format("expected step {} of epoch {}{}", expected, config_.group_epoch,
                             has_result_ ? "" : ", after the result of the step before"));
    }
    jobs_.clear();
    for (Slot& s : slots_) {
        s.in_step = s.drafted = false;
        s.window_rows = 0;
    }
    for (const plan::SlotOp& op : plan.slot_ops) {
        TENON_TRY(apply_slot_op(op));
    }
    for (const plan::PageMap& map : plan.page_maps) {
        TENON_TRY(apply_page_map(map, plan));
    }
    // A drop moves no bytes: what it held is free for everything else in the plan.
    for (const plan::SnapOp& op : plan.snap_in) {
        TENON_TRY(op.op == plan::SnapOpKind::drop ? apply_snap_in(op, plan) : Status());
    }
    for (const plan::PageCopy& copy : plan.page_copies) {
        TENON_TRY(apply_page_copy(copy));
    }
    for (const plan::SnapOp& op : plan.snap_in) {
        TENON_TRY(op.op == plan::SnapOpKind::drop ? Status() : apply_snap_in(op, plan));
    }
    // No arena for these was planned, so their capacity is zero.
    if (plan.features.size + plan.encodes.size + plan.image_runs.size > 0) {
        return refuse("features and encodes have no capacity in this engine");
    }
    for (const plan::Sampler& sampler : plan.samplers) {
        TENON_TRY(apply_sampler(sampler, plan));
    }
    int64_t rows = 0;
    for (const plan::Window& w : plan.windows) {
        TENON_TRY(apply_window(w, plan));
        rows += w.rows;
    }
    if (rows > config_.step_rows || rows > config_.info.max_step_rows) {
        return refuse(format("{} window rows, limit {}", rows,
                             std::min(config_.step_rows, config_.info.max_step_rows)));
    }
    for (const plan::Draft& d : plan.drafts) {
        TENON_TRY(apply_draft(d));
    }
    for (const plan::Chunk& c : plan.chunks) {
        TENON_TRY(apply_chunk(c, plan));
    }
    for (const plan::SnapOp& op : plan.snap_out) {
        TENON_TRY(apply_snap_out(op, plan));
    }
    has_result_ = false;
    return {};
}

Status PlanMirror::apply(const StepResult& result) {
    if (result.step != step_) {
        return refuse(format("result of step {}", result.step));
    }
    for (const WindowResult& w : result.windows) {
        Slot* s = nullptr;
        TENON_TRY(slot_of("result", w.slot, w.generation, &s));
        if (s->window_rows == 0) {
            return refuse(
                format("result for slot {}, which had no window or had one already", w.slot));
        }
        if (w.status != RowStatus::ok) {
            s->torn = true;
            s->window_rows = 0;
            continue;
        }
        if (w.emitted < 1 || w.emitted > s->window_rows || w.emitted > s->accept_max) {
            return refuse(format("slot {} emitted {} tokens of {} rows, accept_max {}", w.slot,
                                 w.emitted, s->window_rows, s->accept_max));
        }
        // Rows behind the accepted ones are in the rings too; a rewind must not reach what they
        // overwrote.
        s->rewind_floor =
            std::max(s->rewind_floor, s->length + s->window_rows - config_.info.ring_slack);
        s->length += w.emitted;
        s->window_rows = 0;
    }
    for (const Slot& s : slots_) {
        if (s.window_rows != 0) {
            return refuse("a window has no result");
        }
    }
    for (const ChunkResult& c : result.chunks) {
        Slot* s = nullptr;
        TENON_TRY(slot_of("chunk result", c.slot, c.generation, &s));
        s->torn = s->torn || c.status != RowStatus::ok;
    }
    if (result.jobs.size != jobs_.size()) {
        return refuse(format("{} job results for {} jobs", result.jobs.size, jobs_.size()));
    }
    for (uint64_t i = 0; i < result.jobs.size; ++i) {
        if (result.jobs[i].job != jobs_[i]) {
            return refuse(format("result of job {}, expected {}", result.jobs[i].job, jobs_[i]));
        }
    }
    has_result_ = true;
    return {};
}

}  // namespace tenon::engine
