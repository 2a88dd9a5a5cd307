// SPDX-License-Identifier: MIT
// Records of a run: what was written replays bit for bit, and what differs is named
// (engine.md 9: 33).
#include "host/engine/step_bundle.h"

#include <filesystem>
#include <fstream>

#include "tests/unit/engine_support.h"

namespace tenon::test {
namespace {

namespace fs = std::filesystem;
using engine::BundleReader;
using engine::BundleWriter;

class Bundle : public ::testing::Test {
  protected:
    void SetUp() override {
        dir_ = fs::temp_directory_path() /
               ("tenon_bundle_" + std::to_string(::getpid()) + "_" +
                ::testing::UnitTest::GetInstance()->current_test_info()->name());
        fs::remove_all(dir_);
        options_.draft_max = 5;
    }
    void TearDown() override { fs::remove_all(dir_); }

    /// Random requests, recorded.
    void record() {
        FakeHost host(true);
        auto made = BundleWriter::create(dir_.string(), "{}", host);
        ASSERT_TRUE(made.ok()) << made.status().message().view();
        const std::unique_ptr<BundleWriter> writer = std::move(*made);
        std::mt19937_64 rng(test_seed());
        Bench bench(options_, 4, writer.get(), {}, true);
        std::vector<Ask> asks;
        for (int i = 0; i < 12; ++i) {
            asks.push_back(random_ask(rng));
        }
        for (Ask& ask : asks) {
            bench.submit(ask);
            bench.round();
        }
        ASSERT_TRUE(bench.run());
        steps_ = bench.model.steps();
    }
    /// First difference over all steps, with its step; "" = none.
    std::string replay(ScriptedModel& model, uint64_t* steps) {
        BundleReader reader;
        EXPECT_TRUE(reader.open(dir_.string()).ok());
        StepPlan plan;
        StepResult recorded, replayed;
        bool has_result = false;
        for (*steps = 0;; ++*steps) {
            auto found = reader.next(&plan, &recorded, &has_result);
            if (!found.ok()) {
                return found.status().message().str();
            }
            if (!*found) {
                return "";
            }
            EXPECT_TRUE(model.submit(plan).ok());
            EXPECT_TRUE(model.collect(plan.header.step, Stage::tokens, &replayed).ok());
            EXPECT_TRUE(model.collect(plan.header.step, Stage::drafts, &replayed).ok());
            EXPECT_TRUE(model.collect(plan.header.step, Stage::done, &replayed).ok());
            if (!has_result) {
                return "";
            }
            const std::string text = engine::result_difference(recorded, replayed);
            if (!text.empty()) {
                return format("step {}: {}", plan.header.step, text);
            }
        }
    }

    fs::path dir_;
    ScriptedOptions options_;
    uint64_t steps_ = 0;
};

TEST_F(Bundle, Replays_bit_for_bit_on_a_fresh_model) {
    record();
    ScriptedModel model(options_);
    uint64_t steps = 0;
    EXPECT_EQ(replay(model, &steps), "");
    EXPECT_EQ(steps, steps_);
    EXPECT_GT(steps, 20u);
}

TEST_F(Bundle, Names_the_first_step_that_differs) {
    record();
    ScriptedModel model(options_);
    model.reply_with({'n', 'o'});  // another model: its tokens differ from the first window on
    uint64_t steps = 0;
    const std::string text = replay(model, &steps);
    EXPECT_NE(text.find("step "), std::string::npos) << text;
    EXPECT_NE(text.find("recorded"), std::string::npos) << text;
    EXPECT_LT(steps, steps_);
}

TEST_F(Bundle, A_flipped_byte_is_noticed_and_a_cut_file_ends_early) {
    record();
    const fs::path file = dir_ / engine::kStepsFile;
    const auto size = fs::file_size(file);
    {
        std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
        f.seekp(static_cast<std::streamoff>(size / 2));
        f.put('\x5a');
        f.seekp(static_cast<std::streamoff>(size / 2 + 1));
        f.put('\x5b');
    }
    ScriptedModel model(options_);
    uint64_t steps = 0;
    EXPECT_NE(replay(model, &steps), "");

    fs::resize_file(file, size / 3);
    ScriptedModel again(options_);
    EXPECT_EQ(replay(again, &steps), "");
    EXPECT_LT(steps, steps_ / 2);
}

TEST_F(Bundle, A_folder_that_holds_a_record_is_refused) {
    record();
    FakeHost host(true);
    auto made = BundleWriter::create(dir_.string(), "{}", host);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), Code::invalid_argument);
    EXPECT_NE(made.status().message().str().find("a folder of its own"), std::string::npos);
}

}  // namespace
}  // namespace tenon::test
