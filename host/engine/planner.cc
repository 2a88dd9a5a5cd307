// SPDX-License-Identifier: MIT
// Outline and plan records.
#include "host/engine/planner.h"

#include <algorithm>

namespace tenon {

Status BaseOutliner::outline(const SchedulerView& view, StepOutline* out) noexcept {
    *out = StepOutline();
    out->row_cap = view.row_cap;
    const SlotView* oldest = nullptr;
    for (const SlotView& s : view.slots) {
        if (s.state == 2 && s.sink_blocked == 0 && out->decode_count < view.row_cap) {
            out->decode[out->decode_count++] = s.slot;
        }
        if (s.state == 1 && (oldest == nullptr || s.arrival_seq < oldest->arrival_seq)) {
            oldest = &s;
        }
    }
    if (oldest != nullptr) {
        out->slice_slot = static_cast<int32_t>(oldest->slot);
        out->slice_rows = view.chunk_rows;
    }
    return {};
}

bool outline_valid(const SchedulerView& view, const StepOutline& o) {
    const auto state_of = [&](uint32_t slot) -> uint32_t {
        for (const SlotView& s : view.slots) {
            if (s.slot == slot) {
                return s.state;
            }
        }
        return 0;
    };
    if (o.decode_count < 0 ||
        o.decode_count > std::min<int32_t>(view.row_cap, StepOutline::kMaxSlots)) {
        return false;
    }
    for (int32_t i = 0; i < o.decode_count; ++i) {
        if (state_of(o.decode[i]) != 2 ||
            std::find(o.decode, o.decode + i, o.decode[i]) != o.decode + i) {
            return false;
        }
    }
    return o.slice_slot < 0 || (state_of(static_cast<uint32_t>(o.slice_slot)) == 1 &&
                                o.slice_rows >= 1 && o.slice_rows <= view.chunk_rows &&
                                o.slice_stages >= 0 && o.slice_stages <= view.stages);
}

PlanBuilder::PlanBuilder(const PlanLimits& limits) : limits_(limits) {
    const auto slots = static_cast<size_t>(limits.slots);
    const auto table = static_cast<size_t>(limits.context_tokens / limits.page_tokens + 2);
    ops_.reserve(2 * slots);
    maps_.reserve(slots);
    samplers_.reserve(slots);
    windows_.reserve(slots);
    chunks_.reserve(1);
    targets_.reserve(1);
    tokens_.reserve(slots * 17 + static_cast<size_t>(limits.chunk_rows));
    pages_.reserve(slots * table);
}

void PlanBuilder::clear() {
    ops_.clear();
    maps_.clear();
    samplers_.clear();
    windows_.clear();
    chunks_.clear();
    targets_.clear();
    tokens_.clear();
    pages_.clear();
    pairs_.clear();
}

void PlanBuilder::close(uint32_t slot, uint32_t generation) {
    plan::SlotOp op;
    op.slot = slot;
    op.generation = generation;
    op.op = plan::SlotOpKind::close;
    ops_.push_back(op);
}

void PlanBuilder::open(const ReplyStream& s) {
    const RequestData& r = *s.request;
    plan::SlotOp op;
    op.slot = static_cast<uint32_t>(s.slot);
    op.generation = s.generation;
    op.request = r.id;
    ops_.push_back(op);
    plan::PageMap map;
    map.slot = op.slot;
    map.generation = op.generation;
    map.count = static_cast<uint32_t>(s.pages.size());
    map.pages_off = static_cast<uint32_t>(pages_.size());
    maps_.push_back(map);
    pages_.insert(pages_.end(), s.pages.begin(), s.pages.end());
    plan::Sampler sampler;
    sampler.slot = op.slot;
    sampler.generation = op.generation;
    sampler.temperature = r.sampling.temperature;
    sampler.top_p = r.sampling.top_p;
    sampler.min_p = r.sampling.min_p;
    sampler.presence = r.sampling.presence;
    sampler.frequency = r.sampling.frequency;
    sampler.repetition = r.sampling.repetition;
    sampler.top_k = r.sampling.top_k;
    sampler.logprobs = r.sampling.logprobs;
    sampler.seed = s.seed;
    sampler.bias_off = static_cast<uint32_t>(pairs_.size());
    sampler.bias_count = static_cast<uint32_t>(r.bias.size());
    pairs_.insert(pairs_.end(), r.bias.begin(), r.bias.end());
    sampler.counts_off = static_cast<uint32_t>(pairs_.size());
    sampler.counts_count = static_cast<uint32_t>(r.counts.size());
    pairs_.insert(pairs_.end(), r.counts.begin(), r.counts.end());
    sampler.stop_off = static_cast<uint32_t>(tokens_.size());
    sampler.stop_count = static_cast<uint32_t>(r.stop_ids.size());
    tokens_.insert(tokens_.end(), r.stop_ids.begin(), r.stop_ids.end());
    samplers_.push_back(sampler);
}

void PlanBuilder::window(const ReplyStream& s, int64_t accept_max) {
    plan::Window w;
    w.slot = static_cast<uint32_t>(s.slot);
    w.generation = s.generation;
    w.position = s.length;
    w.accept_max = static_cast<int32_t>(std::min<int64_t>(accept_max, 1));
    w.tokens_off = static_cast<uint32_t>(tokens_.size());
    if (s.request->sampling.logprobs >= 0) {
        w.flags |= plan::kWantLogprobs;
        w.top = s.request->sampling.logprobs;
    }
    tokens_.push_back(s.pending);
    windows_.push_back(w);
}

void PlanBuilder::chunk(const ReplyStream& s, int64_t end) {
    plan::Chunk c;
    c.slot = static_cast<uint32_t>(s.slot);
    c.generation = s.generation;
    c.begin = s.length;
    c.end = end;
    c.stage_end = limits_.prefill_stages;
    c.tokens_off = static_cast<uint32_t>(tokens_.size());
    c.target_count = 1;
    const auto* first = s.request->tokens.data();
    tokens_.insert(tokens_.end(), first + c.begin, first + c.end);
    chunks_.push_back(c);
    plan::Target t;
    t.at = end;
    targets_.push_back(t);
}

StepPlan PlanBuilder::plan(uint64_t step) const {
    StepPlan p;
    p.header.step = step;
    p.slot_ops = ops_;
    p.page_maps = maps_;
    p.samplers = samplers_;
    p.windows = windows_;
    p.chunks = chunks_;
    p.targets = targets_;
    p.tokens = tokens_;
    p.pages = pages_;
    p.pairs = pairs_;
    return p;
}

}  // namespace tenon
