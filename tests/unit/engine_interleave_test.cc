// SPDX-License-Identifier: MIT
// Decode rounds between slices of a prompt, and fairness between prompts (engine.md 9: 6, 28, 29;
// serving.md 10: a prompt pass must not block the streams that run).
#include "plugins/overlay_prefill_interleave/interleave.h"
#include "tests/unit/engine_support.h"

namespace tenon::test {
namespace {

using engine::SlotState;
using interleave::Interleave;

constexpr int64_t kChunkUs = 80'000;  // of 32 rows, so 16 rows take 40 ms

Ask sized(int64_t prompt, int64_t max_new) {
    Ask ask;
    ask.prompt.assign(static_cast<size_t>(prompt), 'a');
    ask.desc.max_new_tokens = max_new;
    ask.desc.flags |= kIgnoreEos;
    return ask;
}

/// An engine with the overlay and a measured table, and what its plans held.
class Sliced {
  public:
    explicit Sliced(int64_t budget_us, int64_t fairness_us = 60'000'000, int32_t slots = 4)
        : overlay_(budget_us),
          bench_(options(slots), 0, nullptr, list_, false,
                 [&](engine::PlannerConfig& c) { c.fairness_us = fairness_us; }) {
        const std::vector<int64_t> windows(17, 5000), stages{kChunkUs};
        CostTable table;
        table.window_us = windows;
        table.stage_us = stages;
        bench_.core->set_costs(table);
        bench_.model.on_submit([this](const StepPlan& plan) {
            for (const plan::Chunk& c : plan.chunks) {
                slices.push_back(c.end - c.begin);
                windows_beside.push_back(static_cast<int64_t>(plan.windows.size));
            }
        });
    }
    Bench& bench() { return bench_; }

    std::vector<int64_t> slices, windows_beside;

  private:
    static ScriptedOptions options(int32_t slots) {
        ScriptedOptions o;
        o.slots = slots;
        return o;
    }
    Interleave overlay_;
    ScheduleOverlay* const list_[1] = {&overlay_};
    Bench bench_;
};

TEST(Interleave, A_slice_takes_at_most_the_budget_and_at_least_sixteen_rows) {
    const std::vector<int64_t> stages = {300'000, 500'000};
    SchedulerView view;
    view.chunk_rows = 2048;
    view.stage_us = stages;
    EXPECT_EQ(interleave::slice_rows(view, 2048, 200'000), 512);
    EXPECT_EQ(interleave::slice_rows(view, 100, 200'000), 100);
    EXPECT_EQ(interleave::slice_rows(view, 2048, 1), 16);
    EXPECT_EQ(interleave::slice_rows(view, 2048, 900'000), 2048);
    view.stage_us = {};
    EXPECT_EQ(interleave::slice_rows(view, 2048, 1), 2048) << "nothing was measured";
}

TEST(Interleave, Pitfall_08_Running_streams_get_a_round_beside_every_slice) {
    Sliced s(40'000);
    Ask stream = sized(3, 300), prompt = sized(400, 4);
    s.bench().submit(stream);
    s.bench().submit(stream);
    s.bench().round();
    s.bench().round();
    s.slices.clear();
    s.windows_beside.clear();
    engine::Request* late = s.bench().submit(prompt);
    while (s.bench().result(late).ids.empty()) {
        s.bench().round();
        ASSERT_TRUE(s.bench().status.ok());
    }
    ASSERT_EQ(s.slices.size(), 25u);
    for (size_t i = 0; i < s.slices.size(); ++i) {
        EXPECT_LE(s.slices[i], 16) << "40 ms";
        EXPECT_EQ(s.windows_beside[i], 2);
    }
}

TEST(Interleave, With_a_budget_of_zero_the_prompt_runs_first) {
    Sliced s(0);
    Ask stream = sized(3, 300), prompt = sized(300, 4);
    s.bench().submit(stream);
    s.bench().round();
    s.bench().round();
    s.slices.clear();
    s.windows_beside.clear();
    engine::Request* late = s.bench().submit(prompt);
    while (s.bench().result(late).ids.empty()) {
        s.bench().round();
    }
    ASSERT_EQ(s.slices.size(), 10u);
    for (size_t i = 0; i < s.slices.size(); ++i) {
        EXPECT_GT(s.slices[i], 8);
        EXPECT_EQ(s.windows_beside[i], 0);
    }
    ASSERT_TRUE(s.bench().run());
}

TEST(Interleave, Without_streams_a_prompt_runs_in_whole_chunks) {
    Sliced s(40'000);
    Ask prompt = sized(300, 4);
    s.bench().ask(prompt);
    EXPECT_EQ(s.slices.front(), 32);
}

TEST(Interleave, A_cancelled_prompt_stops_at_the_next_slice) {
    Sliced s(40'000);
    Ask stream = sized(3, 300), prompt = sized(400, 4);
    s.bench().submit(stream);
    engine::Request* late = s.bench().submit(prompt);
    for (int i = 0; i < 5; ++i) {
        s.bench().round();
    }
    const size_t before = s.slices.size();
    late->cancel(CancelReason::client_gone);
    for (int i = 0; i < 10; ++i) {
        s.bench().round();
    }
    EXPECT_EQ(s.slices.size(), before);
    EXPECT_EQ(s.bench().result(late).kind, "client_gone");
}

TEST(Interleave, Ids_do_not_depend_on_the_budget) {
    std::mt19937_64 rng(test_seed());
    std::vector<Ask> asks;
    for (int i = 0; i < 12; ++i) {
        asks.push_back(random_ask(rng));
    }
    std::vector<std::vector<int32_t>> first;
    for (const int64_t budget : {0, 1, 30'000, 50'000, 1'000'000}) {
        Sliced s(budget);
        std::vector<engine::Request*> requests;
        for (Ask& ask : asks) {
            requests.push_back(s.bench().submit(ask));
            s.bench().round();
        }
        ASSERT_TRUE(s.bench().run());
        std::vector<std::vector<int32_t>> ids;
        for (engine::Request* r : requests) {
            ids.push_back(s.bench().result(r).ids);
        }
        if (first.empty()) {
            first = ids;
        }
        EXPECT_EQ(ids, first) << "budget " << budget;
    }
}

TEST(Interleave, No_prompt_waits_over_the_bound_while_later_ones_start) {
    std::mt19937_64 rng(test_seed());
    constexpr int64_t kBound = 3'000'000;
    int64_t overtakes = 0, most = 0;
    for (int round = 0; round < 6; ++round) {
        Sliced s(40'000, kBound, 2);
        Bench& b = s.bench();
        struct Seen {
            engine::Request* request;
            int64_t arrival, started = -1;
        };
        std::vector<Seen> all;
        std::vector<Ask> asks;
        asks.reserve(400);
        for (int step = 0; step < 3000; ++step) {
            if (rng() % 12 == 0 && b.core->active().load() < 60 && asks.size() < 400) {
                asks.push_back(sized(rng() % 5 == 0 ? 400 : 1 + static_cast<int64_t>(rng() % 40),
                                     1 + static_cast<int64_t>(rng() % 6)));
                const int64_t now = b.host.now_us();
                all.push_back({b.submit(asks.back()), now});
            }
            b.round();
            ASSERT_TRUE(b.status.ok());
            b.host.advance(40'000);
            const int64_t now = b.host.now_us();
            for (Seen& seen : all) {
                if (seen.started < 0 && b.result(seen.request).started > 0) {
                    seen.started = now;
                }
            }
        }
        ASSERT_TRUE(b.run());
        for (const Seen& a : all) {
            for (const Seen& later : all) {
                if (later.arrival > a.arrival && later.started >= 0 && later.started < a.started) {
                    ++overtakes;
                    most = std::max(most, later.started - a.arrival);
                }
            }
        }
    }
    EXPECT_GT(overtakes, 20) << "shortest first does happen";
    // A start is seen by the round after it, and one round of the test lasts 41 ms.
    EXPECT_LE(most, kBound + 2 * 41'000);
}

}  // namespace
}  // namespace tenon::test
