// SPDX-License-Identifier: MIT
// An engine on the scripted model, with or without threads, and what a front end would make of its
// replies.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "host/engine/engine_core.h"
#include "host/engine/engine_loop.h"
#include "host/engine/request_check.h"
#include "tests/fakes/fake_host.h"
#include "tests/fakes/scripted_model.h"

namespace tenon::test {

using fakes::FakeHost;
using fakes::ids_of;
using fakes::ScriptedModel;
using fakes::ScriptedOptions;

/// Seed of a randomised test: TENON_TEST_SEED, or a fixed one; printed either way.
inline uint64_t test_seed() {
    const char* text = std::getenv("TENON_TEST_SEED");
    const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : 20261130;
    std::printf("seed %llu (TENON_TEST_SEED)\n", static_cast<unsigned long long>(seed));
    return seed;
}

/// A request that owns what its RequestDesc borrows.
struct Ask {
    std::vector<int32_t> prompt = ids_of("hello");
    std::vector<std::string> stops;
    std::vector<LogitBias> bias;
    std::vector<int32_t> stop_ids;
    std::vector<Border> borders;
    std::vector<RequestImage> images;
    RequestDesc desc;

    Ask() {
        desc.sampling.temperature = 0;
        desc.max_new_tokens = 16;
        desc.flags = kReturnIds | kDraftsAllowed;
    }
    explicit Ask(std::string_view text) : Ask() { prompt = ids_of(text); }

    const RequestDesc& get() {
        views_.assign(stops.begin(), stops.end());
        desc.tokens = prompt;
        desc.stops = views_;
        desc.sampling.bias = bias;
        desc.sampling.stop_ids = stop_ids;
        desc.borders = borders;
        desc.images = images;
        return desc;
    }

  private:
    std::vector<StrView> views_;
};

/// Everything that one reply gave.
struct Got {
    std::string content, reasoning, arguments, finish, kind, message;
    std::vector<std::string> calls;
    std::vector<int32_t> ids;
    std::vector<SinkLogprob> logprobs;
    Code code = Code::ok;
    int32_t started = 0, terminals = 0, after_end = 0;
    ReplyTimings timings;
};

/// Takes events of a sink into `replies`; waits at most `wait_us` for each. Returns at the last
/// terminal event, or when nothing came in time.
inline void take(ReplySink& sink, std::map<int32_t, Got>* replies, int64_t wait_us) {
    SinkEvent e;
    while (!sink.finished() && sink.next(wait_us, &e)) {
        Got& got = (*replies)[e.reply];
        got.after_end += got.terminals > 0 ? 1 : 0;
        switch (e.kind) {
            case SinkEventKind::started:
                ++got.started;
                break;
            case SinkEventKind::reasoning:
                got.reasoning += e.text.view();
                break;
            case SinkEventKind::content:
                got.content += e.text.view();
                break;
            case SinkEventKind::call:
                got.calls.push_back(e.text.str());
                break;
            case SinkEventKind::arguments:
                got.arguments += e.text.view();
                break;
            case SinkEventKind::tokens:
                got.ids.insert(got.ids.end(), e.ids.begin(), e.ids.end());
                got.logprobs.insert(got.logprobs.end(), e.logprobs.begin(), e.logprobs.end());
                break;
            case SinkEventKind::finish:
                ++got.terminals;
                got.finish = e.text.str();
                got.timings = *e.timings;
                break;
            case SinkEventKind::error:
                ++got.terminals;
                got.code = e.code;
                got.kind = e.id.str();
                got.message = e.text.str();
                got.timings = *e.timings;
                break;
        }
    }
}

/// Without threads: the test runs rounds and drains delivery, on a clock that it moves itself.
class Bench {
  public:
    explicit Bench(const ScriptedOptions& options = {}, int32_t draft_depth = 0,
                   engine::PlannerRecorder* recorder = nullptr,
                   Span<ScheduleOverlay* const> overlays = {}, bool copy_drafts = false,
                   const std::function<void(engine::PlannerConfig&)>& tune = {},
                   engine::SpillTier* spill = nullptr)
        : host(true),
          model(options),
          metrics(host),
          wake(std::make_shared<engine::WakeEvent>()),
          queue(256) {
        config.info = model.info();
        config.slots = options.slots;
        config.context_tokens = options.context;
        ModelRequest request;
        request.slots = options.slots;
        config.pool_pages =
            options.pool_pages > 0 ? options.pool_pages : pool_pages(request, config.info);
        config.step_rows = options.step_rows;
        config.window_rows = options.window_rows;
        config.chunk_rows = options.chunk_rows;
        config.draft_depth = draft_depth;
        config.copy_drafts = copy_drafts;
        config.max_waiting = 200;
        config.snapshot_cells = options.snapshot_cells;
        config.join_min_rows = 16;
        config.image_states = true;
        if (tune) {
            tune(config);
        }
        delivery = std::make_unique<engine::Delivery>(host, metrics, 256, fakes::kEos, wake);
        core = std::make_unique<engine::EngineCore>(
            engine::CoreParts{model, host, *delivery, metrics, queue, recorder, spill}, config,
            overlays);
        limits.context_tokens = options.context;
        limits.vocab = config.info.vocab;
        limits.text_vocab = fakes::kTextVocab;
        limits.eos = fakes::kEos;
        limits.images = true;
        limits.pairs = engine::builder_limits(config).pairs;
    }
    ~Bench() {
        queue.close();
        core->fail(engine::EndCause::shutdown);
        delivery->drain();
        sinks_.clear();
    }

    /// The sink is owned by the bench.
    engine::Request* submit(Ask& ask) {
        auto made =
            engine::make_request(ask.get(), limits, model.text(), ++next_id_, host.now_us(), wake);
        EXPECT_TRUE(made.ok()) << made.status().message().view();
        if (!made.ok()) {
            return nullptr;
        }
        const auto replies = static_cast<int64_t>((*made)->replies().size);
        core->active().fetch_add(replies);
        delivery->undelivered().fetch_add(replies);
        EXPECT_TRUE(queue.push(*made));
        sinks_.emplace_back(*made);
        return *made;
    }
    engine::Round round() {
        engine::Round out = engine::Round::idle;
        status = core->round(&out);
        delivery->drain();
        for (const Ref<engine::Request>& sink : sinks_) {
            if (slow.count(sink.get()) == 0) {
                take(*sink, &taken_[sink.get()], 0);
            }
        }
        host.advance(1000);
        return out;
    }
    /// Rounds until nothing is left to do; false after `most`.
    bool run(int most = 100'000) {
        for (int i = 0; i < most; ++i) {
            const engine::Round r = round();
            if (!status.ok()) {
                ADD_FAILURE() << status.message().view();
                return false;
            }
            if (r != engine::Round::worked && (core->idle() || !slow.empty())) {
                return core->idle();
            }
        }
        return false;
    }
    Got result(engine::Request* request, int32_t reply = 0) {
        take(*request, &taken_[request], 0);
        return taken_[request][reply];
    }
    /// The only reply of a request, run to its end with nothing else.
    Got ask(Ask& a) {
        engine::Request* request = submit(a);
        EXPECT_TRUE(run());
        return result(request);
    }

    FakeHost host;
    ScriptedModel model;
    engine::EngineMetrics metrics;
    std::shared_ptr<engine::WakeEvent> wake;
    engine::SubmitQueue queue;
    engine::PlannerConfig config;
    engine::RequestLimits limits;
    std::unique_ptr<engine::Delivery> delivery;
    std::unique_ptr<engine::EngineCore> core;
    Status status;
    std::set<engine::Request*> slow;  ///< their sinks are not drained by `round`

  private:
    uint64_t next_id_ = 0;
    std::vector<Ref<engine::Request>> sinks_;
    std::map<engine::Request*, std::map<int32_t, Got>> taken_;
};

/// With threads, through the public interface.
class LoopBench {
  public:
    explicit LoopBench(const ScriptedOptions& options = {}, EngineSettings settings = {})
        : model(options) {
        settings.slots = options.slots;
        settings.context_tokens = options.context;
        settings.step_rows = options.step_rows;
        settings.window_rows = options.window_rows;
        settings.chunk_rows = options.chunk_rows;
        if (options.pool_pages > 0) {
            settings.pool_pages = options.pool_pages;
        }
        settings.snapshot_cells = options.snapshot_cells;
        settings.on_failure = [this](const EngineFailure& f) {
            failure = f;
            failures.fetch_add(1);
        };
        auto made = EngineLoop::create(model, std::move(settings), host, {});
        EXPECT_TRUE(made.ok()) << made.status().message().view();
        loop = std::move(*made);
    }

    Ref<ReplySink> submit(Ask& ask) {
        Ref<ReplySink> sink;
        const Status status = loop->submit(ask.get(), sink.out());
        EXPECT_TRUE(status.ok()) << status.message().view();
        return sink;
    }
    std::map<int32_t, Got> finish(ReplySink& sink) {
        std::map<int32_t, Got> replies;
        take(sink, &replies, 20'000'000);
        EXPECT_TRUE(sink.finished());
        return replies;
    }

    FakeHost host;
    ScriptedModel model;
    Ref<EngineLoop> loop;
    EngineFailure failure;
    std::atomic<int> failures{0};
};

/// A request with a random prompt, sampler and length.
inline Ask random_ask(std::mt19937_64& rng, int64_t most_prompt = 120, int64_t most_new = 40) {
    const auto up_to = [&rng](uint64_t n) { return rng() % n; };
    Ask a;
    a.prompt.resize(1 + up_to(static_cast<uint64_t>(most_prompt)));
    for (int32_t& id : a.prompt) {
        id = static_cast<int32_t>(up_to(256));
    }
    SamplingParams& s = a.desc.sampling;
    s.temperature = up_to(3) == 0 ? 0 : 0.5f + static_cast<float>(up_to(100)) / 100;
    s.seed_set = up_to(2) == 0;
    s.seed = rng();
    if (up_to(3) == 0) {
        s.presence = static_cast<float>(up_to(20)) / 10;
        s.frequency = static_cast<float>(up_to(20)) / 20;
        s.repetition = 1 + static_cast<float>(up_to(10)) / 20;
    }
    for (uint64_t i = up_to(4); i > 0; --i) {
        a.bias.push_back(
            {static_cast<int32_t>(32 + up_to(90)), static_cast<float>(up_to(40)) / 4 - 5});
    }
    if (up_to(4) == 0) {
        s.logprobs = static_cast<int32_t>(up_to(6));
    }
    a.desc.max_new_tokens = 1 + static_cast<int64_t>(up_to(static_cast<uint64_t>(most_new)));
    a.desc.priority = up_to(4) == 0 ? Priority::background : Priority::foreground;
    if (up_to(3) == 0) {
        a.stops.push_back(std::string(1, static_cast<char>(32 + up_to(95))));
    }
    return a;
}

/// Ids of visible characters.
inline std::vector<int32_t> random_ids(std::mt19937_64& rng, size_t n) {
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) {
        id = static_cast<int32_t>(32 + rng() % 200);
    }
    return ids;
}

/// A request that may go on where an earlier one ended.
inline Ask ask_for(std::vector<int32_t> prompt, int64_t max_new = 12, uint64_t salt = 0) {
    Ask a;
    a.prompt = std::move(prompt);
    a.desc.max_new_tokens = max_new;
    a.desc.keeps_reasoning = true;
    a.desc.cache_salt = salt;
    return a;
}

/// free + distinct referenced = pool, references = what slots and cuts name.
inline void check_pages(const Bench& bench) {
    const engine::PageAllocator& pages = bench.core->planner().pages();
    std::vector<int32_t> counted(static_cast<size_t>(pages.total()), 0);
    bench.core->planner().each_page_reference(
        [&](int32_t page) { ++counted[static_cast<size_t>(page)]; });
    int64_t used = 0;
    for (int32_t p = 0; p < pages.total(); ++p) {
        ASSERT_EQ(pages.references(p), counted[static_cast<size_t>(p)]) << "page " << p;
        used += counted[static_cast<size_t>(p)] > 0 ? 1 : 0;
    }
    ASSERT_EQ(pages.free() + used, pages.total());
}

}  // namespace tenon::test
