// SPDX-License-Identifier: MIT
// Random plans and results that pass every stateless check, with everything that they can hold.
#pragma once

#include <random>
#include <vector>

#include "tenon/plan_check.h"

namespace tenon::test {

class RandomPlan {
  public:
    explicit RandomPlan(std::mt19937_64& rng) : rng_(rng) {
        fill(&tokens_, 64 + below(200));
        fill(&pages_, 1 + below(60));
        for (uint64_t i = 1 + below(40); i > 0; --i) {
            pairs_.push_back({static_cast<int32_t>(below(1000)), static_cast<uint32_t>(rng_())});
        }
        for (uint64_t i = below(50); i > 0; --i) {
            bytes_.push_back(static_cast<uint8_t>(rng_()));
        }
        for (uint64_t i = below(30); i > 0; --i) {
            note_.push_back(static_cast<uint8_t>(rng_()));
        }
        slots();
        rows();
        media();
        plan.header.step = 1 + rng_() % 1000;
        plan.header.group_epoch = rng_();
        plan.header.chain = rng_();
        plan.header.chain_step = rng_();
        plan.header.flags = below(8);
        plan.tokens = tokens_;
        plan.pages = pages_;
        plan.pairs = pairs_;
        plan.bytes = bytes_;
        plan.note = note_;
    }
    RandomPlan(const RandomPlan&) = delete;

    StepPlan plan;

  private:
    uint64_t below(uint64_t n) { return rng_() % n; }
    int32_t small(uint64_t n) { return static_cast<int32_t>(below(n)); }
    uint32_t word() { return static_cast<uint32_t>(rng_()); }
    void fill(std::vector<int32_t>* to, uint64_t n) {
        to->resize(n);
        for (int32_t& v : *to) {
            v = small(1 << 20);
        }
    }
    template <class T>
    std::vector<T>& some(std::vector<T>& list, uint64_t most) {
        list.resize(below(3) == 0 ? 0 : below(most + 1));
        return list;
    }

    void slots() {
        for (plan::SlotOp& o : some(ops_, 6)) {
            constexpr plan::SlotOpKind kKinds[] = {plan::SlotOpKind::open, plan::SlotOpKind::close,
                                                   plan::SlotOpKind::rewind,
                                                   plan::SlotOpKind::abandon_chunk};
            o = {word(), word(), kKinds[below(4)], 0, small(1 << 20), rng_()};
        }
        for (plan::PageMap& m : some(maps_, 5)) {
            m.slot = word();
            m.generation = word();
            m.first_index = word();
            m.pages_off = static_cast<uint32_t>(below(pages_.size()));
            m.count = static_cast<uint32_t>(1 + below(pages_.size() - m.pages_off));
        }
        for (plan::PageCopy& c : some(copies_, 4)) {
            c = {small(100), 100 + small(100), 1 + small(256), 0};
        }
        for (plan::Sampler& s : some(samplers_, 5)) {
            s.slot = word();
            s.generation = word();
            s.temperature = static_cast<float>(below(300)) / 100;
            s.top_p = static_cast<float>(1 + below(100)) / 100;
            s.min_p = static_cast<float>(below(99)) / 100;
            s.repetition = static_cast<float>(1 + below(200)) / 100;
            s.top_k = small(100);
            s.logprobs = small(22) - 1;
            s.seed = rng_();
            s.bias_count = static_cast<uint32_t>(below(pairs_.size()));
            s.stop_count = static_cast<uint32_t>(below(17));
            s.stop_off = static_cast<uint32_t>(below(40));
            s.counts_off = static_cast<uint32_t>(pairs_.size());
        }
        snaps(&in_, {plan::SnapOpKind::restore, plan::SnapOpKind::import, plan::SnapOpKind::drop});
        snaps(&out_, {plan::SnapOpKind::save, plan::SnapOpKind::exports, plan::SnapOpKind::save});
        plan.slot_ops = ops_;
        plan.page_maps = maps_;
        plan.page_copies = copies_;
        plan.samplers = samplers_;
        plan.snap_in = in_;
        plan.snap_out = out_;
    }
    void snaps(std::vector<plan::SnapOp>* list, std::initializer_list<plan::SnapOpKind> kinds) {
        for (plan::SnapOp& s : some(*list, 3)) {
            s.op = kinds.begin()[below(3)];
            s.kind = static_cast<plan::CutKind>(1 + below(3));
            s.snapshot = word();
            s.slot = word();
            s.generation = word();
            s.at = small(1 << 20);
            s.job = rng_();
            s.pages_count = static_cast<uint32_t>(below(pages_.size() + 1));
        }
    }
    void rows() {
        for (plan::Window& w : some(windows_, 20)) {
            w.slot = word();
            w.generation = word();
            w.position = small(1 << 20);
            w.rows = 1 + small(16);
            w.forced = small(static_cast<uint64_t>(w.rows));
            w.source = word() % 2;
            w.flags = word() % 8;
            w.tokens_off = static_cast<uint32_t>(below(tokens_.size() - 16));
            w.top = small(21);
            w.accept_max = 1 + small(16);
        }
        for (plan::Draft& d : some(drafts_, 6)) {
            d = {word(), word(), 1 + small(15), 0};
        }
        for (plan::Target& t : some(targets_, 4)) {
            t.at = small(1 << 20);
            t.outputs = small(static_cast<uint64_t>(t.at) + 1);
            t.snapshot = word();
            t.kind = static_cast<plan::CutKind>(1 + below(3));
        }
        for (plan::ImageRun& r : some(images_, 3)) {
            r.position = small(1 << 20);
            r.rows = 1 + small(100);
            r.feature = word();
            r.feature_row = small(100);
        }
        for (plan::Chunk& c : some(chunks_, 2)) {
            c.slot = word();
            c.generation = word();
            c.begin = small(1 << 20);
            c.end = c.begin + 1 + small(tokens_.size());
            c.stage_begin = small(4);
            c.stage_end = c.stage_begin + 1 + small(4);
            c.flags = word() % 2;
            c.target_count = static_cast<uint32_t>(below(targets_.size() + 1));
            c.image_count = static_cast<uint32_t>(below(images_.size() + 1));
        }
        for (plan::Prefetch& p : some(prefetches_, 4)) {
            p = {word(), word(), 5, 5 + small(100)};
        }
        plan.windows = windows_;
        plan.drafts = drafts_;
        plan.targets = targets_;
        plan.image_runs = images_;
        plan.chunks = chunks_;
        plan.prefetches = prefetches_;
    }
    void media() {
        for (plan::Feature& f : some(features_, 3)) {
            f.op = 1 + word() % 2;
            f.feature = word();
            f.rows = small(1000);
            f.key[below(32)] = 7;
        }
        for (plan::Encode& e : some(encodes_, 2)) {
            e.feature = word();
            e.grid_rows = 1 + small(50);
            e.grid_cols = 1 + small(50);
            e.stage_end = 1 + small(5);
        }
        plan.features = features_;
        plan.encodes = encodes_;
    }

    std::mt19937_64& rng_;
    std::vector<plan::SlotOp> ops_;
    std::vector<plan::PageMap> maps_;
    std::vector<plan::PageCopy> copies_;
    std::vector<plan::SnapOp> in_, out_;
    std::vector<plan::Sampler> samplers_;
    std::vector<plan::Feature> features_;
    std::vector<plan::Window> windows_;
    std::vector<plan::Draft> drafts_;
    std::vector<plan::Chunk> chunks_;
    std::vector<plan::Target> targets_;
    std::vector<plan::ImageRun> images_;
    std::vector<plan::Encode> encodes_;
    std::vector<plan::Prefetch> prefetches_;
    std::vector<int32_t> tokens_, pages_;
    std::vector<plan::Pair> pairs_;
    std::vector<uint8_t> bytes_, note_;
};

class RandomResult {
  public:
    explicit RandomResult(std::mt19937_64& rng) {
        const auto below = [&rng](uint64_t n) { return static_cast<uint32_t>(rng() % n); };
        for (uint32_t i = below(20); i > 0; --i) {
            WindowResult w;
            w.slot = below(48);
            w.generation = below(1000);
            w.emitted = static_cast<int32_t>(1 + below(16));
            w.accepted = w.emitted - 1;
            w.finish = static_cast<WindowFinish>(below(3));
            w.tokens_off = static_cast<uint32_t>(tokens_.size());
            w.logprobs_off = static_cast<uint32_t>(logprobs_.size());
            w.top = static_cast<int32_t>(below(4));
            for (int32_t t = 0; t < w.emitted; ++t) {
                tokens_.push_back(static_cast<int32_t>(below(1000)));
                for (int32_t k = 0; w.top > 0 && k <= w.top; ++k) {
                    logprobs_.push_back(
                        {static_cast<int32_t>(below(1000)), -static_cast<float>(k)});
                }
            }
            windows_.push_back(w);
        }
        drafts_.resize(below(5));
        for (DraftResult& d : drafts_) {
            d.slot = below(48);
            d.count = static_cast<int32_t>(below(16));
            d.tokens[3] = 17;
            d.confidence[2] = 0.5f;
        }
        chunks_.resize(below(3));
        for (ChunkResult& c : chunks_) {
            c.stage_end = static_cast<int32_t>(below(5));
            c.status = static_cast<RowStatus>(below(3));
        }
        jobs_.resize(below(3));
        for (JobResult& j : jobs_) {
            j.job = rng();
            j.code = below(12);
        }
        result.step = rng();
        result.probe = rng();
        result.timing = {1, 2, 3, 4, static_cast<int64_t>(below(1000))};
        result.windows = windows_;
        result.drafts = drafts_;
        result.chunks = chunks_;
        result.jobs = jobs_;
        result.tokens = tokens_;
        result.logprobs = logprobs_;
    }
    RandomResult(const RandomResult&) = delete;

    StepResult result;

  private:
    std::vector<WindowResult> windows_;
    std::vector<DraftResult> drafts_;
    std::vector<ChunkResult> chunks_;
    std::vector<JobResult> jobs_;
    std::vector<int32_t> tokens_;
    std::vector<TokenLogprob> logprobs_;
};

}  // namespace tenon::test
