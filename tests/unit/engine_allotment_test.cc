// SPDX-License-Identifier: MIT
// Rows by marginal gain, copies from a stream's own text, and how far drafts are believed
// (engine.md 9: 38).
#include "host/engine/allotment.h"
#include "host/engine/draft_policy.h"
#include "host/engine/token_history.h"
#include "tests/unit/engine_support.h"

namespace tenon::test {
namespace {

using engine::Allotment;
using engine::DraftPolicy;
using engine::DraftRecord;
using engine::DraftSource;
using engine::Offer;
using engine::StepCosts;
using engine::TokenHistory;

StepCosts make_costs(const std::vector<int64_t>& windows, const std::vector<int64_t>& drafts = {}) {
    CostTable table;
    table.window_us = windows;
    table.draft_us = drafts;
    StepCosts costs;
    costs.set(table);
    return costs;
}

/// The best tokens per µs over all ways to hand out rows.
double best_rate(const std::vector<Offer>& offers, const StepCosts& costs, int32_t cap,
                 double other, size_t at = 0, int32_t rows = 0, double expected = 0) {
    if (at == offers.size()) {
        return rows > cap ? 0 : expected / (costs.window_us(rows) + other);
    }
    double best = 0;
    double tokens = 1;
    for (int32_t k = 0; k <= offers[at].count; ++k) {
        best = std::max(
            best, best_rate(offers, costs, cap, other, at + 1, rows + 1 + k, expected + tokens));
        tokens += k < offers[at].count ? offers[at].survive[k] : 0;
    }
    return best;
}

TEST(Allotment, Equals_brute_force_over_all_ways_for_random_costs) {
    std::mt19937_64 rng(test_seed());
    const auto unit = [&rng] { return static_cast<double>(rng() % 1000) / 1000; };
    int64_t drafted = 0;
    for (int round = 0; round < 3000; ++round) {
        std::vector<int64_t> table{0};
        for (int rows = 1; rows <= 24; ++rows) {
            // Monotone, not convex: steps of very different height.
            table.push_back(table.back() + static_cast<int64_t>(rng() % (rows == 1 ? 3000 : 900)) +
                            1);
        }
        const StepCosts costs = make_costs(table);
        std::vector<Offer> offers(1 + rng() % 4);
        for (Offer& o : offers) {
            o.count = static_cast<int32_t>(rng() % 6);
            double survive = 1;
            for (int32_t i = 0; i < o.count; ++i) {
                survive *= rng() % 8 == 0 ? 1.0 : unit();
                o.survive[i] = survive;
            }
        }
        const auto cap = static_cast<int32_t>(offers.size() + rng() % 20);
        const double other = static_cast<double>(rng() % 3000);
        int32_t rows[8];
        const Allotment all = engine::allot(offers, costs, cap, other, rows);
        double expected = 0;
        int32_t total = 0;
        for (size_t i = 0; i < offers.size(); ++i) {
            ASSERT_GE(rows[i], 1);
            ASSERT_LE(rows[i], 1 + offers[i].count);
            total += rows[i];
            expected += 1;
            for (int32_t k = 0; k + 1 < rows[i]; ++k) {
                expected += offers[i].survive[k];
            }
        }
        drafted += total - static_cast<int64_t>(offers.size());
        ASSERT_LE(total, cap);
        ASSERT_EQ(total, all.rows);
        ASSERT_NEAR(expected, all.expected, 1e-9);
        const double best = best_rate(offers, costs, cap, other);
        // Sums of at most 24 terms in different orders: relative difference below 24 ulp.
        ASSERT_NEAR(all.expected / all.us, best, best * 24 * 2.3e-16) << "round " << round;
    }
    EXPECT_GT(drafted, 3000);
}

TEST(Allotment, A_draft_that_costs_more_than_it_brings_gets_no_row) {
    const StepCosts dear = make_costs({0, 100, 200, 300});
    const StepCosts cheap = make_costs({0, 100, 101, 102});
    Offer offer;
    offer.count = 2;
    offer.survive[0] = 0.9;
    offer.survive[1] = 0.8;
    int32_t rows[1];
    EXPECT_EQ(engine::allot({&offer, 1}, dear, 16, 0, rows).rows, 1);
    EXPECT_EQ(engine::allot({&offer, 1}, cheap, 16, 0, rows).rows, 3);
    EXPECT_EQ(engine::allot({&offer, 1}, cheap, 2, 0, rows).rows, 2) << "row cap";
    EXPECT_EQ(engine::allot({&offer, 1}, dear, 16, 1000, rows).rows, 3)
        << "beside a dear prompt slice a row is cheap";
}

TEST(StepCosts, Follows_observations_within_half_of_what_was_measured) {
    StepCosts costs = make_costs({0, 100, 120}, {0, 50});
    StepTiming slow;
    slow.windows = 100'000;
    slow.drafts = 60;
    for (int i = 0; i < 1000; ++i) {
        costs.observe(1, 1, 0, 256, slow);
    }
    EXPECT_NEAR(costs.window_us(1), 150, 0.1);
    EXPECT_NEAR(costs.window_us(2), 180, 0.1);
    EXPECT_NEAR(costs.draft_us(1), 60, 0.1);
    EXPECT_NEAR(costs.window_us(4), 1.5 * 160, 0.1) << "beyond the table: its last slope";
    costs.publish();
    EXPECT_NEAR(static_cast<double>(costs.window_table()[1]), 150, 1);
}

/// Straight search for what `propose` promises: the newest earlier place whose 4 tokens agree.
std::vector<int32_t> search(const std::vector<int32_t>& text, int32_t most) {
    const auto n = static_cast<int64_t>(text.size());
    for (int64_t end = n - 2; end >= 3; --end) {
        if (std::equal(text.end() - 4, text.end(), text.begin() + end - 3)) {
            std::vector<int32_t> out;
            for (int32_t i = 0; i < most; ++i) {
                const int64_t period = n - 1 - end;
                out.push_back(i < period ? text[static_cast<size_t>(end + 1 + i)]
                                         : out[static_cast<size_t>(i - period)]);
            }
            return out;
        }
    }
    return {};
}

TEST(TokenHistory, Proposes_what_followed_the_same_words_before) {
    std::mt19937_64 rng(test_seed());
    int64_t found = 0;
    for (int round = 0; round < 200; ++round) {
        std::vector<int32_t> text;
        const auto words = static_cast<int32_t>(2 + rng() % 6);
        const auto add = [&](uint64_t n) {
            std::vector<int32_t> run;
            while (run.size() < n) {
                run.push_back(static_cast<int32_t>(rng()) % words);
            }
            text.insert(text.end(), run.begin(), run.end());
            return run;
        };
        TokenHistory history(4096);
        history.open(add(1 + rng() % 100));
        history.index_some(1 << 20);
        for (int step = 0; step < 60; ++step) {
            const auto run = add(1 + rng() % 6);
            history.append(run);
            int32_t drafts[15];
            const TokenHistory::Match match = history.propose(15, drafts);
            const std::vector<int32_t> expected = search(text, 15);
            // Different 4-grams may share a bucket, so a place can be lost, but never be wrong.
            if (match.count > 0) {
                ++found;
                EXPECT_GE(match.length, 4);
                EXPECT_EQ(std::vector<int32_t>(drafts, drafts + match.count), expected);
            }
        }
    }
    EXPECT_GT(found, 2000);
}

TEST(TokenHistory, A_prompt_that_is_not_indexed_yet_gives_nothing) {
    const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4};
    TokenHistory history(1 << 14);
    int32_t drafts[3];
    std::vector<int32_t> longer(1000, 9);
    longer.insert(longer.end(), prompt.begin(), prompt.end());
    history.open(longer);
    EXPECT_EQ(history.propose(3, drafts).count, 0);
    history.index_some(1 << 20);
    EXPECT_EQ(history.propose(3, drafts).count, 3);
    EXPECT_EQ(drafts[0], 5);
}

TEST(DraftPolicy, Belief_moves_from_the_drafters_word_to_what_was_accepted) {
    DraftPolicy policy;
    float raw = 0;
    const double before = policy.believe(2.0f, false, &raw);
    EXPECT_NEAR(before, 0.8808, 1e-3);
    for (int i = 0; i < 400; ++i) {
        DraftRecord record;
        record.source = DraftSource::model;
        record.offered = 1;
        record.raw[0] = raw;
        policy.observe(&record, i % 4 == 0 ? 1 : 0, false);
    }
    EXPECT_NEAR(policy.believe(2.0f, false, &raw), 0.25, 0.05);
    EXPECT_NEAR(policy.believe(2.0f, true, &raw), before, 1e-9) << "sampled texts count apart";
    EXPECT_GE(policy.believe(std::numeric_limits<float>::quiet_NaN(), false, &raw), 0);
}

TEST(DraftPolicy, Passes_that_bring_nothing_end_and_are_tried_again) {
    const StepCosts costs = make_costs({0, 100, 150, 200, 250, 300, 350}, {0, 80});
    DraftPolicy policy;
    DraftRecord record;
    DraftRecord* const records[] = {&record};
    int32_t passes = 0, last = 0;
    for (int round = 0; round < 1000; ++round) {
        bool wanted = false;
        policy.choose(records, 1, costs, 16, &wanted);
        if (wanted) {
            policy.note_gain(&record, 0.05, 0);
            ++passes;
            last = round;
        }
    }
    EXPECT_LT(passes, 60);
    EXPECT_GT(last, 900) << "the text may have changed";
    for (int round = 0; round < 300; ++round) {
        bool wanted = false;
        policy.choose(records, 1, costs, 16, &wanted);
        if (wanted) {
            policy.note_gain(&record, 4, 5);
        }
        passes = round < 260 ? 0 : passes + (wanted ? 1 : 0);
    }
    EXPECT_GE(passes, 38) << "good drafts are made every round again";
}

TEST(DraftPolicy, A_reply_that_ended_says_nothing_about_the_next_draft) {
    DraftPolicy policy;
    float raw = 0;
    const double before = policy.believe(1.0f, false, &raw);
    for (int i = 0; i < 100; ++i) {
        DraftRecord record;
        record.source = DraftSource::model;
        record.offered = 5;
        std::fill(std::begin(record.raw), std::end(record.raw), raw);
        policy.observe(&record, 0, true);
    }
    EXPECT_DOUBLE_EQ(policy.believe(1.0f, false, &raw), before);
}

TEST(EngineDrafts, A_request_without_drafts_gets_none_and_the_same_ids) {
    std::mt19937_64 rng(test_seed());
    ScriptedOptions options;
    options.draft_max = 5;
    for (int i = 0; i < 20; ++i) {
        Ask ask = random_ask(rng);
        ask.stops.clear();
        Bench with(options, 5, nullptr, {}, true), without(options, 5, nullptr, {}, true);
        const Got drafted = with.ask(ask);
        ask.desc.flags &= ~uint32_t{kDraftsAllowed};
        const Got plain = without.ask(ask);
        EXPECT_EQ(drafted.ids, plain.ids);
        EXPECT_EQ(plain.timings.drafted, 0);
    }
}

TEST(EngineDrafts, Logprobs_are_the_same_with_drafts) {
    std::mt19937_64 rng(test_seed());
    ScriptedOptions options;
    options.draft_max = 5;
    for (int i = 0; i < 20; ++i) {
        Ask ask = random_ask(rng);
        ask.desc.sampling.logprobs = i % 2 == 0 ? 20 : static_cast<int32_t>(rng() % 20);
        Bench with(options, 5, nullptr, {}, true), without(options);
        const Got drafted = with.ask(ask), plain = without.ask(ask);
        ASSERT_EQ(drafted.ids, plain.ids);
        ASSERT_EQ(drafted.logprobs.size(), plain.logprobs.size());
        for (size_t k = 0; k < plain.logprobs.size(); ++k) {
            EXPECT_EQ(drafted.logprobs[k].token, plain.logprobs[k].token);
            EXPECT_EQ(drafted.logprobs[k].logprob, plain.logprobs[k].logprob);
        }
    }
}

TEST(EngineDrafts, Drafting_that_never_pays_stops) {
    ScriptedOptions options;
    options.draft_max = 5;
    options.draft_quality = 0;
    options.eos_permille = 0;
    Bench bench(options, 5);
    const std::vector<int64_t> windows = {0, 1000, 1900, 2800, 3700, 4600, 5500};
    const std::vector<int64_t> drafts = {0, 500, 600, 700, 800};
    CostTable table;
    table.window_us = windows;
    table.draft_us = drafts;
    bench.core->set_costs(table);
    int64_t passes = 0, steps = 0;
    bench.model.on_submit([&](const StepPlan& plan) {
        passes += plan.drafts.empty() ? 0 : 1;
        steps += plan.windows.empty() ? 0 : 1;
    });
    Ask ask;
    ask.desc.max_new_tokens = 400;
    ask.desc.flags |= kIgnoreEos;
    bench.ask(ask);
    EXPECT_GT(steps, 350);
    EXPECT_LT(passes, steps / 8);
}

}  // namespace
}  // namespace tenon::test
