// SPDX-License-Identifier: MIT
// What a step decides beside layers: stops, limits, forcing, penalties, bias, masks, logprobs,
// failures, refusals.
#include <gtest/gtest.h>

#include "model/models.h"
#include "unit/allocation_counter.h"

namespace tenon::testing {
namespace {

class Step : public ::testing::Test {
  protected:
    void start(RigOptions o = mini_model()) {
        o.slots = 2;
        o.step_rows = 32;
        rig_ = make_rig(o);
        rig_->open(0);
    }
    plan::Window window(uint32_t slot = 0) const {
        plan::Window w;
        w.slot = slot;
        w.generation = rig_->generation(slot);
        w.position = rig_->length(slot);
        w.accept_max = 16;
        return w;
    }
    void sampler(plan::Sampler s, const std::vector<plan::Pair>& bias = {},
                 const std::vector<int32_t>& stops = {},
                 const std::vector<plan::Pair>& counts = {}) {
        s.generation = rig_->generation(s.slot);
        PlanBuilder plan = rig_->next();
        plan.sampler(s, bias, stops, counts);
        rig_->run(plan);
    }
    static plan::Sampler greedy() {
        plan::Sampler s;
        s.temperature = 0;
        return s;
    }
    /// Logits of one row that runs `token` next; the row is forgotten again.
    std::vector<float> peek(int32_t token) {
        rig_->want_logits(true);
        const int64_t length = rig_->length(0);
        rig_->window(0, {token}, 1);
        std::vector<float> l = rig_->logits();
        rig_->want_logits(false);
        PlanBuilder back = rig_->next();
        back.rewind(0, rig_->generation(0), length);
        rig_->run(back);
        return l;
    }
    std::unique_ptr<ModelRig> rig_;
};

int32_t best(const std::vector<float>& l, int64_t vocab = 4160) {
    return static_cast<int32_t>(std::max_element(l.begin(), l.begin() + vocab) - l.begin());
}

plan::Pair bias(int32_t token, float add) {
    plan::Pair p;
    p.token = token;
    std::memcpy(&p.bits, &add, 4);
    return p;
}

TEST_F(Step, Ids_beyond_the_tokenizer_are_never_drawn) {
    start();
    rig_->prefill(0, some_ids(20, 1));
    // Padding rows of the vocabulary would win with this bias.
    sampler(greedy(), {bias(4200, 1000.0F)});
    EXPECT_LT(rig_->window(0, {9}).tokens.at(0), 4160);
}

TEST_F(Step, A_stop_id_ends_the_window_and_is_emitted) {
    start();
    rig_->prefill(0, some_ids(20, 1));
    const int32_t next = best(peek(9));
    sampler(greedy(), {}, {next});
    // The draft after the stop is right as well, but nothing follows a stop.
    const WindowOutcome w = rig_->window(0, {9, next, 3});
    EXPECT_EQ(w.tokens, std::vector<int32_t>{next});
    EXPECT_EQ(w.finish, WindowFinish::stop_id);
    EXPECT_EQ(w.accepted, 0);
}

TEST_F(Step, Accept_max_bounds_what_is_emitted) {
    start();
    rig_->prefill(0, some_ids(20, 1));
    const auto reply = rig_->greedy(0, 9, 6);
    PlanBuilder back = rig_->next();
    back.rewind(0, rig_->generation(0), 20);
    rig_->run(back);
    std::vector<int32_t> rows = {9};
    rows.insert(rows.end(), reply.begin(), reply.end() - 1);
    const WindowOutcome w = rig_->window(0, rows, 3);
    EXPECT_EQ(w.tokens, std::vector<int32_t>(reply.begin(), reply.begin() + 3));
    EXPECT_EQ(w.finish, WindowFinish::accept_max);
    EXPECT_EQ(rig_->length(0), 23);
}

TEST_F(Step, Drafts_follow_a_window_that_its_rows_alone_bound) {
    start();
    rig_->prefill(0, some_ids(20, 1));
    const auto drafts_with = [&](int32_t accept_max, const std::vector<int32_t>& rows,
                                 WindowFinish* finish) {
        plan::Window w = window();
        w.accept_max = accept_max;
        PlanBuilder plan = rig_->next();
        plan.window(w, rows).draft(0, w.generation);
        const StepOutcome out = rig_->run(plan);
        *finish = out.windows[0].finish;
        PlanBuilder back = rig_->next();
        back.rewind(0, rig_->generation(0), 20);
        rig_->run(back);
        const DraftResult& d = out.drafts.at(0);
        return std::vector<int32_t>(d.tokens, d.tokens + d.count);
    };
    WindowFinish bounded{};
    WindowFinish free{};
    const auto one = drafts_with(1, {9}, &bounded);
    EXPECT_EQ(one, drafts_with(16, {9}, &free));
    EXPECT_EQ(one.size(), 5U);
    EXPECT_EQ(bounded, WindowFinish::accept_max);
    EXPECT_EQ(free, WindowFinish::none);
    // Cut short by its bound: nothing is proposed behind it.
    EXPECT_TRUE(drafts_with(1, {9, 3}, &bounded).empty());
}

TEST_F(Step, Forced_rows_are_taken_and_the_draft_behind_them_is_tested) {
    start();
    rig_->prefill(0, some_ids(20, 1));
    plan::Window w = window();
    w.forced = 2;
    PlanBuilder plan = rig_->next();
    plan.window(w, {9, 50, 60, 3});
    const StepOutcome out = rig_->run(plan);
    ASSERT_GE(out.windows[0].tokens.size(), 3U);
    EXPECT_EQ(out.windows[0].tokens[0], 50);
    EXPECT_EQ(out.windows[0].tokens[1], 60);
    // What follows is what a prompt of the same ids gives.
    rig_->open(1);
    auto ids = some_ids(20, 1);
    ids.insert(ids.end(), {9, 50});
    rig_->prefill(1, ids);
    EXPECT_EQ(out.windows[0].tokens[2], rig_->window(1, {60}).tokens.at(0));
}

TEST_F(Step, Logit_bias_moves_the_choice) {
    start();
    rig_->prefill(0, some_ids(20, 1));
    sampler(greedy(), {bias(77, 500.0F), bias(78, 400.0F)});
    EXPECT_EQ(rig_->window(0, {9}).tokens.at(0), 77);
}

TEST_F(Step, Penalties_count_prompt_drafts_and_emitted_tokens) {
    start();
    rig_->prefill(0, some_ids(20, 1));
    std::vector<float> l = peek(9);
    const int32_t first = best(l);
    plan::Sampler s = greedy();
    s.frequency = 2.0F;
    // `first` was emitted 40 times before, so 80 is taken off; prompt tokens alone cost nothing
    // here.
    plan::Pair often;
    often.token = first;
    often.bits = 40;
    sampler(s, {}, {}, {often});
    l[static_cast<size_t>(first)] -= 80;
    const int32_t second = best(l);
    const WindowOutcome w = rig_->window(0, {9});
    EXPECT_EQ(w.tokens.at(0), second);

    // The emitted token counts in the next window: compare with counts given from scratch.
    const WindowOutcome next = rig_->window(0, {second});
    rig_->open(1);
    s.slot = 1;
    auto ids = some_ids(20, 1);
    ids.push_back(9);
    rig_->prefill(1, ids);
    plan::Pair once;
    once.token = second;
    once.bits = 1;
    sampler(s, {}, {}, {often, once});
    EXPECT_EQ(rig_->window(1, {second}).tokens.at(0), next.tokens.at(0));
}

TEST_F(Step, Penalties_in_a_drafted_window_equal_serial_ones) {
    start();
    plan::Sampler s = greedy();
    s.frequency = 0.7F;
    s.presence = 0.5F;
    s.repetition = 1.3F;
    std::vector<plan::Pair> counts;
    for (const int32_t id : some_ids(30, 3)) {
        plan::Pair p;
        p.token = id;
        p.bits = 1U << 31;
        counts.push_back(p);
    }
    std::vector<int32_t> serial;
    for (const bool drafted : {false, true}) {
        rig_->close(0);
        rig_->open(0);
        rig_->prefill(0, some_ids(30, 3));
        sampler(s, {}, {}, counts);
        if (!drafted) {
            serial = rig_->greedy(0, 9, 20);
            continue;
        }
        std::vector<int32_t> text = {9};
        while (text.size() <= serial.size()) {
            std::vector<int32_t> rows = {text.back()};
            for (size_t k = text.size() - 1; k < serial.size() && rows.size() < 5; ++k) {
                rows.push_back(serial[k]);
            }
            const auto room = static_cast<int32_t>(serial.size() + 1 - text.size());
            const WindowOutcome w = rig_->window(0, rows, room);
            text.insert(text.end(), w.tokens.begin(), w.tokens.end());
        }
        EXPECT_EQ(std::vector<int32_t>(text.begin() + 1, text.end()), serial);
    }
}

TEST_F(Step, Logprobs_of_drawn_and_forced_tokens_are_those_of_the_raw_logits) {
    start();
    rig_->prefill(0, some_ids(20, 1));
    sampler(greedy(), {bias(77, 500.0F)});
    plan::Window w = window();
    w.forced = 1;
    w.flags = plan::kWantLogprobs;
    w.top = 3;
    rig_->want_logits(true);
    PlanBuilder plan = rig_->next();
    plan.window(w, {9, 50});
    const StepOutcome out = rig_->run(plan);
    const std::vector<float> l = rig_->logits();
    const auto& entries = out.windows[0].logprobs;
    ASSERT_EQ(out.windows[0].tokens, (std::vector<int32_t>{50, 77}));
    ASSERT_EQ(entries.size(), 8U);
    for (int r = 0; r < 2; ++r) {
        const float* row = l.data() + r * 4224;
        double sum = 0;
        const float most = *std::max_element(row, row + 4224);
        for (int i = 0; i < 4224; ++i) {
            sum += std::exp(static_cast<double>(row[i]) - most);
        }
        for (int k = 0; k < 4; ++k) {
            const TokenLogprob& e = entries[static_cast<size_t>(4 * r + k)];
            EXPECT_NEAR(e.logprob, row[e.token] - most - std::log(sum), 1e-4) << r << " " << k;
        }
        EXPECT_EQ(entries[static_cast<size_t>(4 * r)].token, r == 0 ? 50 : 77);
        EXPECT_EQ(entries[static_cast<size_t>(4 * r + 1)].token, best({row, row + 4224}, 4224));
    }
}

TEST_F(Step, Masks_come_after_submit_and_bind_the_draw) {
    start();
    rig_->prefill(0, some_ids(20, 1));
    sampler(greedy());
    plan::Window w = window();
    w.flags = plan::kMasked;
    PlanBuilder plan = rig_->next();
    plan.window(w, {9}).flags(plan::kNeedsMasks);
    rig_->reserve(plan, 0, w.position + 1);
    const StepPlan view = plan.view();
    check(rig_->model().submit(view));
    StepResult r;
    EXPECT_FALSE(rig_->model().ready(view.header.step, Stage::tokens));
    EXPECT_FALSE(rig_->model().collect(view.header.step, Stage::tokens, &r).ok());
    std::vector<uint32_t> words(4224 / 32, 0);
    words[123 / 32] |= 1U << (123 % 32);
    MaskBatch masks;
    masks.words = words;
    masks.rows = 1;
    masks.words_per_row = 4224 / 32;
    check(rig_->model().set_masks(view.header.step, masks));
    check(rig_->model().collect(view.header.step, Stage::done, &r));
    ASSERT_EQ(r.windows[0].emitted, 1);
    EXPECT_EQ(r.tokens[0], 123);
}

TEST_F(Step, A_failed_read_marks_its_slot_and_no_other) {
    start();
    rig_->open(1);
    rig_->prefill(0, some_ids(20, 1));
    rig_->prefill(1, some_ids(20, 2));
    const auto rewind = [&] {
        PlanBuilder back = rig_->next();
        back.rewind(0, rig_->generation(0), 20).rewind(1, rig_->generation(1), 20);
        rig_->run(back);
    };
    const auto healthy = rig_->window(1, {9});
    rewind();
    // One row that slot 0 reads for this token fails; slot 1 reads others.
    rig_->fake_store().watch("layers.1");
    rig_->window(0, {12});
    const int64_t row = rig_->fake_store().watched().at(0);
    rewind();
    rig_->window(0, {11});  // forgets what was read ahead
    rewind();
    rig_->fake_store().fail_rows("layers.1", row, row);

    PlanBuilder plan = rig_->next();
    plan.window(window(0), {12}).window(window(1), {9});
    const StepOutcome out = rig_->run(plan);

    EXPECT_EQ(out.windows[0].status, RowStatus::io);
    EXPECT_EQ(out.windows[1].status, RowStatus::ok);
    EXPECT_EQ(out.windows[1].tokens, healthy.tokens);
}

TEST_F(Step, A_failed_read_of_a_chunk_is_reported) {
    start();
    rig_->fake_store().fail_rows("layers.4", 0, 1'000'000);
    PlanBuilder plan = rig_->next();
    plan.chunk(0, rig_->generation(0), 0, some_ids(30, 1));
    EXPECT_EQ(rig_->run(plan).chunks.at(0), RowStatus::io);
    rig_->fake_store().heal();
    PlanBuilder next = rig_->next();
    next.chunk(0, rig_->generation(0), 30, some_ids(30, 2));
    EXPECT_EQ(rig_->run(next).chunks.at(0), RowStatus::ok);
}

TEST_F(Step, Rows_read_ahead_are_not_read_again) {
    start();
    rig_->prefill(0, some_ids(20, 1));
    const auto reply = rig_->greedy(0, 9, 3);
    const int64_t before = rig_->fake_store().rows_read();
    rig_->greedy(0, reply.back(), 8);
    // 12 rows a table, each as values and scales: one position a step, though every step announces
    // the next.
    EXPECT_EQ(rig_->fake_store().rows_read() - before, 8 * 2 * 12 * 2);
}

TEST_F(Step, Nothing_is_allocated_after_warm_up) {
    start();
    rig_->close(0);  // warm-up comes before the first request
    CostTable costs;
    check(rig_->model().warm_up({}, &costs));
    rig_->open(0);
    EXPECT_GT(costs.window_us[1], 0);
    EXPECT_GT(costs.stage_us[0], 0);
    rig_->prefill(0, some_ids(40, 1));
    plan::Sampler s = greedy();
    s.temperature = 0.8F;
    s.top_p = 0.9F;
    s.frequency = 0.1F;
    sampler(s, {bias(5, 1.0F)});
    // A plan of everything at once, built before counting starts; run twice.
    for (int round = 0; round < 2; ++round) {
        PlanBuilder plan = rig_->next();
        plan::Window w = window();
        w.flags = plan::kWantLogprobs;
        w.top = 5;
        plan.window(w, {9, 10, 11}).draft(0, rig_->generation(0));
        if (round == 0) {
            rig_->open(1);
        }
        plan.chunk(1, rig_->generation(1), rig_->length(1), some_ids(60, 7));
        rig_->reserve(plan, 0, rig_->length(0) + 3);
        rig_->reserve(plan, 1, rig_->length(1) + 60);
        const StepPlan view = plan.view();
        StepResult r;
        const AllocationCounter allocations;
        Status submitted = rig_->model().submit(view);
        Status collected = rig_->model().collect(view.header.step, Stage::tokens, &r);
        const int64_t emitted = r.windows.empty() ? 0 : r.windows[0].emitted;
        Status drafted = rig_->model().collect(view.header.step, Stage::drafts, &r);
        Status done = rig_->model().collect(view.header.step, Stage::done, &r);
        const int64_t allocated = allocations.count();
        check(std::move(submitted));
        check(std::move(collected));
        check(std::move(drafted));
        check(std::move(done));
        rig_->advance(0, emitted);
        rig_->advance(1, 60);
        EXPECT_EQ(allocated, 0) << "round " << round;
    }
}

TEST_F(Step, Counting_sees_allocations_of_plugins) {
    // Guards the test above: the counter would be blind if plugins had an allocator of their own.
    start();
    StepPlan bad;
    bad.header.step = 9;
    plan::SlotOp op;
    op.slot = 77;
    bad.slot_ops = {&op, 1};
    const AllocationCounter allocations;
    EXPECT_FALSE(rig_->model().submit(bad).ok());
    EXPECT_GT(allocations.count(), 0);
}

TEST_F(Step, Malformed_plans_are_refused_with_their_place) {
    start();
    rig_->prefill(0, some_ids(20, 1));
    const auto refuse = [&](const char* text, const std::function<void(PlanBuilder&)>& build) {
        PlanBuilder plan = rig_->next();
        build(plan);
        const Status status = rig_->try_submit(plan);
        EXPECT_FALSE(status.ok()) << text;
        EXPECT_NE(status.message().str().find(text), std::string::npos) << status.message().view();
    };
    refuse("slot 9 of 2", [&](PlanBuilder& p) { p.close(9, 1); });
    refuse("generation 99", [&](PlanBuilder& p) { p.close(0, 99); });
    refuse("is opened as generation", [&](PlanBuilder& p) { p.open(0, 50); });
    refuse("rewound to 30", [&](PlanBuilder& p) { p.rewind(0, rig_->generation(0), 30); });
    refuse("page 100000", [&](PlanBuilder& p) { p.map(0, rig_->generation(0), 0, {100000}); });
    refuse("entries 9 + 1", [&](PlanBuilder& p) { p.map(0, rig_->generation(0), 9, {1}); });
    refuse("at position 21 of length 20", [&](PlanBuilder& p) {
        plan::Window w = window();
        w.position = 21;
        p.window(w, {9});
    });
    refuse("token 5000", [&](PlanBuilder& p) { p.window(window(), {5000}); });
    refuse("token 4200 is unknown to the tokenizer",
           [&](PlanBuilder& p) { p.window(window(), {4200}); });
    refuse("forced 3", [&](PlanBuilder& p) {
        plan::Window w = window();
        w.forced = 3;
        p.window(w, {9, 9});
    });
    refuse("two windows", [&](PlanBuilder& p) { p.window(window(), {9}).window(window(), {9}); });
    refuse("no window", [&](PlanBuilder& p) { p.draft(0, rig_->generation(0)); });
    refuse("at length 20", [&](PlanBuilder& p) { p.chunk(0, rig_->generation(0), 10, {9}); });
    refuse("is not mapped",
           [&](PlanBuilder& p) { p.chunk(0, rig_->generation(0), 20, some_ids(400, 1)); });
    refuse("temperature", [&](PlanBuilder& p) {
        plan::Sampler s;
        s.generation = rig_->generation(0);
        s.temperature = -1;
        p.sampler(s);
    });
    // None of it has changed the slot.
    EXPECT_EQ(rig_->window(0, {9}).status, RowStatus::ok);
}

TEST_F(Step, An_aborted_model_answers_peer) {
    start();
    rig_->model().abort();
    PlanBuilder plan = rig_->next();
    const Status status = rig_->try_submit(plan);
    EXPECT_EQ(status.code(), Code::peer);
}

}  // namespace
}  // namespace tenon::testing
