// SPDX-License-Identifier: MIT
// Kept prefixes on disk, with the scripted model: restarts, evictions, parked replies, damage
// (engine.md 9: 5, 16, 17, 24, 25, 33).
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>

#include "host/engine/plan_digest.h"
#include "host/engine/step_bundle.h"
#include "tests/unit/engine_recording.h"
#include "tests/unit/host_support.h"

namespace tenon::test {
namespace {

namespace fs = std::filesystem;
using engine::SpillStore;
using engine::SpillTier;

/// For the message of a test that sees no progress.
std::string state_of(const Bench& bench) {
    const engine::Planner& planner = bench.core->planner();
    const engine::SpillPlan& spill = planner.spill();
    std::string text = format(
        "pages {} free, {} of cuts alone, {} parked, {} wait; exporting {}, can export {}, active "
        "{}, can load {}",
        planner.pages().free(), planner.pages().held_only(), planner.parked(), planner.waiting(),
        spill.is_exporting(), spill.can_export(), spill.is_active(), spill.can_load());
    for (int32_t i = 0; i < bench.config.slots; ++i) {
        const engine::Planner::SlotInfo s = planner.slot(i);
        text += format("; slot {} state {} length {} known {} emitted {}", i,
                       static_cast<uint32_t>(s.state), s.length, s.known, s.emitted);
    }
    for (int32_t i = 0; i < planner.cache().index().capacity(); ++i) {
        const engine::Cut& c = planner.cache().index().cut(i);
        if (c.used) {
            text += format("; cut at {} kind {} live {} hard {} soft {} owner {} file {} none {}",
                           c.at, static_cast<uint32_t>(c.kind), c.live, c.hard_pins, c.soft_pins,
                           c.owner, c.spill.id, c.no_spill);
        }
    }
    return text;
}

/// One process: a store on the folder and an engine over it.
struct Served {
    Served(const fs::path& dir, ScriptedOptions o, int64_t budget = 1 << 30,
           engine::PlannerRecorder* recorder = nullptr) {
        o.staging = true;
        ScriptedModel sizes(o);
        auto* staging = facet_of<ModelStaging>(static_cast<Model*>(&sizes));
        engine::SpillDigest key{};
        key.fill(5);
        auto store = SpillStore::open(
            {dir.string(), key, sizes.info().page_bytes, staging->snapshot_bytes(), 0, 1}, host);
        EXPECT_TRUE(store.ok()) << store.status().message().view();
        tier = std::make_unique<SpillTier>(std::move(*store));
        bench = std::make_unique<Bench>(
            o, 0, recorder, Span<ScheduleOverlay* const>(), false,
            [&](engine::PlannerConfig& c) {
                c.spill.areas = staging->areas();
                c.spill.area_bytes = static_cast<int64_t>(staging->area(0).size);
                c.spill.snapshot_bytes = staging->snapshot_bytes();
                c.spill.budget = budget;
                c.spill.capacity = 64;
                c.spill.key = key;
                c.spill.found = tier->found();
                config = c;
            },
            tier.get());
    }
    void flush() {
        bench->core->flush();
        for (int i = 0; i < 10'000 && !bench->core->flushed(); ++i) {
            bench->round();
            ASSERT_TRUE(bench->status.ok()) << bench->status.message().view();
        }
        EXPECT_TRUE(bench->core->flushed());
    }
    int64_t hits() const { return bench->core->planner().spill().hits(); }
    int64_t misses() const { return bench->core->planner().spill().misses(); }

    FakeHost host;
    std::unique_ptr<SpillTier> tier;
    engine::PlannerConfig config;
    std::unique_ptr<Bench> bench;
};

class SpillEngine : public ::testing::Test {
  protected:
    void SetUp() override {
        options_.snapshot_cells = 16;
        options_.eos_permille = 0;
    }
    std::vector<int32_t> fresh(Ask ask) {
        ScriptedOptions o = options_;
        o.snapshot_cells = 0;
        o.pool_pages = 0;
        Bench bench(o);
        return bench.ask(ask).ids;
    }
    std::vector<fs::path> files() const {
        std::vector<fs::path> out;
        for (const fs::directory_entry& e : fs::directory_iterator(dir_)) {
            if (e.path().extension() == ".tnkv") {
                out.push_back(e.path());
            }
        }
        return out;
    }
    int64_t bytes() const {
        int64_t n = 0;
        for (const fs::path& p : files()) {
            n += static_cast<int64_t>(fs::file_size(p));
        }
        return n;
    }

    testing::TempFolder folder_;
    fs::path dir_ = folder_.path();
    ScriptedOptions options_;
};

TEST_F(SpillEngine, A_restart_goes_on_with_what_was_kept) {
    std::mt19937_64 rng(test_seed());
    for (const int64_t n : {7, 8, 9, 33, 64, 100, 250}) {
        const std::vector<int32_t> prompt = random_ids(rng, static_cast<size_t>(n));
        Ask ask = ask_for(prompt);
        Got first;
        {
            Served s(dir_, options_);
            first = s.bench->ask(ask);
            s.flush();
        }
        const std::vector<int32_t> expected = fresh(ask);
        EXPECT_EQ(first.ids, expected);
        Served s(dir_, options_);
        const Got retry = s.bench->ask(ask);
        EXPECT_EQ(retry.ids, expected) << n;
        EXPECT_EQ(retry.timings.cached_tokens, n - 1);
        EXPECT_EQ(s.hits(), 1);
        std::vector<int32_t> turn = prompt;
        turn.insert(turn.end(), first.ids.begin(), first.ids.end());
        const std::vector<int32_t> more = random_ids(rng, 9);
        turn.insert(turn.end(), more.begin(), more.end());
        Ask next = ask_for(turn);
        const Got second = s.bench->ask(next);
        EXPECT_EQ(second.ids, fresh(next));
        EXPECT_EQ(second.timings.cached_tokens, n + 11)
            << "the reply's cut came from memory or disk";
        s.flush();
        check_pages(*s.bench);
    }
}

TEST_F(SpillEngine, A_turn_writes_only_what_its_parent_lacks) {
    std::mt19937_64 rng(4);
    const std::vector<int32_t> prompt = random_ids(rng, 300);
    Ask one = ask_for(prompt);
    Got got;
    {
        Served s(dir_, options_);
        got = s.bench->ask(one);
        s.flush();
    }
    const int64_t before = bytes();
    std::vector<int32_t> turn = prompt;
    turn.insert(turn.end(), got.ids.begin(), got.ids.end());
    turn.push_back(40);
    Ask two = ask_for(turn);
    {
        Served s(dir_, options_);
        got = s.bench->ask(two);
        s.flush();
    }
    EXPECT_LT(bytes() - before, before);
    Served s(dir_, options_);
    const Got again = s.bench->ask(two);
    EXPECT_EQ(again.ids, got.ids);
    EXPECT_EQ(again.ids, fresh(two));
    EXPECT_EQ(again.timings.cached_tokens, static_cast<int64_t>(turn.size()) - 1);
}

TEST_F(SpillEngine, What_is_given_up_for_room_comes_back) {
    options_.snapshot_cells = 10;
    std::mt19937_64 rng(test_seed());
    Served s(dir_, options_);
    std::vector<Ask> asks;
    for (int i = 0; i < 8; ++i) {
        asks.push_back(ask_for(random_ids(rng, 60 + rng() % 60)));
    }
    int64_t cached = 0;
    for (int round = 0; round < 3; ++round) {
        for (Ask& ask : asks) {
            const Got got = s.bench->ask(ask);
            EXPECT_EQ(got.ids, fresh(ask));
            cached += round > 0 && got.timings.cached_tokens > 0 ? 1 : 0;
            check_pages(*s.bench);
        }
    }
    EXPECT_EQ(cached, 16) << "every retry";
    EXPECT_GT(s.hits(), 8);
    EXPECT_EQ(s.misses(), 0);
}

TEST_F(SpillEngine, A_full_pool_sends_cuts_to_disk_before_their_pages_go) {
    options_.snapshot_cells = 64;
    options_.slots = 2;
    options_.context = 256;
    options_.pool_pages = 40;  // one context is 32
    std::mt19937_64 rng(test_seed());
    Served s(dir_, options_);
    std::vector<Ask> asks;
    for (int i = 0; i < 5; ++i) {
        asks.push_back(ask_for(random_ids(rng, 120 + rng() % 100)));
    }
    for (int round = 0; round < 2; ++round) {
        for (Ask& ask : asks) {
            const Got got = s.bench->ask(ask);
            EXPECT_EQ(got.ids, fresh(ask));
            if (round > 0) {
                EXPECT_EQ(got.timings.cached_tokens, static_cast<int64_t>(ask.prompt.size()) - 1);
            }
        }
    }
    EXPECT_GE(s.hits(), 5);
    check_pages(*s.bench);
}

TEST_F(SpillEngine, Damaged_and_missing_files_are_misses_and_go) {
    std::mt19937_64 rng(test_seed());
    for (int kind = 0; kind < 4; ++kind) {
        Ask ask = ask_for(random_ids(rng, 150));
        {
            Served s(dir_, options_);
            s.bench->ask(ask);
            s.flush();
        }
        ASSERT_GE(files().size(), 2U);
        Served s(dir_, options_);
        for (const fs::path& p : files()) {
            if (kind == 0) {
                fs::remove(p);
            } else if (kind == 1) {
                fs::resize_file(p, fs::file_size(p) - 1);
            } else {
                std::fstream f(p, std::ios::binary | std::ios::in | std::ios::out);
                f.seekp(kind == 2 ? 4096 + 700 : 50);
                f.put('\x55');
            }
        }
        const Got got = s.bench->ask(ask);
        EXPECT_EQ(got.ids, fresh(ask)) << kind;
        EXPECT_EQ(got.timings.cached_tokens, 0) << kind;
        EXPECT_GE(s.misses(), 1) << kind;
        for (const fs::path& p : files()) {
            fs::remove(p);
        }
        check_pages(*s.bench);
    }
}

TEST_F(SpillEngine, A_load_whose_request_is_cancelled_leaves_nothing_pinned) {
    std::mt19937_64 rng(10);
    Ask ask = ask_for(random_ids(rng, 250));
    {
        Served s(dir_, options_);
        s.bench->ask(ask);
        s.flush();
    }
    Served s(dir_, options_);
    const engine::SpillPlan& spill = s.bench->core->planner().spill();
    engine::Request* request = s.bench->submit(ask);
    while (!spill.is_active()) {
        s.bench->round();
        ASSERT_TRUE(s.bench->status.ok());
    }
    request->cancel(CancelReason::client_gone);
    while (spill.is_active() || s.bench->core->active().load() > 0) {
        s.bench->round();
        ASSERT_TRUE(s.bench->status.ok());
    }
    EXPECT_EQ(s.hits(), 1);
    s.bench->core->set_memory_level(1);
    ASSERT_TRUE(s.bench->run());
    EXPECT_EQ(s.bench->core->planner().pages().free(), s.bench->core->planner().pages().total());
}

TEST_F(SpillEngine, A_long_step_is_no_disk_that_does_not_answer) {
    std::mt19937_64 rng(11);
    Ask ask = ask_for(random_ids(rng, 250));
    const auto slow = [](Served& s) {
        s.bench->model.on_submit([&s](const StepPlan&) { s.bench->host.advance(6'000'000); });
    };
    {
        Served s(dir_, options_);
        slow(s);
        s.bench->ask(ask);
        s.flush();
        EXPECT_GE(files().size(), 2U);
    }
    Served s(dir_, options_);
    slow(s);
    EXPECT_EQ(s.bench->ask(ask).timings.cached_tokens, 249);
    EXPECT_EQ(s.hits(), 1);
    EXPECT_EQ(s.misses(), 0);
}

TEST_F(SpillEngine, No_salt_finds_the_files_of_another) {
    std::mt19937_64 rng(9);
    const std::vector<int32_t> prompt = random_ids(rng, 90);
    {
        Served s(dir_, options_);
        Ask ask = ask_for(prompt, 12, 1);
        s.bench->ask(ask);
        s.flush();
    }
    Served s(dir_, options_);
    Ask other = ask_for(prompt, 12, 2);
    EXPECT_EQ(s.bench->ask(other).timings.cached_tokens, 0);
    Ask same = ask_for(prompt, 12, 1);
    EXPECT_EQ(s.bench->ask(same).timings.cached_tokens, 89);
}

TEST_F(SpillEngine, The_budget_holds_and_the_oldest_go) {
    std::mt19937_64 rng(3);
    std::vector<Ask> asks;
    for (int i = 0; i < 6; ++i) {
        asks.push_back(ask_for(random_ids(rng, 120)));
    }
    int64_t budget = 0;
    {
        Served s(dir_, options_);
        s.bench->ask(asks[0]);
        s.flush();
        budget = 3 * bytes();
    }
    for (Ask& ask : asks) {
        Served s(dir_, options_, budget);
        s.bench->ask(ask);
        s.flush();
        EXPECT_LE(bytes(), budget);
    }
    Served s(dir_, options_, budget);
    EXPECT_EQ(s.bench->ask(asks[5]).timings.cached_tokens, 119);
    EXPECT_EQ(s.bench->ask(asks[0]).timings.cached_tokens, 0);
}

TEST_F(SpillEngine, A_full_disk_changes_nothing_but_what_is_kept) {
    options_.snapshot_cells = 10;
    std::mt19937_64 rng(7);
    Served s(dir_, options_);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit little = before;
    little.rlim_cur = 5000;
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
    for (int i = 0; i < 12; ++i) {
        Ask ask = ask_for(random_ids(rng, 100));
        EXPECT_EQ(s.bench->ask(ask).ids, fresh(ask));
        check_pages(*s.bench);
    }
    s.flush();
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    EXPECT_EQ(files().size(), 0U);
    EXPECT_EQ(s.host.count_lines("nothing more is written"), 1);
}

TEST_F(SpillEngine, Parked_replies_go_to_disk_and_come_back) {
    std::mt19937_64 rng(test_seed());
    int64_t parked = 0;
    int64_t hits = 0;
    for (int round = 0; round < 6; ++round) {
        options_.slots = 4;
        options_.context = 256;
        options_.pool_pages = 34 + static_cast<int64_t>(rng() % 12);
        options_.snapshot_cells = 24;
        options_.draft_max = 0;
        Served s(dir_, options_);
        std::vector<Ask> asks;
        std::vector<engine::Request*> requests;
        for (int i = 0; i < 8; ++i) {
            Ask ask = random_ask(rng, 60, 120);
            ask.stops.clear();
            ask.desc.max_new_tokens = 60 + static_cast<int64_t>(rng() % 120);
            ask.desc.keeps_reasoning = rng() % 2 == 0;
            asks.push_back(std::move(ask));
        }
        for (Ask& ask : asks) {
            requests.push_back(s.bench->submit(ask));
            for (uint64_t k = rng() % 20; k > 0; --k) {
                s.bench->round();
                ASSERT_TRUE(s.bench->status.ok()) << s.bench->status.message().view();
                check_pages(*s.bench);
            }
        }
        if (round % 2 == 1) {
            requests[rng() % requests.size()]->cancel(CancelReason::client_gone);
        }
        ASSERT_TRUE(s.bench->run());
        for (size_t i = 0; i < asks.size(); ++i) {
            const Got got = s.bench->result(requests[i]);
            if (got.code == Code::ok) {
                EXPECT_EQ(got.ids, fresh(asks[i])) << "round " << round << " request " << i;
            }
        }
        parked += static_cast<int64_t>(s.bench->host.value("preemptions_total"));
        hits += s.hits();
        s.bench->core->set_memory_level(1);
        ASSERT_TRUE(s.bench->run());
        EXPECT_EQ(s.bench->core->planner().pages().free(),
                  s.bench->core->planner().pages().total());
        EXPECT_EQ(s.bench->core->mirror().cells_in_use(), 0);
    }
    std::printf("parked %lld, loaded %lld\n", static_cast<long long>(parked),
                static_cast<long long>(hits));
    EXPECT_GT(parked, 0);
    EXPECT_GT(hits, 0);
}

TEST_F(SpillEngine, With_a_pool_of_one_context_every_reply_ends_whatever_comes) {
    std::mt19937_64 rng(test_seed());
    options_.context = 256;
    const std::vector<int32_t> shared = random_ids(rng, 90);
    double parked = 0;
    int64_t hits = 0;
    for (int round = 0; round < 6; ++round) {
        options_.slots = round % 2 == 0 ? 4 : 2;
        // The least that an engine takes, and less.
        options_.pool_pages =
            options_.context / options_.page_tokens + (round < 3 ? 2 * options_.slots : 0);
        options_.snapshot_cells = 12 + round * 4;
        options_.partial_distance = round % 3 == 2 ? 90 : 0;
        Served s(dir_, options_, round % 2 == 0 ? 1 << 30 : 500'000);
        std::deque<Ask> asks;
        std::vector<engine::Request*> requests;
        std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
        for (int64_t ended = 0; asks.size() < 24 || s.bench->core->active().load() > 0;) {
            if (asks.size() < 24 && s.bench->core->active().load() < 10 && rng() % 3 == 0) {
                std::vector<int32_t> prompt = random_ids(rng, 1 + rng() % 220);
                if (rng() % 2 == 0) {
                    std::copy_n(shared.begin(), std::min(shared.size(), prompt.size()),
                                prompt.begin());
                }
                // Some fill the context to its last position.
                const uint64_t room = 256 - prompt.size();
                const auto most = static_cast<int64_t>(rng() % 3 == 0 ? room : 1 + rng() % room);
                asks.push_back(ask_for(std::move(prompt), most));
                asks.back().desc.keeps_reasoning = rng() % 2 == 0;
                asks.back().desc.priority =
                    rng() % 5 == 0 ? Priority::background : Priority::foreground;
                requests.push_back(s.bench->submit(asks.back()));
                if (rng() % 6 == 0) {
                    requests[rng() % requests.size()]->cancel(CancelReason::client_gone);
                }
            }
            s.bench->round();
            ASSERT_TRUE(s.bench->status.ok()) << s.bench->status.message().view();
            int64_t now = 0;
            for (engine::Request* request : requests) {
                now += s.bench->result(request).terminals;
            }
            const auto at = std::chrono::steady_clock::now();
            last = now > ended ? at : last;
            ended = now;
            ASSERT_LT(at - last, std::chrono::seconds(60))
                << "round " << round << ": nothing ends; " << state_of(*s.bench);
        }
        check_pages(*s.bench);
        for (size_t i = 0; i < asks.size(); ++i) {
            const Got got = s.bench->result(requests[i]);
            EXPECT_EQ(got.terminals, 1);
            if (!got.kind.empty()) {
                EXPECT_EQ(got.kind, "client_gone") << got.message;
            } else {
                EXPECT_EQ(got.ids, fresh(asks[i])) << "round " << round << " request " << i;
            }
        }
        parked += s.bench->host.value("preemptions_total");
        hits += s.hits();
        EXPECT_EQ(s.misses(), 0);
    }
    EXPECT_GT(parked, 10);
    EXPECT_GT(hits, 10);
}

TEST_F(SpillEngine, Random_talks_with_restarts_have_the_ids_of_fresh_ones) {
    std::mt19937_64 rng(test_seed());
    options_.context = 512;
    std::vector<std::vector<int32_t>> talks;
    for (int i = 0; i < 10; ++i) {
        talks.push_back(random_ids(rng, 20 + rng() % 100));
    }
    int64_t hits = 0;
    for (int process = 0; process < 6; ++process) {
        options_.slots = 1 + static_cast<int32_t>(rng() % 4);
        options_.snapshot_cells = 8 + static_cast<int32_t>(rng() % 20);
        options_.pool_pages = 66 + static_cast<int64_t>(rng() % 60);
        Served s(dir_, options_, 300'000 + static_cast<int64_t>(rng() % 400'000));
        for (int batch = 0; batch < 4; ++batch) {
            std::vector<Ask> asks;
            std::vector<size_t> who;
            std::vector<engine::Request*> requests;
            for (uint64_t i = 1 + rng() % 5; i > 0; --i) {
                who.push_back(rng() % talks.size());
                if (talks[who.back()].size() > 420) {
                    talks[who.back()].resize(50);
                }
                asks.push_back(ask_for(talks[who.back()], 1 + static_cast<int64_t>(rng() % 30),
                                       who.back() % 2));
            }
            for (Ask& ask : asks) {
                requests.push_back(s.bench->submit(ask));
                s.bench->round();
                check_pages(*s.bench);
            }
            ASSERT_TRUE(s.bench->run());
            check_pages(*s.bench);
            for (size_t i = 0; i < asks.size(); ++i) {
                const Got got = s.bench->result(requests[i]);
                ASSERT_EQ(got.ids, fresh(asks[i]));
                talks[who[i]] = asks[i].prompt;
                talks[who[i]].insert(talks[who[i]].end(), got.ids.begin(), got.ids.end());
                const std::vector<int32_t> more = random_ids(rng, 1 + rng() % 30);
                talks[who[i]].insert(talks[who[i]].end(), more.begin(), more.end());
            }
        }
        if (rng() % 4 != 0) {
            s.flush();
        }
        hits += s.hits();
        EXPECT_EQ(s.misses(), 0);
    }
    EXPECT_GT(hits, 3);
}

TEST_F(SpillEngine, Replaying_recorded_inputs_gives_byte_equal_plans) {
    options_.snapshot_cells = 10;
    std::mt19937_64 rng(5);
    Recorder recorder;
    engine::PlannerConfig config;
    {
        Served s(dir_, options_, 1 << 30, &recorder);
        config = s.config;
        std::vector<Ask> asks;
        for (int i = 0; i < 5; ++i) {
            asks.push_back(ask_for(random_ids(rng, 100)));
        }
        for (int round = 0; round < 2; ++round) {
            for (Ask& ask : asks) {
                s.bench->ask(ask);
            }
        }
        s.flush();
        EXPECT_GT(s.hits(), 0);
    }
    config.spill.found = {};
    FakeHost host;
    engine::Planner planner(config, {}, host);
    CostTable costs;
    int64_t pieces = 0;
    std::vector<uint8_t> encoded(engine::longest_plan_bytes(config));
    for (const Recorder::Step& step : recorder.steps) {
        planner.outline(step.outline);
        StepPlan plan;
        const bool has_plan = planner.finish(step.finish, &plan);
        ASSERT_EQ(has_plan, !step.plan.empty());
        if (!has_plan) {
            continue;
        }
        pieces += static_cast<int64_t>(plan.snap_out.size + plan.snap_in.size);
        uint64_t size = 0;
        ASSERT_TRUE(plan::encode(plan, &engine::plan_digest, encoded, &size).ok());
        ASSERT_EQ(size, step.plan.size());
        ASSERT_TRUE(std::equal(step.plan.begin(), step.plan.end(), encoded.begin()))
            << "step " << plan.header.step;
    }
    EXPECT_GT(pieces, 10);
}

TEST_F(SpillEngine, A_record_with_imports_replays) {
    std::mt19937_64 rng(6);
    Ask ask = ask_for(random_ids(rng, 200));
    {
        Served s(dir_, options_);
        s.bench->ask(ask);
        s.flush();
    }
    const fs::path record = dir_ / "record";
    FakeHost host;
    {
        auto made = engine::BundleWriter::create(record.string(), "{}", host);
        ASSERT_TRUE(made.ok());
        const std::unique_ptr<engine::BundleWriter> writer = std::move(*made);
        Served s(dir_, options_, 1 << 30, writer.get());
        EXPECT_EQ(s.bench->ask(ask).timings.cached_tokens, 199);
    }
    ScriptedOptions o = options_;
    o.staging = true;
    ScriptedModel model(o);
    auto* staging = facet_of<ModelStaging>(static_cast<Model*>(&model));
    engine::BundleReader reader;
    ASSERT_TRUE(reader.open(record.string()).ok());
    StepPlan plan;
    StepResult recorded, replayed;
    bool has_result = false;
    int64_t imports = 0;
    int64_t steps = 0;
    for (;; ++steps) {
        auto found = reader.next(&plan, &recorded, &has_result);
        ASSERT_TRUE(found.ok()) << found.status().message().view();
        if (!*found) {
            break;
        }
        reader.each_import([&](uint64_t job, Span<const uint8_t> bytes) {
            ++imports;
            std::copy_n(bytes.begin(), std::min(bytes.size, staging->area(0).size),
                        staging->area(static_cast<int32_t>(job % 2)).begin());
        });
        ASSERT_TRUE(model.submit(plan).ok());
        for (const Stage stage : {Stage::tokens, Stage::drafts, Stage::done}) {
            ASSERT_TRUE(model.collect(plan.header.step, stage, &replayed).ok());
        }
        EXPECT_EQ(has_result ? engine::result_difference(recorded, replayed) : "", "");
    }
    EXPECT_GT(imports, 1);
    EXPECT_GT(steps, 5);
}

TEST_F(SpillEngine, A_disk_that_does_not_answer_is_not_waited_for) {
    // The tier is never asked for answers: its files take for ever.
    options_.slots = 2;
    options_.context = 256;
    options_.pool_pages = 40;
    std::mt19937_64 rng(8);
    options_.staging = true;
    ScriptedModel sizes(options_);
    auto* staging = facet_of<ModelStaging>(static_cast<Model*>(&sizes));
    engine::SpillDigest key{};
    FakeHost host;
    auto store = SpillStore::open(
        {dir_.string(), key, sizes.info().page_bytes, staging->snapshot_bytes(), 0, 1}, host);
    ASSERT_TRUE(store.ok());
    Bench bench(
        options_, 0, nullptr, {}, false,
        [&](engine::PlannerConfig& c) {
            c.spill.areas = 2;
            c.spill.area_bytes = static_cast<int64_t>(staging->area(0).size);
            c.spill.snapshot_bytes = staging->snapshot_bytes();
            c.spill.budget = 1 << 30;
            c.spill.capacity = 64;
            c.spill.key = key;
            c.spill.stall_us = 20'000;
        },
        nullptr);
    for (int i = 0; i < 6; ++i) {
        Ask ask = ask_for(random_ids(rng, 200));
        EXPECT_EQ(bench.ask(ask).ids, fresh(ask));
        check_pages(bench);
    }
}

}  // namespace
}  // namespace tenon::test
