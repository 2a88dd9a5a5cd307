// SPDX-License-Identifier: MIT
// Slots do not notice each other, windows of many rows equal single rows, and rewinding forgets.
#include <gtest/gtest.h>

#include "model/models.h"

namespace tenon::testing {
namespace {

struct BatchCase {
    const char* name;
    RigOptions (*options)();
    std::vector<int> sources;
};

class Batch : public ::testing::TestWithParam<BatchCase> {
  protected:
    void SetUp() override {
        RigOptions o = GetParam().options();
        o.slots = 4;
        o.step_rows = 32;
        rig_ = make_rig(o);
    }
    std::string state(uint32_t slot, bool with_logits = true) {
        return state_of(*rig_, slot, GetParam().sources, 9, 3, with_logits);
    }
    void open(uint32_t slot, float temperature, uint64_t seed) {
        rig_->open(slot);
        plan::Sampler s;
        s.slot = slot;
        s.generation = rig_->generation(slot);
        s.temperature = temperature;
        s.top_p = 0.9F;
        s.seed = seed;
        PlanBuilder plan = rig_->next();
        plan.sampler(s);
        rig_->run(plan);
    }
    /// One row of each listed slot in one step; the drawn ids become the pending ones.
    void step(const std::vector<uint32_t>& slots, std::vector<std::vector<int32_t>>* texts) {
        PlanBuilder plan = rig_->next();
        for (const uint32_t slot : slots) {
            plan::Window w;
            w.slot = slot;
            w.generation = rig_->generation(slot);
            w.position = rig_->length(slot);
            w.accept_max = 16;
            plan.window(w, {(*texts)[slot].back()});
        }
        const StepOutcome out = rig_->run(plan);
        for (size_t i = 0; i < slots.size(); ++i) {
            (*texts)[slots[i]].push_back(out.windows[i].tokens.at(0));
        }
    }
    std::unique_ptr<ModelRig> rig_;
};

TEST_P(Batch, A_request_gives_the_same_ids_alone_and_beside_others) {
    for (const float temperature : {0.0F, 1.0F}) {
        std::vector<std::vector<int32_t>> alone(4);
        std::vector<std::vector<int32_t>> together(4);
        for (uint32_t s = 0; s < 4; ++s) {
            open(s, temperature, 100 + s);
            const auto prompt = some_ids(20 + 37 * s, s + 1);
            rig_->prefill(s, prompt);
            alone[s] = {prompt.back()};
            for (int i = 0; i < 24; ++i) {
                step({s}, &alone);
            }
            rig_->close(s);
        }
        // Others join and leave: slot 3 starts late, slot 1 ends early; the order of windows
        // changes.
        for (uint32_t s = 0; s < 4; ++s) {
            open(s, temperature, 100 + s);
            const auto prompt = some_ids(20 + 37 * s, s + 1);
            rig_->prefill(s, prompt, {10, static_cast<int64_t>(prompt.size()) - 10});
            together[s] = {prompt.back()};
        }
        for (int i = 0; i < 24; ++i) {
            std::vector<uint32_t> slots =
                i % 2 == 0 ? std::vector<uint32_t>{0, 1, 2} : std::vector<uint32_t>{2, 0, 1};
            if (i >= 8) {
                slots = {3, 2, 0};
            }
            step(slots, &together);
        }
        for (uint32_t s = 0; s < 4; ++s) {
            const size_t n = std::min(alone[s].size(), together[s].size());
            EXPECT_EQ(
                std::vector<int32_t>(alone[s].begin(), alone[s].begin() + static_cast<int64_t>(n)),
                std::vector<int32_t>(together[s].begin(),
                                     together[s].begin() + static_cast<int64_t>(n)))
                << "slot " << s << " at temperature " << temperature;
            rig_->close(s);
        }
    }
}

TEST_P(Batch, A_chunk_beside_windows_gives_the_same_bits) {
    const auto ids = some_ids(200, 3);
    open(1, 0, 1);
    rig_->prefill(1, ids);
    const std::string alone = state(1);
    rig_->close(1);

    open(0, 0, 1);
    rig_->prefill(0, some_ids(50, 8));
    open(1, 0, 1);
    for (int64_t at = 0; at < 200; at += 40) {
        plan::Window w;
        w.slot = 0;
        w.generation = rig_->generation(0);
        w.position = rig_->length(0);
        PlanBuilder plan = rig_->next();
        plan.window(w, {9}).chunk(1, rig_->generation(1), at,
                                  {ids.begin() + at, ids.begin() + at + 40});
        rig_->run(plan);
    }
    EXPECT_EQ(state(1) == alone, true);
}

TEST_P(Batch, Two_chunks_of_one_step_do_not_mix) {
    const auto a = some_ids(90, 21);
    const auto b = some_ids(70, 22);
    open(0, 0, 1);
    open(1, 0, 1);
    rig_->prefill(0, a);
    rig_->prefill(1, b);
    const std::string first = state(0);
    const std::string second = state(1);
    rig_->close(0);
    rig_->close(1);
    open(0, 0, 1);
    open(1, 0, 1);
    PlanBuilder plan = rig_->next();
    plan.chunk(1, rig_->generation(1), 0, b).chunk(0, rig_->generation(0), 0, a);
    rig_->run(plan);
    EXPECT_EQ(state(0) == first, true);
    EXPECT_EQ(state(1) == second, true);
}

TEST_P(Batch, Drafted_windows_emit_what_single_rows_emit) {
    const auto prompt = some_ids(60, 4);
    for (const float temperature : {0.0F, 1.0F}) {
        open(0, temperature, 9);
        rig_->prefill(0, prompt);
        std::vector<std::vector<int32_t>> texts(4);
        texts[0] = {5};
        for (int i = 0; i < 40; ++i) {
            step({0}, &texts);
        }
        const std::string expected = state(0, false);
        const std::vector<int32_t> serial = texts[0];
        rig_->close(0);

        open(0, temperature, 9);
        rig_->prefill(0, prompt);
        std::vector<int32_t> text = {5};
        uint32_t noise = 1;
        while (text.size() < serial.size()) {
            // Drafts: some right ids, then a wrong one, in changing numbers.
            std::vector<int32_t> rows = {text.back()};
            noise = noise * 1664525U + 1013904223U;
            const size_t right = noise >> 28;
            for (size_t k = 0; k < right && text.size() + k < serial.size(); ++k) {
                rows.push_back(serial[text.size() + k]);
            }
            rows.resize(std::min<size_t>(rows.size(), 14));
            rows.push_back(3);
            const auto room = static_cast<int32_t>(serial.size() - text.size());
            const WindowOutcome w = rig_->window(0, rows, std::min(room, 16));
            ASSERT_FALSE(w.tokens.empty());
            text.insert(text.end(), w.tokens.begin(), w.tokens.end());
        }
        EXPECT_EQ(text, serial) << "temperature " << temperature;
        EXPECT_EQ(state(0, false) == expected, true) << "temperature " << temperature;
        rig_->close(0);
    }
}

TEST_P(Batch, Rejected_rows_leave_no_trace_at_any_length) {
    const auto prompt = some_ids(63, 6);
    for (int64_t cut = 58; cut <= 63; ++cut) {  // odd and even lengths
        const std::vector<int32_t> ids(prompt.begin(), prompt.begin() + cut);
        open(0, 0, 1);
        rig_->prefill(0, ids);
        const std::string untouched = state(0);
        rig_->close(0);

        open(0, 0, 1);
        rig_->prefill(0, ids);
        // Row 0 is kept by its window; rewinding forgets it too.
        rig_->window(0, {9, 3, 4, 5, 6, 7}, 1);
        PlanBuilder plan = rig_->next();
        plan.rewind(0, rig_->generation(0), cut);
        rig_->run(plan);
        EXPECT_EQ(state(0) == untouched, true) << "length " << cut;
        rig_->close(0);
    }
}

TEST_P(Batch, Copied_pages_hold_the_same_rows) {
    const auto ids = some_ids(100, 14);
    open(0, 0, 1);
    rig_->prefill(0, ids);
    const TensorView before = rig_->trace("state.layers.5.compressed_kv", 0);
    const std::string expected(before.as<char>(), static_cast<size_t>(before.bytes()));
    // The slot's only page goes to another id; the table follows.
    const auto pages = static_cast<int32_t>(rig_->model().info().page_tokens);
    PlanBuilder plan = rig_->next();
    const int32_t from = rig_->pages(0).at(0);
    const int32_t to = rig_->take_page();
    plan.copy_page(from, to, 100).map(0, rig_->generation(0), 0, {to});
    rig_->run(plan);
    ASSERT_GT(pages, 100);
    const TensorView after = rig_->trace("state.layers.5.compressed_kv", 0);
    EXPECT_EQ(std::string(after.as<char>(), static_cast<size_t>(after.bytes())) == expected, true);
}

INSTANTIATE_TEST_SUITE_P(Models, Batch,
                         ::testing::Values(BatchCase{"tiny", &tiny_model, {2, 4, 5}},
                                           BatchCase{"mini", &mini_model, {2, 5}}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace tenon::testing
