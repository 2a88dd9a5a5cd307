// SPDX-License-Identifier: MIT
// The mirror refuses each way in which a plan or a result can contradict the state.
#include <gtest/gtest.h>

#include "host/engine/plan_mirror.h"

namespace tenon::test {
namespace {

/// Plans written by hand; one slot op, map, sampler, window, draft and chunk at most.
struct Hand {
    std::vector<plan::SlotOp> ops;
    std::vector<plan::PageMap> maps;
    std::vector<plan::Sampler> samplers;
    std::vector<plan::Window> windows;
    std::vector<plan::Draft> drafts;
    std::vector<plan::Chunk> chunks;
    std::vector<plan::Target> targets;
    std::vector<plan::PageCopy> copies;
    std::vector<plan::Feature> features;
    std::vector<plan::SnapOp> snap_in, snap_out;
    std::vector<int32_t> tokens, pages;
    StepPlan plan;

    const StepPlan& get(uint64_t step) {
        plan.header.step = step;
        plan.slot_ops = ops;
        plan.page_maps = maps;
        plan.samplers = samplers;
        plan.windows = windows;
        plan.drafts = drafts;
        plan.chunks = chunks;
        plan.targets = targets;
        plan.page_copies = copies;
        plan.features = features;
        plan.snap_in = snap_in;
        plan.snap_out = snap_out;
        plan.tokens = tokens;
        plan.pages = pages;
        return plan;
    }
    void op(uint32_t slot, uint32_t generation, plan::SlotOpKind kind, int64_t length = 0) {
        ops.push_back({slot, generation, kind, 0, length, 1});
    }
    void open(uint32_t slot, uint32_t generation, std::vector<int32_t> ids) {
        op(slot, generation, plan::SlotOpKind::open);
        plan::PageMap map{slot,
                          generation,
                          0,
                          static_cast<uint32_t>(ids.size()),
                          static_cast<uint32_t>(pages.size()),
                          0};
        maps.push_back(map);
        pages.insert(pages.end(), ids.begin(), ids.end());
        plan::Sampler sampler;
        sampler.slot = slot;
        sampler.generation = generation;
        samplers.push_back(sampler);
    }
    plan::Window& window(uint32_t slot, uint32_t generation, int64_t position, int32_t rows = 1) {
        plan::Window w;
        w.slot = slot;
        w.generation = generation;
        w.position = position;
        w.rows = w.accept_max = rows;
        w.tokens_off = static_cast<uint32_t>(tokens.size());
        tokens.resize(tokens.size() + static_cast<size_t>(rows), 3);
        windows.push_back(w);
        return windows.back();
    }
    plan::Chunk& chunk(uint32_t slot, uint32_t generation, int64_t begin, int64_t end) {
        plan::Chunk c;
        c.slot = slot;
        c.generation = generation;
        c.begin = begin;
        c.end = end;
        c.tokens_off = static_cast<uint32_t>(tokens.size());
        tokens.resize(tokens.size() + static_cast<size_t>(end - begin), 3);
        chunks.push_back(c);
        return chunks.back();
    }
};

plan::SnapOp snap(plan::SnapOpKind op, uint32_t snapshot, uint32_t slot, uint32_t generation,
                  int64_t at) {
    plan::SnapOp s;
    s.op = op;
    s.snapshot = snapshot;
    s.slot = slot;
    s.generation = generation;
    s.at = at;
    return s;
}

/// After step 2: slot 0 generation 1 has length 8 of pages 0 and 1, slot 1 generation 1 length 0,
/// page 2.
class Mirror : public testing::Test {
  protected:
    Mirror() : mirror(config()) { open_slots(); }
    void open_slots() {
        Hand h;
        h.open(0, 1, {0, 1});
        h.open(1, 1, {2});
        h.chunk(0, 1, 0, 7);
        EXPECT_EQ(apply(h, 1), "");
        EXPECT_EQ(result(1, {}), "");
        Hand w;
        w.window(0, 1, 7);
        EXPECT_EQ(apply(w, 2), "");
        EXPECT_EQ(result(2, {{0, 1, 0, 1}}), "");
        EXPECT_EQ(mirror.length(0), 8);
    }
    static engine::MirrorConfig config() {
        engine::MirrorConfig c;
        c.info.page_tokens = 8;
        c.info.vocab = 100;
        c.info.ring_slack = 16;
        c.info.prefill_stages = 1;
        c.info.draft_max = 5;
        c.slots = 3;
        c.context_tokens = 32;
        c.pool_pages = 8;
        c.chunk_rows = 16;
        c.snapshot_cells = 6;
        return c;
    }
    std::string apply(Hand& h, uint64_t step) { return mirror.apply(h.get(step)).message().str(); }
    std::string result(uint64_t step, std::vector<WindowResult> windows,
                       std::vector<ChunkResult> chunks = {}) {
        StepResult r;
        r.step = step;
        r.windows = windows;
        r.chunks = chunks;
        return mirror.apply(r).message().str();
    }
    /// Refusal of a plan for step 3, or "" if it is taken.
    std::string refusal(Hand& h) { return apply(h, 3); }

    engine::PlanMirror mirror;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Mirror, Takes_a_right_plan_and_follows_its_result) {
    Hand h;
    h.window(0, 1, 8, 4);
    h.drafts.push_back({0, 1, 5, 0});
    h.chunk(1, 1, 0, 8);
    EXPECT_EQ(refusal(h), "");
    EXPECT_EQ(result(3, {{0, 1, 2, 3}}), "");
    EXPECT_EQ(mirror.length(0), 11);
    EXPECT_EQ(mirror.length(1), 8);
    EXPECT_EQ(mirror.pages_in_use(), 3);
    Hand close;
    close.op(0, 1, plan::SlotOpKind::close);
    close.op(1, 1, plan::SlotOpKind::close);
    EXPECT_EQ(apply(close, 4), "");
    EXPECT_EQ(mirror.pages_in_use(), 0);
}

TEST_F(Mirror, Refuses_wrong_steps) {
    Hand h;
    h.window(0, 1, 8);
    EXPECT_HAS(apply(h, 4), "expected step 3");
}

TEST_F(Mirror, Refuses_a_plan_before_the_result_of_the_last) {
    Hand h;
    h.window(0, 1, 8);
    EXPECT_EQ(refusal(h), "");
    Hand next;
    next.window(0, 1, 9);
    EXPECT_HAS(apply(next, 4), "result of the step before");
}

TEST_F(Mirror, Refuses_stale_generations_and_closed_slots) {
    Hand stale;
    stale.window(0, 0, 8);
    EXPECT_HAS(refusal(stale), "generation 0");
    Hand closed;
    closed.window(2, 0, 0);
    EXPECT_HAS(apply(closed, 4), "closed");
}

TEST_F(Mirror, Refuses_opening_an_open_slot_or_a_skipped_generation) {
    Hand twice;
    twice.op(0, 2, plan::SlotOpKind::open);
    EXPECT_HAS(refusal(twice), "open of slot 0");
    Hand skipped;
    skipped.op(2, 2, plan::SlotOpKind::open);
    EXPECT_HAS(apply(skipped, 4), "open of slot 2");
}

TEST_F(Mirror, Refuses_slots_that_do_not_exist) {
    Hand h;
    h.op(3, 1, plan::SlotOpKind::open);
    EXPECT_HAS(refusal(h), "slot 3 of 3");
}

TEST_F(Mirror, Refuses_a_window_that_is_not_at_the_length) {
    Hand h;
    h.window(0, 1, 7);
    EXPECT_HAS(refusal(h), "the length is 8");
}

TEST_F(Mirror, Refuses_rows_beyond_the_mapped_pages) {
    Hand h;
    h.window(1, 1, 0, 9);
    EXPECT_HAS(refusal(h), "pages reach 8");
}

TEST_F(Mirror, Refuses_pages_outside_the_pool_and_the_table) {
    Hand outside;
    outside.open(2, 1, {8});
    EXPECT_HAS(refusal(outside), "page 8 of 8");
    Hand table;
    table.maps.push_back({0, 1, 3, 2, 0, 0});
    table.pages = {4, 5};
    EXPECT_HAS(apply(table, 4), "the table has 4");
}

TEST_F(Mirror, Refuses_a_second_writer_of_a_page) {
    Hand h;
    h.open(2, 1, {1});
    h.window(2, 1, 0);
    h.window(0, 1, 8);
    EXPECT_HAS(refusal(h), "whose writer is slot 2");
}

TEST_F(Mirror, Refuses_a_slot_twice_in_a_step) {
    Hand h;
    h.window(0, 1, 8);
    h.window(0, 1, 8);
    EXPECT_HAS(refusal(h), "occurs twice");
}

TEST_F(Mirror, Refuses_too_many_rows) {
    Hand h;
    h.open(2, 1, {3, 4, 5});
    h.window(0, 1, 8, 8);
    h.window(2, 1, 0, 9);
    EXPECT_HAS(refusal(h), "17 window rows");
}

TEST_F(Mirror, Refuses_a_window_without_sampler) {
    Hand h;
    h.op(2, 1, plan::SlotOpKind::open);
    h.maps.push_back({2, 1, 0, 1, 0, 0});
    h.pages = {5};
    h.window(2, 1, 0);
    EXPECT_HAS(refusal(h), "no sampler");
}

TEST_F(Mirror, Refuses_tokens_outside_the_vocabulary) {
    Hand h;
    h.window(0, 1, 8);
    h.tokens[0] = 100;
    EXPECT_HAS(refusal(h), "token 100");
}

TEST_F(Mirror, Refuses_rows_from_the_device_and_masks_that_nobody_announced) {
    Hand device;
    device.window(0, 1, 8).source = 1;
    EXPECT_HAS(refusal(device), "from the device");
    Hand masked;
    masked.window(0, 1, 8).flags = plan::kMasked;
    EXPECT_HAS(apply(masked, 4), "masked");
}

TEST_F(Mirror, Refuses_chunks_that_do_not_continue_the_prompt) {
    Hand gap;
    gap.chunk(1, 1, 1, 5);
    EXPECT_HAS(refusal(gap), "the length is 0");
    Hand wide;
    wide.chunk(1, 1, 0, 17);
    EXPECT_HAS(apply(wide, 4), "17 rows, limit 16");
}

TEST_F(Mirror, Refuses_stages_that_the_model_does_not_have) {
    Hand h;
    h.chunk(1, 1, 0, 4).stage_end = 2;
    EXPECT_HAS(refusal(h), "stages 0 to 2");
}

TEST_F(Mirror, Refuses_targets_behind_the_chunk_and_snapshots_without_cells) {
    Hand behind;
    behind.chunk(1, 1, 0, 4).target_count = 1;
    behind.targets.push_back({0, 0, 0, plan::CutKind::full, 0, 0, 0});
    EXPECT_HAS(refusal(behind), "target at 0");
    Hand saved;
    saved.chunk(1, 1, 0, 4).target_count = 1;
    saved.targets.push_back({4, 0, 7, plan::CutKind::full, 0, 0, 0});
    EXPECT_HAS(apply(saved, 4), "snapshot 7");
}

TEST_F(Mirror, Refuses_records_for_which_nothing_was_allocated) {
    Hand h;
    h.features.resize(1);
    EXPECT_HAS(refusal(h), "no capacity");
    Hand import;
    import.snap_in.push_back(snap(plan::SnapOpKind::import, 1, 0, 0, 8));
    EXPECT_HAS(apply(import, 4), "no capacity");
}

TEST_F(Mirror, Refuses_pieces_that_contradict_what_it_knows) {
    engine::MirrorConfig with = config();
    with.staging_areas = 2;
    with.staging_pages = 4;
    mirror = engine::PlanMirror(with);
    open_slots();
    const auto piece = [](plan::SnapOpKind op, uint32_t snapshot, int64_t at, uint64_t job,
                          uint32_t pages, uint32_t staged) {
        plan::SnapOp s = snap(op, snapshot, 0, 0, at);
        s.job = job;
        s.pages_count = pages;
        s.staged = staged;
        return s;
    };
    const auto answer = [&](Hand& h) {
        engine::PlanMirror other = mirror;
        return other.apply(h.get(3)).message().str();
    };
    Hand used;
    used.pages = {0};
    used.snap_in.push_back(piece(plan::SnapOpKind::import, 0, 8, 1, 1, 1));
    EXPECT_HAS(answer(used), "slots refer to");
    Hand unfilled;
    unfilled.pages = {5, 6};
    unfilled.snap_in.push_back(piece(plan::SnapOpKind::import, 1, 16, 1, 2, 1));
    EXPECT_HAS(answer(unfilled), "nothing has filled page 5");
    Hand fewer;
    fewer.pages = {5};
    fewer.snap_in.push_back(piece(plan::SnapOpKind::import, 1, 16, 1, 1, 1));
    EXPECT_HAS(answer(fewer), "lists 1 pages");
    Hand shared;
    shared.pages = {5, 6};
    shared.snap_in.push_back(piece(plan::SnapOpKind::import, 0, 16, 1, 1, 1));
    shared.snap_in.push_back(piece(plan::SnapOpKind::import, 0, 16, 3, 1, 1));
    EXPECT_HAS(answer(shared), "one job an area");
    Hand unheld;
    unheld.pages = {0};
    unheld.snap_out.push_back(piece(plan::SnapOpKind::exports, 0, 8, 1, 1, 1));
    EXPECT_HAS(answer(unheld), "no snapshot holds page 0");
    Hand good;
    good.pages = {5, 6};
    good.snap_in.push_back(piece(plan::SnapOpKind::import, 1, 16, 1, 2, 2));
    EXPECT_EQ(answer(good), "");
}

TEST_F(Mirror, Follows_a_cut_from_save_to_restore_and_drop) {
    Hand h;
    h.snap_out.push_back(snap(plan::SnapOpKind::save, 1, 0, 1, 8));
    ASSERT_EQ(refusal(h), "");
    EXPECT_EQ(mirror.cells_in_use(), 2);
    ASSERT_EQ(result(3, {}), "");
    // Length 8 is one whole page: slot 2 shares it and has its own behind it.
    Hand restore;
    restore.open(2, 1, {0, 3});
    restore.snap_in.push_back(snap(plan::SnapOpKind::restore, 1, 2, 1, 8));
    restore.window(2, 1, 8);
    ASSERT_EQ(apply(restore, 4), "");
    ASSERT_EQ(result(4, {{2, 1, 0, 1}}), "");
    EXPECT_EQ(mirror.length(2), 9);
    Hand drop;
    drop.snap_in.push_back(snap(plan::SnapOpKind::drop, 1, 0, 0, 8));
    ASSERT_EQ(apply(drop, 5), "");
    EXPECT_EQ(mirror.cells_in_use(), 0);
}

TEST_F(Mirror, A_cut_inside_a_page_needs_a_copy_and_keeps_its_rows_from_changing) {
    Hand h;
    h.chunk(1, 1, 0, 5).target_count = 1;
    h.targets.push_back({5, 0, 3, plan::CutKind::full, 0, 0, 0});
    ASSERT_EQ(refusal(h), "");
    ASSERT_EQ(result(3, {}, {{1, 1, 1, RowStatus::ok, 0, 0}}), "");
    Hand close;
    close.op(1, 1, plan::SlotOpKind::close);
    ASSERT_EQ(apply(close, 4), "");
    ASSERT_EQ(result(4, {}), "");
    {
        engine::PlanMirror other = mirror;
        Hand without;
        without.open(1, 2, {4});
        without.snap_in.push_back(snap(plan::SnapOpKind::restore, 3, 1, 2, 5));
        EXPECT_HAS(other.apply(without.get(5)).message().str(), "the snapshot has page 2");
    }
    {
        engine::PlanMirror other = mirror;
        Hand onto;
        onto.open(1, 2, {2});
        onto.copies.push_back({0, 2, 5, 0});
        EXPECT_HAS(other.apply(onto.get(5)).message().str(), "1 snapshots hold");
    }
    {
        engine::PlanMirror other = mirror;
        Hand again;
        again.open(1, 2, {2});
        again.chunk(1, 2, 0, 5);
        EXPECT_HAS(other.apply(again.get(5)).message().str(), "snapshots hold 5 rows");
    }
    Hand copied;
    copied.open(1, 2, {4});
    copied.copies.push_back({2, 4, 5, 0});
    copied.snap_in.push_back(snap(plan::SnapOpKind::restore, 3, 1, 2, 5));
    copied.window(1, 2, 5);
    EXPECT_EQ(apply(copied, 5), "");
}

TEST_F(Mirror, Refuses_cells_in_use_and_cuts_that_are_not_there) {
    const auto refused = [this](const plan::SnapOp& op) {
        engine::PlanMirror other = mirror;
        Hand h;
        (op.op == plan::SnapOpKind::save ? h.snap_out : h.snap_in).push_back(op);
        return other.apply(h.get(3)).message().str();
    };
    using K = plan::SnapOpKind;
    EXPECT_HAS(refused(snap(K::save, 0, 0, 1, 8)), "snapshot 0");
    EXPECT_HAS(refused(snap(K::save, 6, 0, 1, 8)), "the arena has 6");
    EXPECT_HAS(refused(snap(K::save, 1, 0, 1, 9)), "legal is 7 to 8");
    EXPECT_HAS(refused(snap(K::save, 1, 0, 1, 6)), "legal is 7 to 8");
    EXPECT_HAS(refused(snap(K::save, 1, 0, 2, 8)), "generation");
    EXPECT_HAS(refused(snap(K::drop, 1, 0, 0, 8)), "found none");
    EXPECT_HAS(refused(snap(K::restore, 1, 1, 1, 8)), "found none");
    plan::SnapOp partial = snap(K::save, 1, 0, 1, 8);
    partial.kind = plan::CutKind::partial;
    EXPECT_HAS(refused(partial), "full cuts only");
    Hand twice;
    twice.snap_out = {snap(K::save, 1, 0, 1, 8), snap(K::save, 2, 0, 1, 8)};
    EXPECT_HAS(refusal(twice), "cell 2 is in use");
}

TEST_F(Mirror, Refuses_drafts_without_a_window) {
    Hand h;
    h.drafts.push_back({0, 1, 2, 0});
    EXPECT_HAS(refusal(h), "needs one window");
}

TEST_F(Mirror, Rewinds_only_to_what_rings_still_hold) {
    Hand floor;
    floor.op(0, 1, plan::SlotOpKind::rewind, 6);
    EXPECT_HAS(refusal(floor), "legal is 7 to 8");
    Hand legal;
    legal.op(0, 1, plan::SlotOpKind::rewind, 7);
    EXPECT_EQ(apply(legal, 4), "");
    EXPECT_EQ(mirror.length(0), 7);
}

TEST_F(Mirror, Only_a_close_is_legal_after_a_failed_row) {
    Hand h;
    h.window(0, 1, 8);
    EXPECT_EQ(refusal(h), "");
    WindowResult failed{0, 1};
    failed.status = RowStatus::nan;
    EXPECT_EQ(result(3, {failed}), "");
    Hand next;
    next.window(0, 1, 8);
    EXPECT_HAS(apply(next, 4), "torn");
    Hand close;
    close.op(0, 1, plan::SlotOpKind::close);
    EXPECT_EQ(apply(close, 5), "");
}

TEST_F(Mirror, Refuses_results_that_do_not_match_their_plan) {
    Hand h;
    h.window(0, 1, 8, 4).accept_max = 2;
    EXPECT_EQ(refusal(h), "");
    EXPECT_HAS(result(2, {}), "result of step 2");
    EXPECT_HAS(result(3, {}), "no result");
    EXPECT_HAS(result(3, {{1, 1, 0, 1}}), "had no window");
    EXPECT_HAS(result(3, {{0, 1, 2, 3}}), "accept_max 2");
    EXPECT_EQ(result(3, {{0, 1, 1, 2}}), "");
}

}  // namespace
}  // namespace tenon::test
