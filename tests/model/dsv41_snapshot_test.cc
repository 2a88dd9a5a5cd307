// SPDX-License-Identifier: MIT
// Cuts: whatever goes on from a saved one has the bits of a sequence that never stopped
// (engine.md 9, 11 and 17).
#include <gtest/gtest.h>

#include "model/models.h"

namespace tenon::testing {
namespace {

struct SnapshotCase {
    const char* name;
    RigOptions (*options)();
    std::vector<int> sources;
};

class Snapshots : public ::testing::TestWithParam<SnapshotCase> {
  protected:
    void make(bool packed = true) {
        RigOptions o = GetParam().options();
        o.slots = 2;
        o.snapshot_cells = 8;
        o.packed_state = packed;
        o.spill = spill_;
        rig_ = make_rig(o);
        rig_->open(0);
        rig_->open(1);
        ids_ = some_ids(400, 21);
    }
    std::vector<int32_t> ids(int64_t begin, int64_t end) const {
        return {ids_.begin() + begin, ids_.begin() + end};
    }
    std::string state(uint32_t slot) { return state_of(*rig_, slot, GetParam().sources, 9, 3); }
    void reopen(uint32_t slot) {
        rig_->close(slot);
        rig_->open(slot);
    }
    /// Runs one more chunk that saves a full cut at its end.
    void chunk_with_cut(uint32_t slot, const std::vector<int32_t>& tokens, uint32_t snapshot) {
        PlanBuilder plan = rig_->next();
        plan.chunk(slot, rig_->generation(slot), rig_->length(slot), tokens).save_target(snapshot);
        rig_->run(plan);
    }
    void save(uint32_t slot, uint32_t snapshot, int64_t at) {
        PlanBuilder plan = rig_->next();
        plan.save(snapshot, slot, rig_->generation(slot), at);
        rig_->run(plan);
    }
    /// Opens slot 1 at a cut of slot 0: whole pages are shared, a part of one is copied.
    void resume(uint32_t snapshot, int64_t at, const std::vector<int32_t>& source) {
        rig_->close(1);
        const int64_t tokens = rig_->model().info().page_tokens;
        std::vector<int32_t> pages(source.begin(), source.begin() + at / tokens);
        const uint32_t generation = rig_->new_generation();
        PlanBuilder plan = rig_->next();
        plan.open(1, generation);
        if (at % tokens != 0) {
            pages.push_back(rig_->take_page());
            plan.copy_page(source[static_cast<size_t>(at / tokens)], pages.back(),
                           static_cast<int32_t>(at % tokens));
        }
        plan.map(1, generation, 0, pages).restore(snapshot, 1, generation, at);
        rig_->adopt(1, generation, at, pages);
        rig_->run(plan);
    }
    Status submit(PlanBuilder& plan) { return rig_->try_submit(plan); }

    bool spill_ = false;
    std::unique_ptr<ModelRig> rig_;
    std::vector<int32_t> ids_;
};

TEST_P(Snapshots, A_slot_resumed_at_any_cut_has_the_bits_of_a_fresh_one) {
    for (const bool packed : {true, false}) {
        make(packed);
        const int64_t end = 330;
        rig_->prefill(1, ids(0, end));
        const std::string fresh = state(1);
        for (const int64_t at : {1, 2, 3, 31, 32, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300}) {
            reopen(0);
            chunk_with_cut(0, ids(0, at), 1);
            const std::vector<int32_t> pages = rig_->pages(0);
            resume(1, at, pages);
            rig_->prefill(1, ids(at, end));
            EXPECT_EQ(state(1) == fresh, true) << "cut at " << at << " packed " << packed;
            PlanBuilder drop = rig_->next();
            drop.drop(1, at);
            rig_->run(drop);
        }
    }
}

TEST_P(Snapshots, The_writer_goes_on_while_another_slot_continues_from_inside_its_page) {
    make();
    chunk_with_cut(0, ids(0, 100), 3);
    rig_->prefill(0, ids(100, 180));
    rig_->prefill(1, ids(0, 100));
    rig_->prefill(1, some_ids(80, 5));
    const std::string other = state(1);

    resume(3, 100, rig_->pages(0));
    rig_->prefill(1, some_ids(80, 5));

    EXPECT_EQ(state(1) == other, true);
    rig_->prefill(1, some_ids(100, 6));
    const std::string writer = state(0);
    reopen(0);
    rig_->prefill(0, ids(0, 180));
    EXPECT_EQ(state(0) == writer, true);
}

TEST_P(Snapshots, A_cut_behind_the_length_holds_what_was_there_before_rows_were_rejected) {
    make();
    rig_->prefill(0, ids(0, 150));
    // Drafts that cannot all be right: the window writes 16 rows and keeps fewer.
    const WindowOutcome window = rig_->window(0, ids(150, 166), 16);
    ASSERT_LT(window.tokens.size(), 16U);
    const int64_t length = rig_->length(0);
    for (int64_t at = length; at >= 150; --at) {
        save(0, 1, at);
        resume(1, at, rig_->pages(0));
        rig_->prefill(1, ids(at, 260));
        const std::string resumed = state(1);
        reopen(1);
        // The kept rows again as rows of a window, which may have bits of their own.
        std::vector<int32_t> kept = ids(150, 151);
        kept.insert(kept.end(), window.tokens.begin(), window.tokens.end());
        kept.resize(static_cast<size_t>(at - 150));
        rig_->prefill(1, ids(0, 150));
        if (!kept.empty()) {
            rig_->window(1, kept, 16, static_cast<int32_t>(kept.size()) - 1);
        }
        rig_->prefill(1, ids(at, 260));
        EXPECT_EQ(state(1) == resumed, true) << "at " << at;
        PlanBuilder drop = rig_->next();
        drop.drop(1, at);
        rig_->run(drop);
    }
}

TEST_P(Snapshots, A_greedy_reply_from_a_cut_repeats_the_first_one) {
    make();
    chunk_with_cut(0, ids(0, 199), 5);
    const std::vector<int32_t> first = rig_->greedy(0, ids_[199], 40);
    resume(5, 199, rig_->pages(0));
    EXPECT_EQ(rig_->greedy(1, ids_[199], 40), first);
    // The cut itself did not change meanwhile.
    resume(5, 199, rig_->pages(0));
    EXPECT_EQ(rig_->greedy(1, ids_[199], 40), first);
}

TEST_P(Snapshots, Plans_that_misuse_cells_are_refused) {
    make();
    chunk_with_cut(0, ids(0, 64), 1);
    const uint32_t generation = rig_->generation(0);
    const auto refused = [&](PlanBuilder plan, const char* text) {
        const Status status = submit(plan);
        EXPECT_EQ(status.code(), Code::internal);
        EXPECT_NE(status.message().str().find(text), std::string::npos) << status.message().view();
    };
    refused(rig_->next().save(2, 0, generation, 64), "a cell is in use");
    refused(rig_->next().save(8, 0, generation, 64), "8 cells");
    refused(rig_->next().save(0, 0, generation, 64), "snapshot 0");
    refused(rig_->next().save(3, 0, generation, 65), "64 positions are computed");
    refused(rig_->next().save(3, 0, generation, 40), "slack");
    refused(rig_->next().drop(3, 64), "found kind 0");
    refused(rig_->next().drop(1, 63), "found kind 1 at 64");
    refused(rig_->next().restore(1, 0, generation, 64), "which has 64 positions");
    refused(rig_->next().restore(1, 1, rig_->generation(1) + 1, 64), "generation");
    refused(rig_->next().restore(1, 1, rig_->generation(1), 63), "found kind 1 at 64");
}

TEST_P(Snapshots, A_cut_that_left_and_came_back_in_pieces_has_its_bits) {
    for (const bool packed : {true, false}) {
        spill_ = true;
        make(packed);
        auto* staging = facet_of<ModelStaging>(&rig_->model());
        ASSERT_NE(staging, nullptr);
        const int64_t page_bytes = rig_->model().info().page_bytes;
        const int64_t at = 399;
        chunk_with_cut(0, ids(0, at), 1);
        const std::vector<int32_t> pages = rig_->pages(0);
        ASSERT_GE(pages.size(), 2U);
        // Out: the first page alone, then the others with the snapshot.
        const std::vector<int32_t> head = {pages[0]}, tail = {pages.begin() + 1, pages.end()};
        std::vector<std::vector<uint8_t>> pieces;
        const auto take = [&](uint64_t job, size_t count, bool snapshot) {
            const Span<uint8_t> area = staging->area(static_cast<int32_t>(job % 2));
            pieces.emplace_back(area.begin(), area.begin() +
                                                  static_cast<int64_t>(count) * page_bytes +
                                                  (snapshot ? staging->snapshot_bytes() : 0));
            std::fill(area.begin(), area.end(), uint8_t{0xEE});
        };
        PlanBuilder out = rig_->next();
        out.exports(7, 0, at, head).exports(8, 1, at, tail);
        rig_->run(out);
        take(7, 1, false);
        take(8, tail.size(), true);
        PlanBuilder drop = rig_->next();
        drop.drop(1, at);
        rig_->run(drop);
        reopen(0);
        rig_->prefill(0, some_ids(330, 3));  // the cells and rings hold something else now

        std::vector<int32_t> fresh_pages;
        for (size_t i = 0; i < pages.size(); ++i) {
            fresh_pages.push_back(rig_->take_page());
        }
        const auto put = [&](uint64_t job, const std::vector<uint8_t>& bytes) {
            std::copy(bytes.begin(), bytes.end(),
                      staging->area(static_cast<int32_t>(job % 2)).begin());
        };
        put(9, pieces[0]);
        PlanBuilder first = rig_->next();
        first.import(9, 0, at, {fresh_pages[0]}, 1);
        rig_->run(first);
        put(9, pieces[1]);
        PlanBuilder last = rig_->next();
        last.import(9, 3, at, fresh_pages, tail.size());
        rig_->run(last);
        resume(3, at, fresh_pages);
        rig_->prefill(1, some_ids(40, 9));
        const std::string back = state(1);
        reopen(1);
        rig_->prefill(1, ids(0, at));
        rig_->prefill(1, some_ids(40, 9));
        EXPECT_EQ(state(1) == back, true) << "packed " << packed;
    }
}

TEST_P(Snapshots, Pieces_that_do_not_fit_are_refused) {
    spill_ = true;
    make();
    chunk_with_cut(0, ids(0, 100), 1);
    const std::vector<int32_t> pages = rig_->pages(0);
    const auto refused = [&](PlanBuilder plan, const char* text) {
        const Status status = submit(plan);
        EXPECT_EQ(status.code(), Code::internal);
        EXPECT_NE(status.message().str().find(text), std::string::npos) << status.message().view();
    };
    refused(rig_->next().exports(1, 3, 100, pages), "found kind 0");
    refused(rig_->next().exports(1, 1, 100, std::vector<int32_t>(65, pages[0])), "65 pages");
    refused(rig_->next().exports(1, 0, 100, {9999}), "page 9999");
    refused(rig_->next().import(2, 3, 100, pages, pages.size()), "a record of kind 0");
    refused(rig_->next().import(2, 1, 100, pages, pages.size() + 1), "staged");
}

INSTANTIATE_TEST_SUITE_P(Models, Snapshots,
                         ::testing::Values(SnapshotCase{"tiny", &tiny_model, {2, 4, 5}},
                                           SnapshotCase{"mini", &mini_model, {2, 5}}),
                         [](const auto& param) { return param.param.name; });

TEST(SnapshotPlan, Cells_are_in_the_memory_plan_and_sized_by_kind) {
    RigOptions o = mini_model();
    o.snapshot_cells = 6;
    o.spill = true;
    auto rig = make_rig(o);
    const int64_t cell = rig->model().info().snapshot_bytes;
    // Full: 12 rings of 64 rows, each 128 codes and 4 scales; one raw pair; 32 bytes of classes.
    const int64_t full = 12 * 64 * 132 + 2 * 128 * 4 + 32;
    EXPECT_EQ(cell, (full / 2 + 4095) / 4096 * 4096);
    MemoryPlan plan;
    TENON_ASSERT_OK(rig->plan(&plan));
    int64_t planned = 0;
    for (const MemoryEntry& e : plan.entries) {
        planned += e.tag == StrView("snapshots") ? e.bytes : 0;
    }
    EXPECT_EQ(planned, 6 * cell);
    EXPECT_EQ(rig->allocated().at("snapshots"), planned);
}

}  // namespace
}  // namespace tenon::testing
