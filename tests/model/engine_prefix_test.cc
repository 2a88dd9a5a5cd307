// SPDX-License-Identifier: MIT
// Kept prefixes on the real small model: ids from a cut, from a shared prefix and after a
// cancellation are the ids of a fresh prompt.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "fakes/fake_host.h"
#include "host/engine/engine_loop.h"
#include "model/models.h"

namespace tenon::testing {
namespace {

struct Reply {
    std::vector<int32_t> ids;
    int64_t cached = 0;
};

class EnginePrefix : public ::testing::Test {
  protected:
    /// One model for all tests of the suite; an engine of its own for each `Served`.
    struct Served {
        explicit Served(int32_t cells, int32_t chunk_rows = 128, const std::string& spill_dir = {},
                        int64_t pool_pages = 0) {
            RigOptions options = mini_model();
            options.spill = !spill_dir.empty();
            options.slots = 2;
            options.chunk_rows = chunk_rows;
            options.snapshot_cells = cells;
            rig = make_rig(options);
            EngineSettings settings;
            settings.slots = 2;
            settings.context_tokens = options.context;
            settings.chunk_rows = chunk_rows;
            settings.snapshot_cells = cells;
            settings.spill_dir = spill_dir;
            settings.pool_pages = pool_pages;
            settings.draft_depth = 3;
            auto made = EngineLoop::create(rig->model(), std::move(settings), host, {});
            check(made.ok() ? Status() : made.take_status());
            loop = std::move(*made);
            check(loop->start());
        }
        ~Served() { loop->stop(); }
        Ref<ReplySink> submit(const std::vector<int32_t>& prompt, float temperature,
                              uint64_t salt = 0) {
            RequestDesc desc;
            desc.tokens = prompt;
            desc.sampling.temperature = temperature;
            desc.max_new_tokens = 24;
            desc.cache_salt = salt;
            desc.flags = kRawText | kReturnIds | kIgnoreEos | kDraftsAllowed;
            Ref<ReplySink> sink;
            check(loop->submit(desc, sink.out()));
            return sink;
        }
        static Reply take(ReplySink& sink) {
            Reply reply;
            SinkEvent event;
            while (!sink.finished() && sink.next(120'000'000, &event)) {
                reply.ids.insert(reply.ids.end(), event.ids.begin(), event.ids.end());
                if (event.timings != nullptr) {
                    reply.cached = event.timings->cached_tokens;
                }
            }
            return reply;
        }
        void flush() {
            const int64_t limit = host.now_us() + 60'000'000;
            while (!loop->flush_spill() && host.now_us() < limit) {
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
            }
        }
        Reply ask(const std::vector<int32_t>& prompt, float temperature = 0, uint64_t salt = 0) {
            return take(*submit(prompt, temperature, salt));
        }

        fakes::FakeHost host;
        std::unique_ptr<ModelRig> rig;
        Ref<EngineLoop> loop;
    };
    static Served& fresh() {
        static Served served(0);
        return served;
    }
};

TEST_F(EnginePrefix, Turns_retries_and_branches_give_the_ids_of_fresh_prompts) {
    Served kept(64);
    std::vector<int32_t> talk = some_ids(310, 41);
    for (const float temperature : {0.0F, 1.0F}) {
        std::vector<int32_t> prompt = talk;
        for (int turn = 0; turn < 3; ++turn) {
            const auto n = static_cast<int64_t>(prompt.size());
            const Reply reply = kept.ask(prompt, temperature);
            const Reply again = kept.ask(prompt, temperature);
            const Reply expected = fresh().ask(prompt, temperature);
            // A device whose decoded rows have bits of their own keeps them for the next turn.
            if (turn == 0 || kept.rig->model().info().numeric_classes == 1) {
                EXPECT_EQ(reply.ids, expected.ids) << "turn " << turn;
            }
            EXPECT_EQ(again.ids, reply.ids) << "retry of turn " << turn;
            EXPECT_EQ(again.cached, n - 1);
            if (turn > 0) {
                // All but the last token of the reply before, which was never computed.
                EXPECT_EQ(reply.cached, n - 33 - 1);
            }
            prompt.insert(prompt.end(), reply.ids.begin(), reply.ids.end());
            const std::vector<int32_t> more = some_ids(33, 50 + static_cast<uint64_t>(turn));
            prompt.insert(prompt.end(), more.begin(), more.end());
        }
        talk[100] = 7;  // another conversation from here on
    }
    EXPECT_EQ(kept.ask(talk, 0, 9).cached, 0) << "another salt";
}

TEST_F(EnginePrefix, A_cancelled_prompt_goes_on_where_it_was) {
    Served kept(64, 64);
    const std::vector<int32_t> prompt = some_ids(700, 43);
    const Ref<ReplySink> sink = kept.submit(prompt, 0);
    SinkEvent event;
    ASSERT_TRUE(sink->next(60'000'000, &event));
    ASSERT_EQ(event.kind, SinkEventKind::started);
    EngineStats stats;
    const int64_t limit = kept.host.now_us() + 60'000'000;
    do {
        kept.loop->stats(&stats);
    } while (stats.slots[0].length < 192 && kept.host.now_us() < limit);
    sink->cancel(CancelReason::client_gone);
    Served::take(*sink);
    const Reply retry = kept.ask(prompt);
    EXPECT_GE(retry.cached, 128);
    EXPECT_EQ(retry.ids, fresh().ask(prompt).ids);
}

TEST_F(EnginePrefix, Two_requests_with_one_new_prefix_share_its_pass) {
    Served kept(64, 64);
    const std::vector<int32_t> shared = some_ids(640, 44);
    std::vector<int32_t> a = shared;
    std::vector<int32_t> b = shared;
    a.push_back(11);
    b.insert(b.end(), {12, 13, 14});
    const Ref<ReplySink> first = kept.submit(a, 0);
    const Ref<ReplySink> second = kept.submit(b, 0);
    const Reply one = Served::take(*first);
    const Reply two = Served::take(*second);
    EXPECT_EQ(one.ids, fresh().ask(a).ids);
    EXPECT_EQ(two.ids, fresh().ask(b).ids);
    EXPECT_EQ(one.cached + two.cached, 640) << "one of them computed it";
}

TEST_F(EnginePrefix, With_few_cells_the_ids_stay_the_same) {
    Served kept(8);
    std::vector<std::vector<int32_t>> prompts;
    for (uint64_t i = 0; i < 4; ++i) {
        prompts.push_back(some_ids(150 + 20 * static_cast<int64_t>(i), 60 + i));
    }
    for (int round = 0; round < 2; ++round) {
        for (const std::vector<int32_t>& prompt : prompts) {
            EXPECT_EQ(kept.ask(prompt).ids, fresh().ask(prompt).ids);
        }
    }
}

TEST_F(EnginePrefix, A_restarted_engine_goes_on_from_disk_with_the_ids_of_fresh_prompts) {
    const std::filesystem::path dir =
        std::filesystem::temp_directory_path() / ("tenon_mini_spill_" + std::to_string(::getpid()));
    std::filesystem::remove_all(dir);
    std::filesystem::create_directory(dir);
    std::vector<int32_t> prompt = some_ids(390, 71);
    for (int process = 0; process < 3; ++process) {
        // A model of its own each time, as after a restart.
        Served kept(32, 128, dir.string());
        const auto n = static_cast<int64_t>(prompt.size());
        const float temperature = process == 1 ? 1.0F : 0.0F;
        const Reply reply = kept.ask(prompt, temperature);
        if (process == 0 || kept.rig->model().info().numeric_classes == 1) {
            EXPECT_EQ(reply.ids, fresh().ask(prompt, temperature).ids) << "process " << process;
        }
        if (process > 0) {
            EXPECT_EQ(reply.cached, n - 33 - 1) << "all but what is new";
            EXPECT_GT(kept.host.value("kv_spill_hits_total"), 0);
        }
        kept.flush();
        prompt.insert(prompt.end(), reply.ids.begin(), reply.ids.end());
        const std::vector<int32_t> more = some_ids(33, 80 + static_cast<uint64_t>(process));
        prompt.insert(prompt.end(), more.begin(), more.end());
    }
    // Any flipped byte is a miss: the ids stay right and nothing is served.
    for (const auto& entry : std::filesystem::directory_iterator(dir)) {
        if (entry.path().extension() == ".tnkv") {
            std::fstream f(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
            f.seekp(4096 + 5000);
            const char byte = static_cast<char>(f.peek());
            f.seekp(4096 + 5000);
            f.put(static_cast<char>(byte ^ 1));
        }
    }
    Served kept(32, 128, dir.string());
    const Reply reply = kept.ask(prompt);
    EXPECT_EQ(reply.ids, fresh().ask(prompt).ids);
    EXPECT_EQ(reply.cached, 0);
    std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace tenon::testing
