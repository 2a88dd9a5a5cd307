// SPDX-License-Identifier: MIT
// Random conversations on the real small model: everything at once, for a while. Whatever happens
// to the others, each reply has the ids that it has alone, and nothing is left behind.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "fakes/fake_host.h"
#include "host/engine/engine_loop.h"
#include "model/models.h"
#include "plugins/overlay_prefill_interleave/interleave.h"

namespace tenon::testing {
namespace {

constexpr int kConversations = 200;
constexpr int kClients = 7;
constexpr size_t kCheckedAlone = 24;

uint64_t soak_seed() {
    const char* text = std::getenv("TENON_TEST_SEED");
    const uint64_t seed =
        text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
    std::printf("seed %llu (TENON_TEST_SEED)\n", static_cast<unsigned long long>(seed));
    return seed;
}

const char* const kWords[] = {
    "What is 12 plus 9?",
    "Tell me a story about a dog and a boat.",
    "Count from 1 to 30.",
    "Spell the word mountain.",
    "Repeat: red blue red blue red blue red blue red blue red blue.",
    "Who are you?",
    "Write {\"name\": \"Ann\", \"age\": 30, \"city\": \"Rome\"} again.",
    "Now once more.",
    "Sort: pear, apple, melon, fig, plum, grape.",
    "x",
};

struct Turn {
    std::vector<int32_t> prompt;
    SamplingParams sampling;
    int64_t max_new = 1;
    uint32_t flags = kRawText | kReturnIds;
    Priority priority = Priority::foreground;
    int32_t replies = 1;
};

struct Outcome {
    std::map<int32_t, std::vector<int32_t>> ids;  ///< by reply
    std::map<int32_t, int> terminals;
    bool cancelled = false, failed = false;
    std::string error;
};

class EngineSoak : public ::testing::Test {
  protected:
    static EngineSettings settings(ModelRig& rig, const RigOptions& options) {
        EngineSettings s;
        s.slots = options.slots;
        s.context_tokens = options.context;
        s.chunk_rows = options.chunk_rows;
        s.draft_depth = 5;
        s.fairness_us = 5'000'000;
        s.fairness_background_us = 20'000'000;  // or it waits until all others are done
        s.copy_drafts = true;
        // Hardly more than one context: replies have to be parked now and then.
        s.pool_pages = options.context / rig.model().info().page_tokens;
        return s;
    }
    static Turn random_turn(std::mt19937_64& rng, std::vector<int32_t> prompt, int64_t context) {
        Turn t;
        t.prompt = std::move(prompt);
        t.sampling.temperature = rng() % 3 == 0 ? 0 : 0.4F + static_cast<float>(rng() % 10) / 10;
        t.sampling.top_p = rng() % 2 == 0 ? 1.0F : 0.9F;
        t.sampling.top_k = rng() % 4 == 0 ? 20 : 0;
        if (rng() % 5 == 0) {
            t.sampling.presence = 0.5F;
            t.sampling.repetition = 1.1F;
        }
        t.sampling.logprobs = rng() % 8 == 0 ? 20 : -1;
        t.flags |= rng() % 8 == 0 ? 0U : uint32_t{kDraftsAllowed};
        t.flags |= rng() % 3 == 0 ? uint32_t{kIgnoreEos} : 0U;
        t.priority = rng() % 4 == 0 ? Priority::background : Priority::foreground;
        t.replies = rng() % 10 == 0 ? 2 : 1;
        const int64_t room = context - static_cast<int64_t>(t.prompt.size());
        t.max_new =
            std::min<int64_t>(room, rng() % 6 == 0 ? 150 : 4 + static_cast<int64_t>(rng() % 50));
        return t;
    }
    static Outcome take(EngineLoop& loop, const Turn& turn, std::mt19937_64* cancel_rng) {
        RequestDesc desc;
        desc.tokens = turn.prompt;
        desc.sampling = turn.sampling;
        desc.max_new_tokens = turn.max_new;
        desc.flags = turn.flags;
        desc.priority = turn.priority;
        desc.replies = turn.replies;
        Ref<ReplySink> sink;
        Outcome out;
        const Status status = loop.submit(desc, sink.out());
        if (!status.ok()) {
            out.failed = true;
            out.error = status.message().str();
            return out;
        }
        const int64_t cancel_after = cancel_rng != nullptr && (*cancel_rng)() % 10 == 0
                                         ? static_cast<int64_t>((*cancel_rng)() % 20)
                                         : -1;
        int64_t events = 0;
        SinkEvent e;
        while (!sink->finished()) {
            if (events++ == cancel_after) {
                sink->cancel(CancelReason::client_gone);
                out.cancelled = true;
            }
            if (!sink->next(120'000'000, &e)) {
                out.failed = true;
                out.error = "no event in two minutes";
                return out;
            }
            auto& ids = out.ids[e.reply];
            ids.insert(ids.end(), e.ids.begin(), e.ids.end());
            if (e.kind == SinkEventKind::finish || e.kind == SinkEventKind::error) {
                ++out.terminals[e.reply];
            }
            if (e.kind == SinkEventKind::error && !out.cancelled) {
                out.failed = true;
                out.error = e.text.str();
            }
        }
        return out;
    }
};

TEST_F(EngineSoak, Two_hundred_random_conversations_end_well_and_as_if_alone) {
    const uint64_t seed = soak_seed();
    RigOptions options = mini_model();
    options.slots = 4;
    options.chunk_rows = 128;
    const std::unique_ptr<ModelRig> rig = make_rig(options);
    fakes::FakeHost host;
    interleave::Interleave overlay(5'000);
    ScheduleOverlay* const overlays[] = {&overlay};
    std::vector<std::pair<Turn, std::vector<int32_t>>> finished;
    {
        auto made = EngineLoop::create(rig->model(), settings(*rig, options), host, overlays);
        check(made.ok() ? Status() : made.take_status());
        const Ref<EngineLoop> loop = std::move(*made);
        check(loop->start());
        std::atomic<int> next{0};
        std::mutex mutex;  // guards finished
        std::vector<std::thread> clients;
        for (int c = 0; c < kClients; ++c) {
            clients.emplace_back([&] {
                for (int i = next.fetch_add(1); i < kConversations; i = next.fetch_add(1)) {
                    std::mt19937_64 rng(seed + static_cast<uint64_t>(i));
                    std::vector<int32_t> text;
                    for (uint64_t turns = 1 + rng() % 4; turns > 0; --turns) {
                        Ref<TokenList> more;
                        const char* words = kWords[rng() % std::size(kWords)];
                        check(loop->text().encode(words, 0, more.out()));
                        for (uint64_t repeat = rng() % 5 == 0 ? 15 : 1; repeat > 0; --repeat) {
                            text.insert(text.end(), more->ids().begin(), more->ids().end());
                        }
                        if (static_cast<int64_t>(text.size()) + 8 > options.context) {
                            break;
                        }
                        const Turn turn = random_turn(rng, text, options.context);
                        const Outcome out = take(*loop, turn, &rng);
                        EXPECT_FALSE(out.failed) << "conversation " << i << ": " << out.error;
                        EXPECT_EQ(static_cast<int32_t>(out.terminals.size()), turn.replies)
                            << "conversation " << i;
                        for (const auto& [reply, count] : out.terminals) {
                            EXPECT_EQ(count, 1) << "conversation " << i << " reply " << reply;
                        }
                        if (out.failed || out.cancelled) {
                            break;
                        }
                        const std::vector<int32_t>& ids = out.ids.at(0);
                        text.insert(text.end(), ids.begin(), ids.end());
                        const std::lock_guard<std::mutex> lock(mutex);
                        finished.emplace_back(turn, ids);
                    }
                }
            });
        }
        // Two replies that do not fit the pool together: the newer one has to be parked.
        for (int i = 0; i < 2; ++i) {
            clients.emplace_back([&, i] {
                std::mt19937_64 rng(seed + 1000 + static_cast<uint64_t>(i));
                Ref<TokenList> words;
                check(loop->text().encode(kWords[i], 0, words.out()));
                Turn turn =
                    random_turn(rng, {words->ids().begin(), words->ids().end()}, options.context);
                turn.max_new = options.context * 3 / 4;
                turn.flags |= kIgnoreEos;
                turn.priority = Priority::foreground;
                turn.replies = 1;
                const Outcome out = take(*loop, turn, nullptr);
                EXPECT_FALSE(out.failed) << out.error;
                const std::lock_guard<std::mutex> lock(mutex);
                finished.insert(finished.begin(), {turn, out.ids.at(0)});
            });
        }
        for (std::thread& client : clients) {
            client.join();
        }
        loop->stop();
        EngineStats stats;
        loop->stats(&stats);
        EXPECT_EQ(stats.running + stats.waiting, 0);
        EXPECT_GT(stats.accepted_total, 0);
        EXPECT_GT(host.value("preemptions_total"), 0);
        std::printf("%lld requests, %lld tokens, %lld of %lld drafts, %.0f parked\n",
                    static_cast<long long>(stats.requests_total),
                    static_cast<long long>(stats.completion_tokens_total),
                    static_cast<long long>(stats.accepted_total),
                    static_cast<long long>(stats.drafted_total), host.value("preemptions_total"));
    }
    ASSERT_GT(finished.size(), kCheckedAlone);
    std::mt19937_64 rng(seed);
    std::shuffle(finished.begin() + 2, finished.end(), rng);  // the two long ones stay
    EngineSettings plain = settings(*rig, options);
    plain.draft_depth = 0;
    plain.copy_drafts = false;
    plain.pool_pages = 0;
    auto made = EngineLoop::create(rig->model(), std::move(plain), host, {});
    check(made.ok() ? Status() : made.take_status());
    const Ref<EngineLoop> alone = std::move(*made);
    check(alone->start());
    for (size_t i = 0; i < kCheckedAlone; ++i) {
        auto& [turn, ids] = finished[i];
        turn.replies = 1;
        const Outcome out = take(*alone, turn, nullptr);
        EXPECT_EQ(out.ids.at(0), ids) << "turn " << i;
    }
    alone->stop();
}

}  // namespace
}  // namespace tenon::testing
