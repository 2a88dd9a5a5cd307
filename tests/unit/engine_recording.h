// SPDX-License-Identifier: MIT
// What went into a planner, kept to feed a second one, and the random life that brings it about.
#pragma once

#include <deque>

#include "tests/unit/engine_support.h"

namespace tenon::test {

using engine::FinishInput;
using engine::OutlineInput;
using engine::PlannerEvent;
using engine::PlannerEventKind;
using engine::SequenceSpec;

/// Deep copies of everything that went into a planner, and the plans that came out.
class Recorder final : public engine::PlannerRecorder {
  public:
    struct Step {
        OutlineInput outline;
        std::vector<PlannerEvent> events;
        std::vector<engine::SpillEvent> spill;
        FinishInput finish;
        std::vector<engine::SlotOutcome> outcomes;
        std::deque<std::vector<int32_t>> tokens;
        std::vector<DraftResult> drafts;
        std::vector<ChunkResult> chunks;
        std::vector<JobResult> jobs;
        std::vector<uint8_t> plan;
    };
    struct Spec {
        SequenceSpec spec;
        std::vector<int32_t> prompt, stops;
        std::vector<plan::Pair> bias, counts;
        std::vector<Border> borders;
        std::vector<engine::ImageSpan> images;
    };

    void on_outline(const OutlineInput& input) override {
        Step& s = steps.emplace_back();
        s.outline = input;
        s.events.assign(input.events.begin(), input.events.end());
        for (PlannerEvent& e : s.events) {
            if (e.kind == PlannerEventKind::submit) {
                e.spec = keep(*e.spec);
            }
        }
        s.outline.events = s.events;
        s.spill.assign(input.spill.begin(), input.spill.end());
        s.outline.spill = s.spill;
    }
    void on_finish(const FinishInput& input) override {
        Step& s = steps.back();
        s.finish = input;
        s.outcomes.assign(input.outcomes.begin(), input.outcomes.end());
        for (engine::SlotOutcome& o : s.outcomes) {
            o.tokens = s.tokens.emplace_back(o.tokens.begin(), o.tokens.end());
        }
        s.drafts.assign(input.drafts.begin(), input.drafts.end());
        s.chunks.assign(input.chunks.begin(), input.chunks.end());
        s.finish.outcomes = s.outcomes;
        s.finish.drafts = s.drafts;
        s.finish.chunks = s.chunks;
        s.jobs.assign(input.jobs.begin(), input.jobs.end());
        s.finish.jobs = s.jobs;
    }
    void on_plan(Span<const uint8_t> message) override {
        steps.back().plan.assign(message.begin(), message.end());
    }

    std::deque<Step> steps;

  private:
    const SequenceSpec* keep(const SequenceSpec& s) {
        Spec& k = specs_.emplace_back();
        k.prompt.assign(s.prompt.begin(), s.prompt.end());
        k.stops.assign(s.stops.begin(), s.stops.end());
        k.bias.assign(s.bias.begin(), s.bias.end());
        k.counts.assign(s.counts.begin(), s.counts.end());
        k.borders.assign(s.borders.begin(), s.borders.end());
        k.images.assign(s.images.begin(), s.images.end());
        k.spec = s;
        k.spec.borders = k.borders;
        k.spec.images = k.images;
        k.spec.prompt = k.prompt;
        k.spec.stops = k.stops;
        k.spec.bias = k.bias;
        k.spec.counts = k.counts;
        return &k.spec;
    }
    std::deque<Spec> specs_;
};

/// Submits, cancels, blocks, moves the clock and the memory level at random.
inline void live_at_random(Bench& bench, std::mt19937_64& rng, int events) {
    std::vector<engine::Request*> requests;
    for (int i = 0; i < events; ++i) {
        switch (rng() % 8) {
            case 0:
            case 1:
            case 2: {
                if (bench.core->active().load() < 100) {
                    Ask ask = random_ask(rng);
                    ask.desc.replies = 1 + static_cast<int32_t>(rng() % 3);
                    ask.desc.deadline_us =
                        rng() % 4 == 0 ? static_cast<int64_t>(rng() % 40'000) + 1 : 0;
                    requests.push_back(bench.submit(ask));
                }
                break;
            }
            case 3:
                if (!requests.empty()) {
                    requests[rng() % requests.size()]->cancel(CancelReason::client_gone);
                }
                break;
            case 4:
                bench.core->set_memory_level(rng() % 12 == 0 ? static_cast<uint32_t>(rng() % 3)
                                                             : 0);
                break;
            case 5:
                bench.host.advance(static_cast<int64_t>(rng() % 20'000));
                break;
            default:
                bench.round();
                ASSERT_TRUE(bench.status.ok()) << bench.status.message().view();
        }
        const int64_t used =
            bench.core->planner().pages().total() - bench.core->planner().pages().free();
        ASSERT_GE(used, bench.core->mirror().pages_in_use() > used ? used : 0);
    }
    bench.core->set_memory_level(0);
    ASSERT_TRUE(bench.run());
}

}  // namespace tenon::test
