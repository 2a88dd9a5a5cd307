// SPDX-License-Identifier: MIT
// Step plans by hand: collects records and hands out the view that Model::submit takes.
#pragma once

#include "tenon/plan.h"

namespace tenon::testing {

class PlanBuilder {
  public:
    explicit PlanBuilder(uint64_t step) : step_(step) {}

    PlanBuilder& open(uint32_t slot, uint32_t generation) {
        slot_ops_.push_back({slot, generation, plan::SlotOpKind::open, 0, 0, 0});
        return *this;
    }
    PlanBuilder& close(uint32_t slot, uint32_t generation) {
        slot_ops_.push_back({slot, generation, plan::SlotOpKind::close, 0, 0, 0});
        return *this;
    }
    PlanBuilder& rewind(uint32_t slot, uint32_t generation, int64_t length) {
        slot_ops_.push_back({slot, generation, plan::SlotOpKind::rewind, 0, length, 0});
        return *this;
    }
    PlanBuilder& map(uint32_t slot, uint32_t generation, int64_t first,
                     const std::vector<int32_t>& pages) {
        maps_.push_back({slot, generation, static_cast<uint32_t>(first),
                         static_cast<uint32_t>(pages.size()), static_cast<uint32_t>(pages_.size()),
                         0});
        pages_.insert(pages_.end(), pages.begin(), pages.end());
        return *this;
    }
    PlanBuilder& copy_page(int32_t src, int32_t dst, int32_t tokens) {
        copies_.push_back({src, dst, tokens, 0});
        return *this;
    }
    /// Spans of the record are filled from the vectors.
    PlanBuilder& sampler(plan::Sampler s, const std::vector<plan::Pair>& bias = {},
                         const std::vector<int32_t>& stops = {},
                         const std::vector<plan::Pair>& counts = {}) {
        s.bias_off = static_cast<uint32_t>(pairs_.size());
        s.bias_count = static_cast<uint32_t>(bias.size());
        pairs_.insert(pairs_.end(), bias.begin(), bias.end());
        s.counts_off = static_cast<uint32_t>(pairs_.size());
        s.counts_count = static_cast<uint32_t>(counts.size());
        pairs_.insert(pairs_.end(), counts.begin(), counts.end());
        s.stop_off = static_cast<uint32_t>(tokens_.size());
        s.stop_count = static_cast<uint32_t>(stops.size());
        tokens_.insert(tokens_.end(), stops.begin(), stops.end());
        samplers_.push_back(s);
        return *this;
    }
    /// `rows` and `tokens_off` follow from the tokens.
    PlanBuilder& window(plan::Window w, const std::vector<int32_t>& tokens) {
        w.rows = static_cast<int32_t>(tokens.size());
        w.tokens_off = static_cast<uint32_t>(tokens_.size());
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
        windows_.push_back(w);
        return *this;
    }
    PlanBuilder& draft(uint32_t slot, uint32_t generation) {
        drafts_.push_back({slot, generation, 0, 0});
        return *this;
    }
    /// One chunk; `outputs` > 0: a target at its end that wants logits of that many rows.
    PlanBuilder& chunk(uint32_t slot, uint32_t generation, int64_t begin,
                       const std::vector<int32_t>& tokens, int32_t outputs = 0) {
        plan::Chunk c;
        c.slot = slot;
        c.generation = generation;
        c.begin = begin;
        c.end = begin + static_cast<int64_t>(tokens.size());
        c.tokens_off = static_cast<uint32_t>(tokens_.size());
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
        c.target_off = static_cast<uint32_t>(targets_.size());
        c.target_count = 1;
        plan::Target t;
        t.at = c.end;
        t.outputs = outputs;
        targets_.push_back(t);
        chunks_.push_back(c);
        return *this;
    }
    /// One chunk without targets.
    PlanBuilder& bare_chunk(uint32_t slot, uint32_t generation, int64_t begin,
                            const std::vector<int32_t>& tokens) {
        chunk(slot, generation, begin, tokens);
        targets_.pop_back();
        chunks_.back().target_count = 0;
        return *this;
    }
    PlanBuilder& bounded() {
        chunks_.back().flags |= plan::kBoundedReplay;
        return *this;
    }
    /// A further target of the last chunk.
    PlanBuilder& target(plan::Target t) {
        targets_.push_back(t);
        ++chunks_.back().target_count;
        return *this;
    }
    /// The last chunk's own target (at its end) saves a cut.
    PlanBuilder& save_target(uint32_t snapshot, plan::CutKind kind = plan::CutKind::full) {
        targets_.back().snapshot = snapshot;
        targets_.back().kind = kind;
        return *this;
    }
    PlanBuilder& restore(uint32_t snapshot, uint32_t slot, uint32_t generation, int64_t at,
                         plan::CutKind kind = plan::CutKind::full) {
        snap_in_.push_back(snap(plan::SnapOpKind::restore, kind, snapshot, slot, generation, at));
        return *this;
    }
    PlanBuilder& drop(uint32_t snapshot, int64_t at, plan::CutKind kind = plan::CutKind::full) {
        snap_in_.push_back(snap(plan::SnapOpKind::drop, kind, snapshot, 0, 0, at));
        return *this;
    }
    PlanBuilder& save(uint32_t snapshot, uint32_t slot, uint32_t generation, int64_t at,
                      plan::CutKind kind = plan::CutKind::full) {
        snap_out_.push_back(snap(plan::SnapOpKind::save, kind, snapshot, slot, generation, at));
        return *this;
    }
    /// Tokens of the chunk that may come next.
    PlanBuilder& prefetch(uint32_t slot, uint32_t generation, int64_t begin,
                          const std::vector<int32_t>& tokens) {
        prefetches_.push_back(
            {slot, generation, begin, begin + static_cast<int64_t>(tokens.size())});
        guessed_.insert(guessed_.end(), tokens.begin(), tokens.end());
        return *this;
    }
    /// The last `staged` of these pages from the area of `job`, and the snapshot unless it is 0.
    PlanBuilder& import(uint64_t job, uint32_t snapshot, int64_t at,
                        const std::vector<int32_t>& pages, size_t staged) {
        snap_in_.push_back(piece(plan::SnapOpKind::import, job, snapshot, at, pages, staged));
        return *this;
    }
    PlanBuilder& exports(uint64_t job, uint32_t snapshot, int64_t at,
                         const std::vector<int32_t>& pages) {
        snap_out_.push_back(
            piece(plan::SnapOpKind::exports, job, snapshot, at, pages, pages.size()));
        return *this;
    }
    PlanBuilder& flags(uint64_t value) {
        flags_ = value;
        return *this;
    }

    /// Valid until this object changes or ends.
    StepPlan view() {
        // Guessed tokens are the last of the pool.
        tokens_.insert(tokens_.end(), guessed_.begin(), guessed_.end());
        guessed_.clear();
        StepPlan p;
        p.header.step = step_;
        p.header.flags = flags_;
        p.slot_ops = slot_ops_;
        p.page_maps = maps_;
        p.page_copies = copies_;
        p.snap_in = snap_in_;
        p.snap_out = snap_out_;
        p.samplers = samplers_;
        p.windows = windows_;
        p.drafts = drafts_;
        p.chunks = chunks_;
        p.targets = targets_;
        p.prefetches = prefetches_;
        p.tokens = tokens_;
        p.pages = pages_;
        p.pairs = pairs_;
        return p;
    }

  private:
    static plan::SnapOp snap(plan::SnapOpKind op, plan::CutKind kind, uint32_t snapshot,
                             uint32_t slot, uint32_t generation, int64_t at) {
        plan::SnapOp s;
        s.op = op;
        s.kind = kind;
        s.snapshot = snapshot;
        s.slot = slot;
        s.generation = generation;
        s.at = at;
        return s;
    }

    plan::SnapOp piece(plan::SnapOpKind op, uint64_t job, uint32_t snapshot, int64_t at,
                       const std::vector<int32_t>& pages, size_t staged) {
        plan::SnapOp s = snap(op, plan::CutKind::full, snapshot, 0, 0, at);
        s.job = job;
        s.pages_off = static_cast<uint32_t>(pages_.size());
        s.pages_count = static_cast<uint32_t>(pages.size());
        s.staged = static_cast<uint32_t>(staged);
        pages_.insert(pages_.end(), pages.begin(), pages.end());
        return s;
    }

    uint64_t step_;
    uint64_t flags_ = 0;
    std::vector<plan::SlotOp> slot_ops_;
    std::vector<plan::PageMap> maps_;
    std::vector<plan::PageCopy> copies_;
    std::vector<plan::SnapOp> snap_in_, snap_out_;
    std::vector<plan::Sampler> samplers_;
    std::vector<plan::Window> windows_;
    std::vector<plan::Draft> drafts_;
    std::vector<plan::Chunk> chunks_;
    std::vector<plan::Target> targets_;
    std::vector<plan::Prefetch> prefetches_;
    std::vector<int32_t> tokens_, guessed_, pages_;
    std::vector<plan::Pair> pairs_;
};

}  // namespace tenon::testing
