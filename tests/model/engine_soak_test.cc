// SPDX-License-Identifier: MIT
// Random conversations on the real small model: everything at once, for a while. Whatever happens
// to the others, each reply has the ids that it has alone, and nothing is left behind.
//   TENON_TEST_SEED            repeats a run
//   TENON_SOAK_CONVERSATIONS   how many (default 24; by hand 200 and more); named: all lengths, too
//   TENON_SOAK_SPILL           an existing folder: kept and parked state goes there and back
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

constexpr int kClients = 7;
constexpr int64_t kContext = 4096;
constexpr int64_t kConversations = 24;
constexpr int64_t kStallUs = 60'000'000;     // no step ends
constexpr int64_t kStarvedUs = 600'000'000;  // steps end, but not for this reply

int64_t number_from(const char* variable, int64_t otherwise) {
    const char* text = std::getenv(variable);
    return text != nullptr ? std::strtoll(text, nullptr, 10) : otherwise;
}

const char* spill_dir() {
    return std::getenv("TENON_SOAK_SPILL");
}

/// Random; the same in CI, where a change is judged and not the luck of a draw.
uint64_t soak_seed() {
    const int64_t drawn = std::getenv("CI") != nullptr ? 2 : std::random_device{}();
    const auto seed = static_cast<uint64_t>(number_from("TENON_TEST_SEED", drawn));
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
    uint64_t salt = 0;
};

struct Outcome {
    std::map<int32_t, std::vector<int32_t>> ids;  ///< by reply
    std::map<int32_t, int> terminals;
    int64_t cached = 0;
    bool cancelled = false, failed = false;
    std::string error;
};

/// What /slots would say.
std::string slots_of(EngineLoop& loop) {
    EngineStats s;
    loop.stats(&s);
    std::string text = std::to_string(s.steps_total) + " steps, " + std::to_string(s.running) +
                       " run, " + std::to_string(s.waiting) + " wait, " +
                       std::to_string(s.pages_free) + " of " + std::to_string(s.pages_total) +
                       " pages free";
    for (int32_t i = 0; i < s.slot_count; ++i) {
        const SlotStats& slot = s.slots[i];
        text += "; slot " + std::to_string(i) + ": state " + std::to_string(slot.state) +
                " request " + std::to_string(slot.request) + " length " +
                std::to_string(slot.length) + " of prompt " + std::to_string(slot.prompt) +
                ", emitted " + std::to_string(slot.emitted) + ", age " +
                std::to_string(slot.age_us / 1'000'000) + " s";
    }
    return text;
}

/// Waits for the next event; false: the engine stands still, or goes on without this reply.
bool next_event(EngineLoop& loop, ReplySink& sink, SinkEvent* event, std::string* why) {
    EngineStats stats;
    int64_t steps = -1, since_step = 0;
    for (int64_t waited = 0; waited < kStarvedUs; waited += 1'000'000) {
        if (sink.next(1'000'000, event)) {
            return true;
        }
        loop.stats(&stats);
        since_step = stats.steps_total == steps ? since_step + 1'000'000 : 0;
        steps = stats.steps_total;
        if (since_step >= kStallUs) {
            *why = "the engine stands still: " + slots_of(loop);
            return false;
        }
    }
    *why = "steps go on without this reply: " + slots_of(loop);
    return false;
}

Outcome take(EngineLoop& loop, const Turn& turn, int64_t cancel_after = -1) {
    RequestDesc desc;
    desc.tokens = turn.prompt;
    desc.sampling = turn.sampling;
    desc.max_new_tokens = turn.max_new;
    desc.flags = turn.flags;
    desc.priority = turn.priority;
    desc.replies = turn.replies;
    desc.keeps_reasoning = true;
    desc.cache_salt = turn.salt;
    Ref<ReplySink> sink;
    Outcome out;
    const Status status = loop.submit(desc, sink.out());
    if (!status.ok()) {
        out.failed = true;
        out.error = status.message().str();
        return out;
    }
    int64_t events = 0;
    SinkEvent e;
    while (!sink->finished()) {
        if (events++ == cancel_after) {
            sink->cancel(CancelReason::client_gone);
            out.cancelled = true;
        }
        if (!next_event(loop, *sink, &e, &out.error)) {
            out.failed = true;
            return out;
        }
        auto& ids = out.ids[e.reply];
        ids.insert(ids.end(), e.ids.begin(), e.ids.end());
        if (e.timings != nullptr) {
            out.cached = std::max(out.cached, e.timings->cached_tokens);
        }
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

Ref<EngineLoop> engine_on(ModelRig& rig, EngineSettings settings, fakes::FakeHost& host,
                          Span<ScheduleOverlay* const> overlays = {}) {
    auto made = EngineLoop::create(rig.model(), std::move(settings), host, overlays);
    check(made.ok() ? Status() : made.take_status());
    check((*made)->start());
    return std::move(*made);
}

/// Gives up all cuts and waits until each page is free.
void expect_no_page_is_left(EngineLoop& loop) {
    loop.set_memory_level(1);
    EngineStats stats;
    loop.stats(&stats);
    for (int i = 0; i < 3000 && stats.pages_free != stats.pages_total; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        loop.stats(&stats);
    }
    EXPECT_EQ(stats.pages_free, stats.pages_total);
    EXPECT_EQ(stats.running + stats.waiting, 0);
}

class EngineSoak : public ::testing::Test {
  protected:
    EngineSoak() {
        options_ = mini_model();
        options_.context = kContext;
        options_.slots = 4;
        options_.chunk_rows = 512;
        options_.snapshot_cells = 64;
        options_.spill = spill_dir() != nullptr;
        rig_ = make_rig(options_);
    }
    /// Nothing that could change what a reply depends on: no drafts, no cuts, whole chunks.
    EngineSettings plain() const {
        EngineSettings s;
        s.slots = options_.slots;
        s.context_tokens = options_.context;
        s.chunk_rows = options_.chunk_rows;
        return s;
    }
    /// Everything, with the least pages that the memory plan ever gives (engine.md 1.7), so that
    /// replies have to be parked.
    EngineSettings everything() const {
        EngineSettings s = plain();
        s.chunk_rows = 128;
        s.draft_depth = 5;
        s.copy_drafts = true;
        s.snapshot_cells = options_.snapshot_cells;
        s.spill_dir = options_.spill ? spill_dir() : "";
        s.fairness_us = 5'000'000;
        s.fairness_background_us = 20'000'000;
        s.join_wait_us = 5'000'000;
        s.pool_pages = options_.context / rig_->model().info().page_tokens + 2 * options_.slots;
        return s;
    }
    static Turn random_turn(std::mt19937_64& rng, std::vector<int32_t> prompt) {
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
        t.flags |= rng() % 10 == 0 ? uint32_t{kNoPrefix} : 0U;
        t.priority = rng() % 4 == 0 ? Priority::background : Priority::foreground;
        t.replies = rng() % 10 == 0 ? 2 : 1;
        t.salt = rng() % 4 == 0 ? 7 : 0;
        const int64_t room = kContext - static_cast<int64_t>(t.prompt.size());
        t.max_new =
            std::min<int64_t>(room, rng() % 6 == 0 ? 120 : 4 + static_cast<int64_t>(rng() % 40));
        return t;
    }
    /// One conversation: turns that repeat all before them, some cancelled and sent again.
    void converse(EngineLoop& loop, uint64_t seed) {
        std::mt19937_64 rng(seed);
        std::vector<int32_t> text;
        for (uint64_t turns = 1 + rng() % 4; turns > 0; --turns) {
            Ref<TokenList> more;
            check(loop.text().encode(kWords[rng() % std::size(kWords)], 0, more.out()));
            const uint64_t kind = rng() % 10;  // most are short, some fill much of the context
            for (uint64_t n = kind == 0 ? 80 + rng() % 120 : kind < 3 ? 15 : 1; n > 0; --n) {
                text.insert(text.end(), more->ids().begin(), more->ids().end());
            }
            if (static_cast<int64_t>(text.size()) + 8 > kContext) {
                return;
            }
            const Turn turn = random_turn(rng, text);
            Outcome out;
            for (bool again = true; again;) {
                out = take(loop, turn, rng() % 8 == 0 ? static_cast<int64_t>(rng() % 16) : -1);
                EXPECT_FALSE(out.failed) << "conversation " << seed << ": " << out.error;
                EXPECT_EQ(static_cast<int32_t>(out.terminals.size()), turn.replies) << seed;
                for (const auto& [reply, count] : out.terminals) {
                    EXPECT_EQ(count, 1) << "conversation " << seed << " reply " << reply;
                }
                again = out.cancelled && !out.failed && rng() % 2 == 0;  // a client that retries
            }
            cached_ += out.cached;
            if (out.failed || out.cancelled) {
                return;
            }
            const std::vector<int32_t>& ids = out.ids.at(0);
            text.insert(text.end(), ids.begin(), ids.end());
            const std::lock_guard<std::mutex> lock(mutex_);
            finished_.emplace_back(turn, ids);
        }
    }
    /// A prompt and a reply that do not fit the pool beside another such pair.
    void fill(EngineLoop& loop, uint64_t seed) {
        std::mt19937_64 rng(seed);
        // Three of these are admitted, 7 pages each of 24, and want 11 in the end.
        Turn turn = random_turn(rng, some_ids(7 * 256 - 40, seed));
        turn.max_new = 900;
        turn.flags |= kIgnoreEos;
        turn.priority = Priority::foreground;
        turn.replies = 1;
        const Outcome out = take(loop, turn);
        EXPECT_FALSE(out.failed) << out.error;
        const std::lock_guard<std::mutex> lock(mutex_);
        finished_.insert(finished_.begin(), {turn, out.ids.at(0)});
        ++fixed_;
    }

    RigOptions options_;
    std::unique_ptr<ModelRig> rig_;
    fakes::FakeHost host_;
    std::atomic<int64_t> cached_{0};
    std::mutex mutex_;  // guards what follows
    std::vector<std::pair<Turn, std::vector<int32_t>>> finished_;
    std::ptrdiff_t fixed_ = 0;  // of them, in front, always compared
};

// Drafted = undrafted, alone = beside others, fresh = hit = resumed after a cancel or after being
// parked, interleaved = whole pass, 128 rows a chunk = 512.
TEST_F(EngineSoak, Random_conversations_end_well_and_as_if_alone) {
    const uint64_t seed = soak_seed();
    const int64_t conversations = number_from("TENON_SOAK_CONVERSATIONS", kConversations);
    {
        interleave::Interleave overlay(5'000);
        ScheduleOverlay* const overlays[] = {&overlay};
        const Ref<EngineLoop> loop = engine_on(*rig_, everything(), host_, overlays);
        std::vector<std::thread> clients;
        for (uint64_t i = 0; i < 3; ++i) {
            clients.emplace_back([&, i] { fill(*loop, seed + 100'000 + i); });
        }
        EngineStats stats;
        for (int i = 0; i < 6000 && stats.running < 3; ++i) {  // or shorter prompts go before them
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            loop->stats(&stats);
        }
        EXPECT_EQ(stats.running, 3);
        std::atomic<int64_t> next{0};
        for (int c = 0; c < kClients; ++c) {
            clients.emplace_back([&] {
                for (int64_t i = next.fetch_add(1); i < conversations; i = next.fetch_add(1)) {
                    converse(*loop, seed + static_cast<uint64_t>(i));
                }
            });
        }
        for (std::thread& client : clients) {
            client.join();
        }
        expect_no_page_is_left(*loop);
        loop->stop();
        loop->stats(&stats);
        EXPECT_GT(stats.accepted_total, 0);
        EXPECT_GT(cached_.load(), 0);
        // How many replies had to be parked depends on the clients' timing: EnginePages makes them.
        std::printf(
            "%lld requests, %lld tokens, %lld of %lld drafts, %lld cached, %.0f parked, "
            "%.0f from disk\n",
            static_cast<long long>(stats.requests_total),
            static_cast<long long>(stats.completion_tokens_total),
            static_cast<long long>(stats.accepted_total),
            static_cast<long long>(stats.drafted_total), static_cast<long long>(cached_.load()),
            host_.value("preemptions_total"), host_.value("kv_spill_hits_total"));
    }
    std::mt19937_64 rng(seed);
    std::shuffle(finished_.begin() + fixed_, finished_.end(), rng);
    const auto compared = static_cast<size_t>(conversations / 2 + fixed_);
    ASSERT_GT(finished_.size(), compared);
    const Ref<EngineLoop> alone = engine_on(*rig_, plain(), host_);
    for (size_t i = 0; i < compared; ++i) {
        auto& [turn, ids] = finished_[i];
        turn.replies = 1;
        const Outcome out = take(*alone, turn);
        EXPECT_FALSE(out.failed) << out.error;
        EXPECT_EQ(out.ids.at(0), ids) << "turn " << i << ", prompt " << turn.prompt.size();
    }
    alone->stop();
}

// Lengths around chunk borders of 2,048 rows, where state once went wrong in other engines: after
// another prompt in the same slot, in small chunks, and from a kept cut.
TEST_F(EngineSoak, Prompts_around_multiples_of_2048_give_the_same_ids_however_they_are_computed) {
    std::vector<int64_t> lengths;
    for (const int64_t rest : {0,   1,   111, 112, 113, 114, 115, 116, 117, 118, 119,
                               120, 121, 122, 123, 124, 125, 126, 127, 128, 129}) {
        // All of them in a long run.
        if (rest <= 1 || rest % 4 <= 1 || rest >= 127 ||
            number_from("TENON_SOAK_CONVERSATIONS", 0) > 0) {
            lengths.push_back(2048 + rest);
        }
    }
    const std::vector<int32_t> text = some_ids(2048 + 129, 77);
    const auto ids_of = [&](EngineLoop& loop, int64_t length) {
        Turn turn;
        turn.prompt.assign(text.begin(), text.begin() + length);
        turn.flags |= kIgnoreEos;
        turn.sampling.temperature = 0.8F;
        turn.sampling.seed = 5;
        turn.sampling.seed_set = true;
        turn.max_new = 8;
        const Outcome out = take(loop, turn);
        EXPECT_FALSE(out.failed) << out.error;
        return std::make_pair(out.ids.at(0), out.cached);
    };
    std::vector<std::vector<int32_t>> expected;
    const Ref<EngineLoop> whole = engine_on(*rig_, plain(), host_);
    for (const int64_t n : lengths) {
        expected.push_back(ids_of(*whole, n).first);
    }
    whole->stop();

    EngineSettings small = plain();
    small.slots = 1;
    small.chunk_rows = 192;
    const Ref<EngineLoop> after = engine_on(*rig_, small, host_);
    for (size_t i = 0; i < lengths.size(); i += 2) {
        Turn other;
        other.prompt = some_ids(150 + 7 * static_cast<int64_t>(i), 900 + i);
        other.max_new = 3;
        take(*after, other);
        EXPECT_EQ(ids_of(*after, lengths[i]).first, expected[i]) << lengths[i];
    }
    after->stop();

    const Ref<EngineLoop> kept = engine_on(*rig_, everything(), host_);
    for (size_t i = 0; i < lengths.size(); ++i) {
        const auto [ids, cached] = ids_of(*kept, lengths[i]);
        EXPECT_EQ(ids, expected[i]) << lengths[i] << ", cached " << cached;
        EXPECT_EQ(cached > 0, i > 0) << lengths[i];
        EXPECT_EQ(ids_of(*kept, lengths[i]), std::make_pair(expected[i], lengths[i] - 1));
    }
    expect_no_page_is_left(*kept);
    kept->stop();
}

}  // namespace
}  // namespace tenon::testing
