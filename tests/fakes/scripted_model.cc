// SPDX-License-Identifier: MIT
// Steps of the scripted model: slots, pages, snapshots and results, with its own checks of
// everything that a plan may get wrong.
#include "tests/fakes/scripted_model.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/fakes/scripted_limits.h"

namespace tenon::fakes {

using scripted::kVocab;
using scripted::kWindow;
using scripted::wrong;

ScriptedModel::ScriptedModel(const ScriptedOptions& options)
    : options_(options), slots_(static_cast<size_t>(options.slots)) {
    info_.page_tokens = options.page_tokens;
    info_.page_bytes = options.page_tokens * static_cast<int64_t>(sizeof(Cell));
    info_.max_window_rows = options.window_rows;
    info_.max_step_rows = options.step_rows;
    info_.max_chunk_rows = options.chunk_rows;
    info_.prefill_stages = options.stages;
    info_.draft_rows = info_.draft_max = options.draft_max;
    info_.ring_slack = plan::kMaxWindowRows;
    info_.vocab = kVocab;
    info_.context_limit = options.context;
    info_.snapshot_bytes = 1024;
    info_.partial_distance = options.partial_distance;
    set_text(info_.family, "scripted");
    set_text(info_.summary, "scripted test model");

    ModelRequest request;
    request.slots = options.slots;
    const int64_t pages = options.pool_pages > 0 ? options.pool_pages : pool_pages(request, info_);
    cells_.resize(static_cast<size_t>(pages * options.page_tokens));
    const auto slots = static_cast<size_t>(options.slots);
    const auto rows = static_cast<size_t>(options.step_rows);
    for (Slot& s : slots_) {
        s.table.assign(static_cast<size_t>(options.context / options.page_tokens + 1), -1);
        s.ring.resize(kWindow + plan::kMaxWindowRows);
        s.hashes.resize(static_cast<size_t>(options.context) + plan::kMaxWindowRows);
        s.bias.reserve(4096);
        s.stops.reserve(16);
        s.seen.assign(kVocab, 0);
        s.in_prompt.assign(kVocab, 0);
    }
    for (Results* r : {&results_, &given_[0], &given_[1]}) {
        r->windows.reserve(slots);
        r->drafts.reserve(slots);
        r->chunks.reserve(4);
        r->tokens.reserve(rows);
        r->logprobs.reserve(rows * 21);
        r->jobs.reserve(2);
    }
    snapshots_.resize(static_cast<size_t>(options.snapshot_cells));
    for (Snapshot& s : snapshots_) {
        s.ring.reserve(kWindow + plan::kMaxWindowRows);
        s.hashes.reserve(static_cast<size_t>(options.context));
    }
    for (std::vector<uint8_t>& area : staging_) {
        const int64_t bytes = options.staging_pages * info_.page_bytes + snapshot_bytes();
        area.resize(options.staging ? static_cast<size_t>(bytes) : 0);
    }
    costs_.assign(rows + 1, 100);
}

void ScriptedModel::reply_with(std::vector<int32_t> ids) {
    script_ = [ids = std::move(ids)](const std::vector<int32_t>&) { return ids; };
}

void ScriptedModel::reply_by(
    std::function<std::vector<int32_t>(const std::vector<int32_t>&)> script) {
    script_ = std::move(script);
}

void ScriptedModel::inject(FaultAt where, Code code, uint64_t step) {
    has_fault_ = true;
    fault_at_ = where;
    fault_code_ = code;
    fault_step_ = step;
}

void ScriptedModel::fail_rows(uint64_t request, int64_t position, RowStatus status) {
    failing_request_ = request;
    failing_position_ = position;
    failing_status_ = status;
}

Status ScriptedModel::fault(FaultAt where, uint64_t step) {
    if (!has_fault_ || fault_at_ != where || (fault_step_ != 0 && fault_step_ != step)) {
        return {};
    }
    has_fault_ = false;
    return Status(fault_code_, "injected fault");
}

RowStatus ScriptedModel::status_of(const Slot& slot, int64_t end) const {
    return slot.request == failing_request_ && end > failing_position_ ? failing_status_
                                                                       : RowStatus::ok;
}

std::vector<uint64_t> ScriptedModel::cells(uint32_t slot, int64_t length) const {
    std::vector<uint64_t> out;
    const Slot& s = slots_[slot];
    for (int64_t p = 0; p < length; ++p) {
        const int32_t page = s.table[static_cast<size_t>(p / options_.page_tokens)];
        const Cell& c =
            cells_[static_cast<size_t>(page * options_.page_tokens + p % options_.page_tokens)];
        out.push_back(c.hash);
        out.push_back(static_cast<uint64_t>(c.token));
    }
    return out;
}

Status ScriptedModel::warm_up(const WarmUp&, CostTable* out) noexcept {
    if (warm_hook_) {
        warm_hook_();
    }
    TENON_TRY(fault(FaultAt::warm_up, 0));
    out->window_us = costs_;
    out->draft_us = costs_;
    out->stage_us = Span<const int64_t>(costs_.data(), static_cast<uint64_t>(options_.stages));
    return {};
}

Status ScriptedModel::submit(const StepPlan& plan) noexcept {
    return guard([&]() -> Status {
        if (hook_) {
            hook_(plan);
        }
        TENON_TRY(fault(FaultAt::submit, plan.header.step));
        if (plan.header.step != step_ + 1 || collected_ != 3) {
            return wrong(plan.header.step,
                         format("submitted after step {}, of which {} stages were collected", step_,
                                collected_));
        }
        step_ = plan.header.step;
        collected_ = 0;
        steps_.fetch_add(1);
        return run(plan);
    });
}

Status ScriptedModel::run(const StepPlan& plan) {
    results_.windows.clear();
    results_.drafts.clear();
    results_.chunks.clear();
    results_.tokens.clear();
    results_.logprobs.clear();
    results_.jobs.clear();
    for (const plan::SlotOp& op : plan.slot_ops) {
        TENON_TRY(run_slot_op(op));
    }
    for (const plan::PageMap& map : plan.page_maps) {
        Slot* s = nullptr;
        TENON_TRY(slot_of(map.slot, map.generation, &s));
        for (uint32_t i = 0; i < map.count; ++i) {
            const int32_t page = plan.pages[map.pages_off + i];
            if (page < 0 || static_cast<size_t>(page) * static_cast<size_t>(options_.page_tokens) >=
                                cells_.size()) {
                return wrong(step_, format("page {} is outside the pool", page));
            }
            s->table.at(map.first_index + i) = page;
        }
    }
    for (const plan::PageCopy& copy : plan.page_copies) {
        TENON_TRY(run_page_copy(copy));
    }
    for (const plan::SnapOp& op : plan.snap_in) {
        TENON_TRY(run_snap_in(op, plan));
    }
    for (const plan::Sampler& sampler : plan.samplers) {
        TENON_TRY(run_sampler(sampler, plan));
    }
    for (const plan::Window& window : plan.windows) {
        TENON_TRY(run_window(window, plan));
    }
    for (const plan::Draft& draft : plan.drafts) {
        TENON_TRY(run_draft(draft));
    }
    for (const plan::Chunk& chunk : plan.chunks) {
        TENON_TRY(run_chunk(chunk, plan));
    }
    for (const plan::SnapOp& op : plan.snap_out) {
        if (op.op == plan::SnapOpKind::exports) {
            TENON_TRY(run_piece(op, plan, true));
            continue;
        }
        Slot* s = nullptr;
        TENON_TRY(slot_of(op.slot, op.generation, &s));
        TENON_TRY(save(op, s->length));
    }
    return {};
}

Status ScriptedModel::run_page_copy(const plan::PageCopy& c) {
    const auto at = [this](int32_t page) {
        return cells_.begin() + int64_t{page} * options_.page_tokens;
    };
    if (at(c.src) >= cells_.end() || at(c.dst) >= cells_.end()) {
        return wrong(step_, format("page_copy {} to {}", c.src, c.dst));
    }
    std::copy(at(c.src), at(c.src) + c.tokens, at(c.dst));
    std::fill(at(c.dst) + c.tokens, at(c.dst) + options_.page_tokens, Cell{});
    return {};
}

Status ScriptedModel::find(const plan::SnapOp& op, Snapshot** out) {
    if (op.snapshot < 1 || op.snapshot > snapshots_.size() || !snapshots_[op.snapshot - 1].first ||
        snapshots_[op.snapshot - 1].kind != op.kind || snapshots_[op.snapshot - 1].at != op.at) {
        return wrong(step_, format("no snapshot {} at {}", op.snapshot, op.at));
    }
    *out = &snapshots_[op.snapshot - 1];
    return {};
}

int64_t ScriptedModel::snapshot_bytes() noexcept {
    return static_cast<int64_t>(slots_[0].ring.size() * sizeof(RingRow)) +
           options_.context * static_cast<int64_t>(sizeof(uint64_t));
}

/// Cells of the staged pages, then ring and hashes of the snapshot; `out`: to the area, else from
/// it.
Status ScriptedModel::run_piece(const plan::SnapOp& op, const StepPlan& plan, bool out) {
    std::vector<uint8_t>& area = staging_[op.job % 2];
    const auto page = static_cast<size_t>(info_.page_bytes);
    const size_t bytes =
        op.staged * page + (op.snapshot != 0 ? static_cast<size_t>(snapshot_bytes()) : 0);
    if (bytes > area.size() || op.kind != plan::CutKind::full) {
        return wrong(step_, format("piece of {} bytes for an area of {}", bytes, area.size()));
    }
    size_t at = 0;
    const auto move = [&](void* state, size_t n) {
        out ? std::memcpy(area.data() + at, state, n) : std::memcpy(state, area.data() + at, n);
        at += n;
    };
    for (const int32_t id :
         plan.pages.subspan(op.pages_off + op.pages_count - op.staged, op.staged)) {
        move(&cells_[static_cast<size_t>(id) * static_cast<size_t>(options_.page_tokens)], page);
    }
    results_.jobs.push_back({op.job, 0, 0});
    if (op.snapshot == 0) {
        return {};
    }
    Snapshot* s = nullptr;
    if (out) {
        TENON_TRY(find(op, &s));
    } else {
        for (uint32_t i = 0; i < 2; ++i) {
            if (std::exchange(snapshots_.at(op.snapshot - 1 + i).taken, true)) {
                return wrong(step_, format("cell {} is in use", op.snapshot + i));
            }
        }
        s = &snapshots_[op.snapshot - 1];
        s->first = true;
        s->kind = op.kind;
        s->at = op.at;
        s->whole_from = 0;
        s->ring.resize(slots_[0].ring.size());
        s->hashes.resize(static_cast<size_t>(op.at));
    }
    move(s->ring.data(), s->ring.size() * sizeof(RingRow));
    move(s->hashes.data(), s->hashes.size() * sizeof(uint64_t));
    return {};
}

Status ScriptedModel::run_snap_in(const plan::SnapOp& op, const StepPlan& plan) {
    if (op.op == plan::SnapOpKind::import) {
        return run_piece(op, plan, false);
    }
    Snapshot* snapshot = nullptr;
    TENON_TRY(find(op, &snapshot));
    if (op.op == plan::SnapOpKind::drop) {
        for (int32_t i = 0; i < plan::cells_of(op.kind); ++i) {
            snapshots_[op.snapshot - 1 + static_cast<uint32_t>(i)].taken = false;
        }
        snapshot->first = false;
        return {};
    }
    Slot* s = nullptr;
    TENON_TRY(slot_of(op.slot, op.generation, &s));
    if (s->length != 0) {
        return wrong(step_, format("restore into request {} at {}", s->request, s->length));
    }
    std::copy(snapshot->ring.begin(), snapshot->ring.end(), s->ring.begin());
    std::copy(snapshot->hashes.begin(), snapshot->hashes.end(), s->hashes.begin());
    s->whole_from = op.kind == plan::CutKind::full ? 0 : snapshot->whole_from;
    s->length = op.at;
    return {};
}

Status ScriptedModel::save(const plan::SnapOp& op, int64_t computed) {
    Slot* s = nullptr;
    TENON_TRY(slot_of(op.slot, op.generation, &s));
    const auto cells = static_cast<uint32_t>(plan::cells_of(op.kind));
    if (op.snapshot < 1 || op.snapshot - 1 + cells > snapshots_.size() || op.at < 1 ||
        op.at > computed) {
        return wrong(step_, format("save of request {} at {} of {} as {}", s->request, op.at,
                                   computed, op.snapshot));
    }
    if (op.kind == plan::CutKind::full && op.at < s->whole_from) {
        return wrong(step_, format("full save of request {} at {}, which is whole from {} on",
                                   s->request, op.at, s->whole_from));
    }
    for (uint32_t i = 0; i < cells; ++i) {
        if (std::exchange(snapshots_[op.snapshot - 1 + i].taken, true)) {
            return wrong(step_, format("cell {} is in use", op.snapshot + i));
        }
    }
    Snapshot& snapshot = snapshots_[op.snapshot - 1];
    snapshot.first = true;
    snapshot.kind = op.kind;
    snapshot.at = op.at;
    // A partial cut lacks what only the rows after it rebuild, whatever the live state has.
    snapshot.whole_from = op.kind == plan::CutKind::full      ? 0
                          : op.kind == plan::CutKind::partial ? op.at + options_.partial_distance
                                                              : s->whole_from;
    snapshot.ring.assign(s->ring.begin(), s->ring.end());
    // Only the newest rows count: older ones are whatever the slot held.
    for (RingRow& row : snapshot.ring) {
        if (row.position < op.at - kWindow || row.position >= op.at) {
            row = RingRow{-1, -1};
        }
    }
    snapshot.hashes.assign(s->hashes.begin(), s->hashes.begin() + op.at);
    return {};
}

Status ScriptedModel::slot_of(uint32_t slot, uint32_t generation, Slot** out) {
    if (slot >= slots_.size() || !slots_[slot].open || slots_[slot].generation != generation) {
        return wrong(step_, format("slot {} generation {} is not open", slot, generation));
    }
    *out = &slots_[slot];
    return {};
}

Status ScriptedModel::run_slot_op(const plan::SlotOp& op) {
    if (op.op == plan::SlotOpKind::open) {
        Slot& s = slots_.at(op.slot);
        if (s.open || op.generation != s.generation + 1) {
            return wrong(step_, format("open of slot {} generation {} after {}", op.slot,
                                       op.generation, s.generation));
        }
        s.open = true;
        s.generation = op.generation;
        s.request = op.request;
        s.length = 0;
        s.first_row = -1;
        s.next_stage = 0;
        s.whole_from = 0;
        s.has_sampler = s.scripted = false;
        std::fill(s.table.begin(), s.table.end(), -1);
        std::fill(s.ring.begin(), s.ring.end(),
                  RingRow{-1, -1});  // poisoned: reading one of these is refused
        return {};
    }
    Slot* s = nullptr;
    TENON_TRY(slot_of(op.slot, op.generation, &s));
    if (op.op == plan::SlotOpKind::close) {
        s->open = false;
    } else if (op.op == plan::SlotOpKind::rewind) {
        s->length = op.length;
    }
    return {};
}

Status ScriptedModel::run_sampler(const plan::Sampler& sampler, const StepPlan& plan) {
    Slot* s = nullptr;
    TENON_TRY(slot_of(sampler.slot, sampler.generation, &s));
    s->sampler = sampler;
    s->has_sampler = true;
    const Span<const plan::Pair> bias = plan.pairs.subspan(sampler.bias_off, sampler.bias_count);
    s->bias.assign(bias.begin(), bias.end());
    const Span<const int32_t> stops = plan.tokens.subspan(sampler.stop_off, sampler.stop_count);
    s->stops.assign(stops.begin(), stops.end());
    std::fill(s->seen.begin(), s->seen.end(), uint16_t{0});
    std::fill(s->in_prompt.begin(), s->in_prompt.end(), uint8_t{0});
    for (const plan::Pair& p : plan.pairs.subspan(sampler.counts_off, sampler.counts_count)) {
        s->seen.at(static_cast<size_t>(p.token)) = static_cast<uint16_t>(p.bits & 0xFFFF);
        s->in_prompt.at(static_cast<size_t>(p.token)) = static_cast<uint8_t>(p.bits >> 31);
    }
    return {};
}

Status ScriptedModel::run_chunk(const plan::Chunk& c, const StepPlan& plan) {
    Slot* s = nullptr;
    TENON_TRY(slot_of(c.slot, c.generation, &s));
    if (c.begin != s->length || c.stage_begin != s->next_stage || c.stage_end > options_.stages ||
        c.end - c.begin > options_.chunk_rows) {
        return wrong(step_,
                     format("chunk of request {}: {} to {}, stages {} to {}, length {}", s->request,
                            c.begin, c.end, c.stage_begin, c.stage_end, s->length));
    }
    ChunkResult result;
    result.slot = c.slot;
    result.generation = c.generation;
    result.stage_end = c.stage_end;
    result.status = status_of(*s, c.end);
    if (c.stage_end == options_.stages) {
        for (int64_t p = c.begin; p < c.end; ++p) {
            TENON_TRY(
                write(c.slot, p, plan.tokens[c.tokens_off + static_cast<uint64_t>(p - c.begin)]));
        }
        s->length = c.end;
        s->next_stage = 0;
        TENON_TRY(run_targets(c, plan));
    } else {
        s->next_stage = c.stage_end;
    }
    results_.chunks.push_back(result);
    return {};
}

/// The tail of a full target computes all layers' state there and for ever after; a chunk before it
/// leaves the upper layers without their rows.
Status ScriptedModel::run_targets(const plan::Chunk& c, const StepPlan& plan) {
    Slot& s = slots_[c.slot];
    int64_t next_full = -1;
    for (const plan::Target& t : plan.targets.subspan(c.target_off, c.target_count)) {
        if (t.kind == plan::CutKind::full && (next_full < 0 || t.at < next_full)) {
            next_full = t.at;
        }
    }
    if (options_.partial_distance > 0) {
        if (next_full < 0) {
            s.whole_from = c.end + options_.partial_distance;
        } else if (next_full < s.whole_from) {
            return wrong(step_, format("request {}: full target at {}, but its cut allows {} on",
                                       s.request, next_full, s.whole_from));
        } else {
            s.whole_from = next_full;
        }
    }
    for (const plan::Target& t : plan.targets.subspan(c.target_off, c.target_count)) {
        if (t.snapshot == 0 || t.at <= c.begin || t.at > c.end) {
            continue;
        }
        if (t.at != c.end) {
            return wrong(step_, format("target at {} inside a chunk that ends at {}", t.at, c.end));
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

Status ScriptedModel::collect(uint64_t step, Stage stage, StepResult* out) noexcept {
    return guard([&]() -> Status {
        const auto at = static_cast<int32_t>(stage);
        if (step != step_ || at < collected_ || collected_ > 2) {
            return wrong(step, format("collect of stage {}; step {} has {} stages collected", at,
                                      step_, collected_));
        }
        constexpr FaultAt kFaults[] = {FaultAt::tokens, FaultAt::drafts, FaultAt::done};
        TENON_TRY(fault(kFaults[at], step));
        if (stage == Stage::tokens && options_.step_us > 0) {
            std::this_thread::sleep_for(
                std::chrono::microseconds(options_.step_us));  // stands for device time
        }
        if (aborted_.load()) {
            return Status(Code::peer, "aborted");
        }
        collected_ = at + 1;
        // Spans of the stage before must not be used any more, so they are spoiled.
        Results& old = given_[(at + 1) % 2];
        std::fill(old.tokens.begin(), old.tokens.end(), -77);
        std::fill(old.windows.begin(), old.windows.end(),
                  WindowResult{77, 77, 77, 77, {}, {}, 0, 0, 0, 0});
        Results& now = given_[at % 2];
        now = results_;
        *out = StepResult{};
        out->step = step;
        out->windows = now.windows;
        out->tokens = now.tokens;
        out->logprobs = now.logprobs;
        if (stage != Stage::tokens) {
            out->drafts = now.drafts;
        }
        if (stage == Stage::done) {
            out->chunks = now.chunks;
            out->jobs = now.jobs;
            out->timing.windows = now.windows.empty() ? 0 : 100;
            out->timing.chunks = now.chunks.empty() ? 0 : 100;
        }
        return {};
    });
}

bool ScriptedModel::ready(uint64_t step, Stage) noexcept {
    return step == step_;
}

Status ScriptedModel::set_masks(uint64_t step, const MaskBatch&) noexcept {
    return wrong(step, "masks are not scripted");
}

Status ScriptedModel::prefetch(Span<const TokenHint>) noexcept {
    return {};
}

}  // namespace tenon::fakes
