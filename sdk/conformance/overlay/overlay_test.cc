// SPDX-License-Identifier: MIT
// Rules of overlays: which hook they implement, and that a schedule or a media cache keeps within
// it.
#include "tenon/overlay.h"
#include "tenon/testing/plugin_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace tenon::testing {
namespace {

class OverlayRules : public ::testing::TestWithParam<const Component*> {
  protected:
    void SetUp() override {
        OptionSet options(*GetParam());
        auto object = create_component(*GetParam(), host_, options);
        if (!object.ok()) {
            GTEST_SKIP() << "not usable with defaults here: " << object.status().message().view();
        }
        overlay_ = std::move(*object);
    }

    TestHost host_;
    Ref<Object> overlay_;
};

TENON_INSTANTIATE_FOR_KIND(OverlayRules, PluginKind::overlay);

TEST_P(OverlayRules, Implements_one_of_the_hooks) {
    const int hooks = (facet_of<WeightOverlay>(overlay_.get()) != nullptr ? 1 : 0) +
                      (facet_of<ScheduleOverlay>(overlay_.get()) != nullptr ? 1 : 0) +
                      (facet_of<MediaCache>(overlay_.get()) != nullptr ? 1 : 0);

    EXPECT_EQ(hooks, 1) << "an overlay is one hook; a plugin may have several components";
}

/// A view with slots in every state, and the storage behind it.
struct World {
    std::vector<SlotView> slots;
    std::vector<WaitingView> waiting;
    std::vector<int64_t> window_us = std::vector<int64_t>(49, 20'000);
    std::vector<int64_t> stage_us = {100'000, 120'000};
    SchedulerView view;  // borrows all of the above

    World(const World&) = delete;
    World& operator=(const World&) = delete;
    explicit World(std::mt19937_64& random) {
        const auto count = static_cast<uint32_t>(1 + random() % 8);
        for (uint32_t i = 0; i < count; ++i) {
            SlotView slot;
            slot.slot = i;
            slot.state = static_cast<uint32_t>(random() % 4);
            slot.arrival_seq = i + 1;
            slot.length = static_cast<int64_t>(random() % 5000);
            slot.prompt = slot.length + static_cast<int64_t>(random() % 5000);
            slot.age_us = static_cast<int64_t>(random() % 1'000'000);
            slot.sink_blocked = random() % 8 == 0 ? 1 : 0;
            slots.push_back(slot);
        }
        for (uint64_t i = 0; i < random() % 4; ++i) {
            WaitingView w;
            w.request = 100 + i;
            w.arrival_seq = 1000 + i;
            w.remaining = static_cast<int64_t>(random() % 9000);
            w.background = random() % 2 == 0 ? 1 : 0;
            waiting.push_back(w);
        }
        view.now_us = 1'000'000;
        view.slots = slots;
        view.waiting = waiting;
        view.pages_free = 1000;
        view.row_cap = 16;
        view.chunk_rows = 2048;
        view.stages = 2;
        view.window_us = window_us;
        view.stage_us = stage_us;
    }
};

/// Everything that is ready decodes; the first prompt gets a whole chunk.
class PlainOutliner final : public Outliner {
  public:
    Status outline(const SchedulerView& view, StepOutline* out) noexcept override {
        ++calls;
        if (fails) {
            return Status(Code::internal, "inner planner failed");
        }
        *out = StepOutline{};
        out->row_cap = view.row_cap;
        for (const SlotView& slot : view.slots) {
            if (slot.state == 2 && slot.sink_blocked == 0) {
                out->decode[out->decode_count++] = slot.slot;
            }
            if (slot.state == 1 && out->slice_slot < 0) {
                out->slice_slot = static_cast<int32_t>(slot.slot);
                out->slice_rows = view.chunk_rows;
            }
        }
        return {};
    }
    int calls = 0;
    bool fails = false;
};

class ScheduleRules : public OverlayRules {
  protected:
    void SetUp() override {
        OverlayRules::SetUp();
        if (IsSkipped() || HasFatalFailure()) {
            return;
        }
        schedule_ = facet_of<ScheduleOverlay>(overlay_.get());
        if (schedule_ == nullptr) {
            GTEST_SKIP() << "no facet " << ScheduleOverlay::kFacet;
        }
    }

    ScheduleOverlay* schedule_ = nullptr;
    PlainOutliner inner_;
};

TENON_INSTANTIATE_FOR_KIND(ScheduleRules, PluginKind::overlay);

TEST_P(ScheduleRules, Chooses_only_among_what_the_view_offers) {
    std::mt19937_64 random(1);
    for (int round = 0; round < 500; ++round) {
        World world(random);
        StepOutline out;
        TENON_ASSERT_OK(schedule_->outline(world.view, inner_, &out));

        ASSERT_GE(out.decode_count, 0);
        ASSERT_LE(out.decode_count, StepOutline::kMaxSlots);
        std::set<uint32_t> decoded;
        for (int32_t i = 0; i < out.decode_count; ++i) {
            const uint32_t slot = out.decode[i];
            ASSERT_LT(slot, world.slots.size());
            EXPECT_EQ(world.slots[slot].state, 2u) << "slot " << slot << " does not decode";
            EXPECT_TRUE(decoded.insert(slot).second) << "slot " << slot << " twice";
        }
        EXPECT_GE(out.row_cap, 0);
        EXPECT_LE(out.row_cap, world.view.row_cap);
        if (out.slice_slot >= 0) {
            ASSERT_LT(static_cast<size_t>(out.slice_slot), world.slots.size());
            EXPECT_EQ(world.slots[static_cast<size_t>(out.slice_slot)].state, 1u);
            EXPECT_GT(out.slice_rows, 0);
            EXPECT_LE(out.slice_rows, world.view.chunk_rows);
            EXPECT_GE(out.slice_stages, 0);
            EXPECT_LE(out.slice_stages, world.view.stages);
        }
    }
}

TEST_P(ScheduleRules, Errors_of_the_inner_planner_come_through) {
    std::mt19937_64 random(2);
    World world(random);
    inner_.fails = true;
    StepOutline out;

    const Status status = schedule_->outline(world.view, inner_, &out);

    if (inner_.calls > 0) {
        EXPECT_EQ(status.code(), Code::internal);
        EXPECT_NE(status.message().str().find("inner planner failed"), std::string::npos);
    }
}

TEST_P(ScheduleRules, A_prompt_beside_replies_does_not_wait_for_ever) {
    std::mt19937_64 random(3);
    World world(random);
    world.slots.assign(2, SlotView{});
    world.slots[0].state = 2;
    world.slots[1].slot = 1;
    world.slots[1].state = 1;
    world.slots[1].prompt = 4000;
    world.view.slots = world.slots;
    bool sliced = false;
    for (int step = 0; step < 5000 && !sliced; ++step) {
        StepOutline out;
        TENON_ASSERT_OK(schedule_->outline(world.view, inner_, &out));
        sliced = out.slice_slot == 1;
        world.view.now_us += 20'000;
        world.slots[1].age_us += 20'000;
    }

    EXPECT_TRUE(sliced) << "no prompt slice in 5000 steps (100 s)";
}

TEST_P(ScheduleRules, Two_instances_keep_their_own_state) {
    OptionSet options(*GetParam());
    auto second = create_component(*GetParam(), host_, options);
    ASSERT_TRUE(second.ok());
    auto* other = facet_of<ScheduleOverlay>(second->get());
    ASSERT_NE(other, nullptr);
    std::mt19937_64 random(4);
    std::vector<std::unique_ptr<World>> worlds;
    for (int i = 0; i < 50; ++i) {
        worlds.push_back(std::make_unique<World>(random));  // its view points into it
    }
    const auto run = [&](ScheduleOverlay& schedule, const World& world) {
        StepOutline out;
        TENON_EXPECT_OK(schedule.outline(world.view, inner_, &out));
        return std::make_pair(out.decode_count, out.slice_slot);
    };

    for (const auto& world : worlds) {
        EXPECT_EQ(run(*schedule_, *world), run(*other, *world))
            << "equal histories, equal outlines";
    }
}

class MediaCacheRules : public OverlayRules {
  protected:
    void SetUp() override {
        OverlayRules::SetUp();
        if (IsSkipped() || HasFatalFailure()) {
            return;
        }
        cache_ = facet_of<MediaCache>(overlay_.get());
        if (cache_ == nullptr) {
            GTEST_SKIP() << "no facet " << MediaCache::kFacet;
        }
    }

    MediaCache* cache_ = nullptr;
};

TENON_INSTANTIATE_FOR_KIND(MediaCacheRules, PluginKind::overlay);

TEST_P(MediaCacheRules, Gives_back_the_bytes_of_that_key_or_nothing) {
    std::mt19937_64 random(5);
    std::vector<std::vector<uint8_t>> stored;
    uint8_t key[32] = {};
    std::vector<uint8_t> rows(4096, 0xA5);
    EXPECT_FALSE(cache_->get(key, rows));
    EXPECT_EQ(std::count(rows.begin(), rows.end(), 0xA5), 4096) << "written on a miss";
    for (uint8_t i = 0; i < 200; ++i) {
        stored.emplace_back(4096);
        std::generate(stored.back().begin(), stored.back().end(),
                      [&] { return static_cast<uint8_t>(random()); });
        key[31] = i;
        cache_->put(key, stored.back());
    }
    for (uint8_t i = 0; i < 200; ++i) {
        key[31] = i;
        if (cache_->get(key, rows)) {
            ASSERT_EQ(rows, stored[i]) << "key " << int{i};
        }
    }
    key[0] = 1;
    EXPECT_FALSE(cache_->get(key, rows));
    EXPECT_EQ(cache_->keeps_states(), cache_->keeps_states());
}

}  // namespace
}  // namespace tenon::testing
