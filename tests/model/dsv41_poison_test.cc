// SPDX-License-Identifier: MIT
// No row reads a ring row that its own sequence has not written: rings full of NaN before a slot is
// opened change no bit (engine.md 9, 13). In a pass whose upper layers run for the tail only, the
// rows before `exact_from` are such rows.
#include <gtest/gtest.h>

#include "model/models.h"

namespace tenon::testing {
namespace {

struct PoisonCase {
    const char* name;
    RigOptions (*options)();
    std::vector<int> sources;
    int64_t window, distance;
    bool packed;
};

class Poison : public ::testing::TestWithParam<PoisonCase> {
  protected:
    void SetUp() override {
        RigOptions o = GetParam().options();
        o.context = 1024;
        o.chunk_rows = 512;
        o.packed_state = GetParam().packed;
        rig_ = make_rig(o);
        rig_->open(0);
        ids_ = some_ids(900, 17);
    }
    /// State, logits and a greedy reply after the first `length` ids in chunks of `rows`, with the
    /// tail as in service: one full target at the end.
    std::string run(int64_t length, int64_t rows, bool poisoned) {
        rig_->close(0);
        if (poisoned) {
            rig_->poison_rings();
        }
        rig_->open(0);
        for (int64_t at = 0; at < length;) {
            const int64_t end = std::min(at + rows, length);
            PlanBuilder plan = rig_->next();
            plan.bare_chunk(0, rig_->generation(0), at, {ids_.begin() + at, ids_.begin() + end});
            if (length - GetParam().distance < end) {
                plan::Target t;
                t.at = length;
                plan.target(t);
            }
            rig_->run(plan);
            at = end;
        }
        std::string bytes = state_of(*rig_, 0, GetParam().sources, 9, 3);
        const std::vector<int32_t> reply = rig_->greedy(0, 9, 70);  // past a whole window
        bytes.append(reinterpret_cast<const char*>(reply.data()), reply.size() * 4);
        return bytes;
    }

    std::unique_ptr<ModelRig> rig_;
    std::vector<int32_t> ids_;
};

TEST_P(Poison, Rings_that_hold_nothing_of_this_sequence_are_never_read) {
    const int64_t w = GetParam().window, d = GetParam().distance;
    for (const int64_t length : {int64_t{1}, w - 1, w, w + 1, d - 1, d, d + 1, int64_t{700}}) {
        for (const int64_t rows : {int64_t{512}, int64_t{100}}) {
            if (rows == 100 && length <= rows) {
                continue;  // one chunk, as with 512
            }
            EXPECT_EQ(run(length, rows, true) == run(length, rows, false), true)
                << length << " in chunks of " << rows;
        }
    }
}

TEST_P(Poison, A_poisoned_row_that_is_read_shows) {
    rig_->prefill(0, {ids_.begin(), ids_.begin() + 200});
    rig_->poison_rings();
    EXPECT_EQ(rig_->window(0, {9}).status, RowStatus::nan);
}

INSTANTIATE_TEST_SUITE_P(Models, Poison,
                         ::testing::Values(PoisonCase{"tiny", &tiny_model, {2, 4, 5}, 32, 93, true},
                                           PoisonCase{
                                               "tiny_bf16", &tiny_model, {2, 4, 5}, 32, 93, false},
                                           PoisonCase{"mini", &mini_model, {2, 5}, 64, 189, true}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace tenon::testing
