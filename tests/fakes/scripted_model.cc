// SPDX-License-Identifier: MIT
// Steps of the scripted model, with its own checks of everything that a plan may get wrong.
#include "tests/fakes/scripted_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

namespace tenon::fakes {
namespace {

constexpr int32_t kVocab = 288;  // a few logits beyond the tokenizer, as real models have
constexpr int32_t kWindow = 8;   // ring rows that a row looks back at
constexpr int32_t kCandidates = 12;
constexpr int32_t kMaxCandidates = 64;

uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

double unit(uint64_t bits) {
    return (static_cast<double>(bits >> 40) + 0.5) / (1 << 24);
}

Status wrong(uint64_t step, std::string_view what) {
    return error(Code::internal, "scripted model, step {}: {}", step, what);
}

}  // namespace

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
    }
    snapshots_.resize(static_cast<size_t>(options.snapshot_cells));
    for (Snapshot& s : snapshots_) {
        s.ring.reserve(kWindow + plan::kMaxWindowRows);
        s.hashes.reserve(static_cast<size_t>(options.context));
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
        TENON_TRY(run_snap_in(op));
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

Status ScriptedModel::run_snap_in(const plan::SnapOp& op) {
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

Status ScriptedModel::cell(const Slot& slot, int64_t position, Cell** out) {
    const int64_t index = position / options_.page_tokens;
    if (position < 0 || index >= static_cast<int64_t>(slot.table.size()) ||
        slot.table[static_cast<size_t>(index)] < 0) {
        return wrong(step_, format("request {} position {} has no page", slot.request, position));
    }
    const int64_t at = int64_t{slot.table[static_cast<size_t>(index)]} * options_.page_tokens +
                       position % options_.page_tokens;
    *out = &cells_[static_cast<size_t>(at)];
    return {};
}

Status ScriptedModel::write(uint32_t index, int64_t position, int32_t token) {
    Slot& s = slots_[index];
    uint64_t before = 0;
    if (position > 0) {
        Cell* previous = nullptr;
        TENON_TRY(cell(s, position - 1, &previous));
        if (previous->position != position - 1 ||
            previous->hash != s.hashes[static_cast<size_t>(position) - 1]) {
            return wrong(step_,
                         format("request {}: the cell before {} holds position {}, perhaps of "
                                "another sequence",
                                s.request, position, previous->position));
        }
        before = previous->hash;
    }
    // Layers look at the window through the ring and at older rows through pages, so both must be
    // right.
    uint64_t seen = 0;
    for (int64_t p = std::max<int64_t>(0, position - kWindow); p < position; ++p) {
        const RingRow& row = s.ring[static_cast<size_t>(p) % s.ring.size()];
        if (row.position != p) {
            return wrong(step_, format("request {}: ring row of position {} holds {}", s.request, p,
                                       row.position));
        }
        seen = mix(seen, static_cast<uint64_t>(row.token));
    }
    for (uint64_t k = 0; k < 3 && position > kWindow; ++k) {
        const auto p = static_cast<int64_t>(mix(before, k) % static_cast<uint64_t>(position));
        Cell* old = nullptr;
        TENON_TRY(cell(s, p, &old));
        if (old->position != p || old->hash != s.hashes[static_cast<size_t>(p)]) {
            return wrong(step_, format("request {}: the cell of {} holds position {}, perhaps of "
                                       "another sequence",
                                       s.request, p, old->position));
        }
        seen = mix(seen, static_cast<uint64_t>(old->token) ^ old->hash);
    }
    Cell* c = nullptr;
    TENON_TRY(cell(s, position, &c));
    *c = Cell{position, token, mix(mix(before, static_cast<uint64_t>(token)), seen)};
    s.hashes[static_cast<size_t>(position)] = c->hash;
    s.ring[static_cast<size_t>(position) % s.ring.size()] = RingRow{position, token};
    return {};
}

Status ScriptedModel::draw(uint32_t index, int64_t position, Span<const int32_t> earlier,
                           Candidate* best, Candidate* all, int32_t* count) {
    const Slot& s = slots_[index];
    Cell* c = nullptr;
    TENON_TRY(cell(s, position, &c));
    int32_t n = 0;
    if (s.scripted) {
        const auto at = static_cast<size_t>(position - s.first_row);
        all[n++] = {at < s.script.size() ? s.script[at] : kEos, 10};
        *best = all[0];
        *count = n;
        return {};
    }
    for (uint64_t k = 0; k < kCandidates; ++k) {
        const auto id = static_cast<int32_t>(32 + mix(c->hash, k) % 95);
        const bool twice =
            std::any_of(all, all + n, [id](const Candidate& a) { return a.id == id; });
        if (!twice) {
            all[n++] = {id, 10 * unit(mix(c->hash, k + 100))};
        }
    }
    if (mix(c->hash, 200) % 1000 < static_cast<uint64_t>(options_.eos_permille)) {
        all[n++] = {kEos, 12};
    }
    for (const plan::Pair& b : s.bias) {
        float add = 0;
        std::memcpy(&add, &b.bits, sizeof add);
        Candidate* found =
            std::find_if(all, all + n, [&](const Candidate& a) { return a.id == b.token; });
        if (found == all + n) {
            if (n == kMaxCandidates) {
                continue;
            }
            *found = {b.token, 0};
            ++n;
        }
        found->score += add;
    }
    *best = {};
    for (int32_t i = 0; i < n; ++i) {
        Candidate& a = all[i];
        const auto id = static_cast<size_t>(a.id);
        const auto drafted = std::count(earlier.begin(), earlier.end(), a.id);
        const double output = s.seen[id] + static_cast<double>(drafted);
        if (output > 0 || s.in_prompt[id] != 0) {
            a.score = a.score > 0 ? a.score / static_cast<double>(s.sampler.repetition)
                                  : a.score * static_cast<double>(s.sampler.repetition);
        }
        a.score -= (output > 0 ? static_cast<double>(s.sampler.presence) : 0) +
                   output * static_cast<double>(s.sampler.frequency);
        double score = a.score;
        if (s.sampler.temperature > 0) {
            const uint64_t key = mix(mix(s.sampler.seed, static_cast<uint64_t>(position + 1)), id);
            score =
                score / static_cast<double>(s.sampler.temperature) - std::log(-std::log(unit(key)));
        }
        if (best->id < 0 || score > best->score || (score == best->score && a.id < best->id)) {
            *best = {a.id, score};
        }
    }
    *count = n;
    return {};
}

void ScriptedModel::start_script(Slot& slot, uint32_t index, int64_t position) {
    if (slot.first_row >= 0) {
        return;
    }
    slot.first_row = position;
    if (!script_) {
        return;
    }
    std::vector<int32_t> prompt;
    for (int64_t p = 0; p <= position; ++p) {
        Cell* c = nullptr;
        if (!cell(slots_[index], p, &c).ok()) {
            return;
        }
        prompt.push_back(c->token);
    }
    slot.script = script_(prompt);
    slot.scripted = !slot.script.empty();
}

Status ScriptedModel::run_window(const plan::Window& w, const StepPlan& plan) {
    Slot* s = nullptr;
    TENON_TRY(slot_of(w.slot, w.generation, &s));
    if (w.position < s->whole_from) {
        return wrong(step_, format("window of request {} at {}, whose state is whole from {} on",
                                   s->request, w.position, s->whole_from));
    }
    if (w.position != s->length || !s->has_sampler || s->next_stage != 0) {
        return wrong(step_, format("window of request {} at {}, length {}", s->request, w.position,
                                   s->length));
    }
    const Span<const int32_t> rows =
        plan.tokens.subspan(w.tokens_off, static_cast<uint64_t>(w.rows));
    WindowResult result;
    result.slot = w.slot;
    result.generation = w.generation;
    result.tokens_off = static_cast<uint32_t>(results_.tokens.size());
    result.logprobs_off = static_cast<uint32_t>(results_.logprobs.size());
    result.top = w.top;
    Candidate all[kMaxCandidates];
    bool going = true;
    for (int32_t r = 0; r < w.rows; ++r) {
        TENON_TRY(write(w.slot, w.position + r, rows[static_cast<uint64_t>(r)]));
        if (r == 0) {
            start_script(*s, w.slot, w.position);
        }
        if (!going) {
            continue;  // rejected rows are computed too; nothing may depend on them
        }
        Candidate best;
        int32_t count = 0;
        TENON_TRY(draw(w.slot, w.position + r, rows.subspan(1, static_cast<uint64_t>(r)), &best,
                       all, &count));
        const bool forced = r < w.forced;
        const int32_t token = forced ? rows[static_cast<uint64_t>(r + 1)] : best.id;
        results_.tokens.push_back(token);
        ++result.emitted;
        if ((w.flags & plan::kWantLogprobs) != 0) {
            std::sort(all, all + count,
                      [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
            results_.logprobs.push_back({token, -static_cast<float>(w.position + r) / 1024});
            for (int32_t i = 0; i < w.top; ++i) {
                results_.logprobs.push_back(
                    {i < count ? all[i].id : i, -static_cast<float>(i + 1)});
            }
        }
        const bool stop = std::find(s->stops.begin(), s->stops.end(), token) != s->stops.end();
        const bool full = result.emitted == w.accept_max;
        result.finish = stop   ? WindowFinish::stop_id
                        : full ? WindowFinish::accept_max
                               : WindowFinish::none;
        going = !stop && !full && r + 1 < w.rows && rows[static_cast<uint64_t>(r + 1)] == token;
    }
    result.accepted = result.emitted - 1;
    for (int32_t i = 0; i < result.emitted; ++i) {
        ++s->seen[static_cast<size_t>(
            results_.tokens[result.tokens_off + static_cast<uint32_t>(i)])];
    }
    s->length += result.emitted;
    result.status = status_of(*s, w.position + w.rows);
    if (break_results_) {
        results_.tokens.push_back(0);
        ++result.emitted;
    }
    results_.windows.push_back(result);
    return {};
}

Status ScriptedModel::run_draft(const plan::Draft& d) {
    Slot* s = nullptr;
    TENON_TRY(slot_of(d.slot, d.generation, &s));
    const auto mine = [&](const WindowResult& w) { return w.slot == d.slot; };
    const auto window = std::find_if(results_.windows.begin(), results_.windows.end(), mine);
    if (window == results_.windows.end() || d.rows > options_.draft_max) {
        return wrong(step_,
                     format("draft of slot {} without a window, or with {} rows", d.slot, d.rows));
    }
    DraftResult result;
    result.slot = d.slot;
    result.generation = d.generation;
    int32_t pending =
        results_.tokens[window->tokens_off + static_cast<uint32_t>(window->emitted) - 1];
    Candidate all[kMaxCandidates];
    for (int32_t i = 0; i < d.rows; ++i) {
        // Rows beyond the length are scratch: the next window writes them again before anything
        // reads them.
        const int64_t position = s->length + i;
        if (position >= options_.context ||
            s->table[static_cast<size_t>(position / options_.page_tokens)] < 0) {
            break;
        }
        TENON_TRY(write(d.slot, position, pending));
        Candidate best;
        int32_t count = 0;
        TENON_TRY(draw(d.slot, position, {}, &best, all, &count));
        const uint64_t luck = mix(mix(step_, d.slot), static_cast<uint64_t>(i) + 7);
        const bool good = luck % 100 < static_cast<uint64_t>(options_.draft_quality);
        pending = good ? best.id : static_cast<int32_t>(32 + luck % 95);
        result.tokens[i] = pending;
        result.confidence[i] = good ? 2.0f : -1.0f;
        result.count = i + 1;
        if (options_.draft_garbage && luck % 11 == 3) {
            result.tokens[i] = luck % 2 == 0 ? -5 : kVocab + 9;
            break;
        }
    }
    results_.drafts.push_back(result);
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
