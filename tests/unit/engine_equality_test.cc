// SPDX-License-Identifier: MIT
// Token ids depend on the request alone: not on neighbours, chunks, drafts, time or overlays
// (engine.md 9).
#include "tests/unit/engine_support.h"

namespace tenon::test {
namespace {

/// A schedule overlay that chooses at random among what is offered, and sometimes gives nonsense.
class RandomOverlay final : public Implements<RandomOverlay, ScheduleOverlay> {
  public:
    RandomOverlay(uint64_t seed, bool nonsense) : rng_(seed), nonsense_(nonsense) {}

    Status outline(const SchedulerView& view, Outliner& inner, StepOutline* out) noexcept override {
        TENON_TRY(inner.outline(view, out));
        if (nonsense_ && rng_() % 3 == 0) {
            const auto wild = [this] { return static_cast<int32_t>(rng_() % 70) - 10; };
            out->decode_count = wild();
            out->row_cap = wild();
            out->slice_slot = wild();
            out->slice_rows = wild();
            out->slice_stages = wild();
            for (uint32_t& slot : out->decode) {
                slot = static_cast<uint32_t>(rng_() % 9);
            }
            return rng_() % 5 == 0 ? Status(Code::internal, "an overlay's own error") : Status();
        }
        if (out->decode_count > 1 && rng_() % 2 == 0) {
            std::swap(out->decode[0], out->decode[out->decode_count - 1]);
        }
        if (out->decode_count > 0 && out->slice_slot >= 0) {
            switch (rng_() % 3) {
                case 0:
                    out->decode_count = 0;  // prompt first
                    break;
                case 1:
                    out->slice_slot = -1;
                    break;
                default:
                    out->slice_rows =
                        1 + static_cast<int64_t>(rng_() % static_cast<uint64_t>(view.chunk_rows));
            }
        } else if (out->decode_count > 1) {
            out->decode_count -= static_cast<int32_t>(rng_() % 2);
        }
        out->row_cap = std::max(out->decode_count, out->row_cap - static_cast<int32_t>(rng_() % 8));
        return {};
    }

  private:
    std::mt19937_64 rng_;
    const bool nonsense_;
};

std::vector<int32_t> ids_alone(Ask ask, const ScriptedOptions& options) {
    Bench bench(options);
    return bench.ask(ask).ids;
}

/// Runs all asks in one engine, submitted at random moments, and returns the ids of each.
std::vector<std::vector<int32_t>> ids_together(std::vector<Ask>& asks, Bench& bench,
                                               std::mt19937_64& rng) {
    std::vector<engine::Request*> requests;
    for (Ask& ask : asks) {
        requests.push_back(bench.submit(ask));
        for (uint64_t rounds = rng() % 12; rounds > 0; --rounds) {
            bench.round();
            EXPECT_TRUE(bench.status.ok()) << bench.status.message().view();
        }
    }
    EXPECT_TRUE(bench.run());
    std::vector<std::vector<int32_t>> ids;
    for (engine::Request* r : requests) {
        ids.push_back(bench.result(r).ids);
    }
    return ids;
}

TEST(EngineEquality, Ids_alone_equal_ids_beside_others_that_join_and_leave) {
    std::mt19937_64 rng(test_seed());
    for (const int32_t slots : {2, 4, 8}) {
        ScriptedOptions options;
        options.slots = slots;
        for (int round = 0; round < 6; ++round) {
            std::vector<Ask> asks;
            for (int i = 0; i < 3 * slots; ++i) {
                asks.push_back(random_ask(rng));
            }
            Bench bench(options);
            const auto together = ids_together(asks, bench, rng);
            for (size_t i = 0; i < asks.size(); ++i) {
                EXPECT_EQ(together[i], ids_alone(asks[i], options))
                    << "request " << i << ", slots " << slots;
            }
        }
    }
}

TEST(EngineEquality, Drafts_of_any_content_leave_the_ids_as_they_are) {
    std::mt19937_64 rng(test_seed());
    int64_t accepted = 0, drafted = 0;
    for (int round = 0; round < 12; ++round) {
        ScriptedOptions options;
        options.draft_max = 5;
        options.draft_quality = static_cast<int32_t>(rng() % 101);
        options.draft_garbage = round % 2 == 1;
        std::vector<Ask> asks;
        for (int i = 0; i < 10; ++i) {
            asks.push_back(random_ask(rng));
        }
        Bench bench(options, 1 + static_cast<int32_t>(rng() % 5), nullptr, {}, round % 3 == 0);
        const auto together = ids_together(asks, bench, rng);
        accepted += bench.core->stats().accepted_total;
        drafted += bench.core->stats().drafted_total;
        for (size_t i = 0; i < asks.size(); ++i) {
            EXPECT_EQ(together[i], ids_alone(asks[i], options)) << "request " << i;
        }
    }
    EXPECT_GT(drafted, 500);
    EXPECT_GT(accepted, 100);
    EXPECT_GT(drafted - accepted, 100);
}

TEST(EngineEquality, Time_and_overlays_leave_the_ids_as_they_are) {
    std::mt19937_64 rng(test_seed());
    for (int round = 0; round < 16; ++round) {
        ScriptedOptions options;
        options.draft_max = 5;
        std::vector<Ask> asks;
        for (int i = 0; i < 10; ++i) {
            asks.push_back(random_ask(rng));
        }
        RandomOverlay first(rng(), round % 2 == 1), second(rng(), false);
        ScheduleOverlay* const overlays[] = {&first, &second};
        Bench bench(options, round % 4, nullptr, overlays);
        const std::vector<int64_t> costs = {1, static_cast<int64_t>(rng() % 100'000), 7, 9};
        CostTable table;
        table.window_us = costs;
        table.stage_us = costs;
        bench.core->set_costs(table);
        bench.host.advance(static_cast<int64_t>(rng() % 1'000'000'000));
        const auto together = ids_together(asks, bench, rng);
        for (size_t i = 0; i < asks.size(); ++i) {
            EXPECT_EQ(together[i], ids_alone(asks[i], options))
                << "request " << i << " round " << round;
        }
        EXPECT_LE(bench.host.count_lines("overruled"), 1);
        EXPECT_EQ(bench.host.count_lines("overruled"), round % 2);
    }
}

TEST(EngineEquality, Any_chunk_size_gives_bit_equal_state_at_the_last_prompt_row) {
    std::mt19937_64 rng(test_seed());
    Ask ask = random_ask(rng, 1, 20);
    ask.prompt.resize(300);
    for (int32_t& id : ask.prompt) {
        id = static_cast<int32_t>(rng() % 256);
    }
    ask.stops.clear();
    std::vector<int32_t> first_ids;
    std::vector<uint64_t> first_cells;
    for (const int32_t rows : {299, 1, 2, 7, 8, 9, 64, 150, 298}) {
        for (const int32_t stages : {1, 3}) {
            ScriptedOptions options;
            options.chunk_rows = rows;
            options.stages = stages;
            Bench bench(options);
            engine::Request* request = bench.submit(ask);
            while (bench.core->planner().slot(0).length < 299) {
                bench.round();
                ASSERT_TRUE(bench.status.ok()) << bench.status.message().view();
            }
            const std::vector<uint64_t> cells = bench.model.cells(0, 299);
            ASSERT_TRUE(bench.run());
            const std::vector<int32_t> ids = bench.result(request).ids;
            if (first_ids.empty()) {
                first_ids = ids;
                first_cells = cells;
                ASSERT_FALSE(ids.empty());
            }
            EXPECT_EQ(ids, first_ids) << rows << " rows a chunk, " << stages << " stages";
            EXPECT_EQ(cells, first_cells) << rows << " rows a chunk, " << stages << " stages";
        }
    }
}

TEST(EngineEquality, A_slot_used_before_gives_the_same_ids) {
    std::mt19937_64 rng(test_seed());
    ScriptedOptions options;
    options.slots = 1;
    Bench bench(options);
    Ask ask = random_ask(rng);
    const std::vector<int32_t> fresh = bench.ask(ask).ids;
    for (int i = 0; i < 10; ++i) {
        Ask other = random_ask(rng);
        bench.ask(other);
        EXPECT_EQ(bench.ask(ask).ids, fresh);
    }
}

}  // namespace
}  // namespace tenon::test
