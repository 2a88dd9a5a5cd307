// SPDX-License-Identifier: MIT
// However a prompt is cut into chunks and windows, state and logits have the same bits.
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <random>

#include "model/models.h"

namespace tenon::testing {
namespace {

struct ChunkCase {
    const char* name;
    RigOptions (*options)();
    std::vector<int> sources;  ///< layers that own compressed rows
    int window;
};

class Chunks : public ::testing::TestWithParam<ChunkCase> {
  protected:
    void SetUp() override {
        rig_ = make_rig(GetParam().options());
        rig_->open(0);
        ids_ = some_ids(300, 11);
    }
    /// State after `ids` in chunks, in a fresh slot.
    std::string run(const std::vector<int32_t>& ids, const std::vector<int64_t>& chunks) {
        rig_->close(0);
        rig_->open(0);
        rig_->prefill(0, ids, chunks);
        return state_of(*rig_, 0, GetParam().sources, 9, 3);
    }

    std::unique_ptr<ModelRig> rig_;
    std::vector<int32_t> ids_;
};

// Every length up to a window and its neighbours, the lengths around each half window, and every
// 11th, which meets all residues of the smaller periods. TENON_ALL_SPLITS=1: every length.
TEST_P(Chunks, Any_split_in_two_gives_the_bits_of_one_shot) {
    const std::string whole = run(ids_, {300});
    const bool all = std::getenv("TENON_ALL_SPLITS") != nullptr;
    const int64_t window = GetParam().window;
    for (int64_t first = 1; first < 300; ++first) {
        const bool border = (first + 1) % (window / 2) <= 2;
        if (!all && first > window + 2 && first < 298 && !border && first % 11 != 0) {
            continue;
        }
        ASSERT_EQ(run(ids_, {first, 300 - first}) == whole, true) << "split at " << first;
    }
}

TEST_P(Chunks, Random_splits_give_the_bits_of_one_shot) {
    const std::string whole = run(ids_, {300});
    std::mt19937 random(5);
    for (int round = 0; round < 20; ++round) {
        std::vector<int64_t> chunks;
        int64_t left = 300;
        while (left > 0) {
            const int64_t most = round % 2 == 0 ? 9 : 120;
            const int64_t n = std::min<int64_t>(
                left, 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(most)));
            chunks.push_back(n);
            left -= n;
        }
        ASSERT_EQ(run(ids_, chunks) == whole, true)
            << "round " << round << " with " << chunks.size() << " chunks";
    }
}

TEST_P(Chunks, Prompts_around_the_window_do_not_depend_on_cuts) {
    const int64_t w = GetParam().window;
    for (const int64_t n : {w - 1, w, w + 1, 2 * w - 1, 2 * w, 2 * w + 1}) {
        const std::vector<int32_t> ids(ids_.begin(), ids_.begin() + n);
        const std::string whole = run(ids, {n});
        for (const int64_t first : {int64_t{1}, n / 2, n / 2 + 1, n - 1}) {
            EXPECT_EQ(run(ids, {first, n - first}) == whole, true) << n << " cut at " << first;
        }
    }
}

TEST_P(Chunks, Single_rows_as_chunks_give_the_bits_of_one_shot) {
    const std::vector<int32_t> ids(ids_.begin(), ids_.begin() + 75);
    EXPECT_EQ(run(ids, std::vector<int64_t>(75, 1)) == run(ids, {75}), true);
}

TEST_P(Chunks, Forced_windows_give_the_bits_of_a_chunk) {
    if (rig_->model().info().numeric_classes != 1) {
        GTEST_SKIP() << "decode and prefill rows of this device have bits of their own";
    }
    const std::string whole = run(ids_, {300});
    rig_->close(0);
    rig_->open(0);
    rig_->prefill(0, {ids_.begin(), ids_.begin() + 130});
    // Row 0 and the forced ones are given; what the last row draws is thrown away by the next
    // window.
    for (size_t at = 130; at < 300;) {
        const size_t n = std::min<size_t>(1 + at % 16, 300 - at);
        const WindowOutcome w = rig_->window(
            0,
            {ids_.begin() + static_cast<int64_t>(at), ids_.begin() + static_cast<int64_t>(at + n)},
            16, static_cast<int32_t>(n) - 1);
        ASSERT_EQ(w.tokens.size(), n);
        at += n;
    }
    EXPECT_EQ(state_of(*rig_, 0, GetParam().sources, 9, 3) == whole, true);
}

TEST_P(Chunks, Another_prompt_before_in_the_slot_leaves_no_trace) {
    const std::string fresh = run(ids_, {300});
    run(some_ids(280, 99), {280});
    EXPECT_EQ(run(ids_, {300}) == fresh, true);
}

INSTANTIATE_TEST_SUITE_P(Models, Chunks,
                         ::testing::Values(ChunkCase{"tiny", &tiny_model, {2, 4, 5}, 32},
                                           ChunkCase{"mini", &mini_model, {2, 5}, 64}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace tenon::testing
