// SPDX-License-Identifier: MIT
// Rows of the next chunk are read while one computes: equal ids, and a slow store is waited for
// less.
#include <gtest/gtest.h>

#include "fakes/fake_host.h"
#include "host/engine/engine_loop.h"
#include "model/models.h"

namespace tenon::testing {
namespace {

struct Prefetched {
    std::vector<std::vector<int32_t>> ids;
    int64_t prefill_us = 0, waited_us = 0;
};

/// Replies to prompts of these lengths, sent at once, on a store whose fetches take `latency_us`.
Prefetched run(bool prefetch, int64_t latency_us, const std::vector<int64_t>& lengths) {
    RigOptions options = mini_model();
    options.slots = 2;
    options.chunk_rows = 64;
    const std::unique_ptr<ModelRig> rig = make_rig(options);
    fakes::FakeHost host;
    EngineSettings settings;
    settings.slots = 2;
    settings.context_tokens = options.context;
    settings.chunk_rows = 64;
    settings.draft_depth = 3;
    settings.prefetch = prefetch;
    auto made = EngineLoop::create(rig->model(), std::move(settings), host, {});
    check(made.ok() ? Status() : made.take_status());
    const Ref<EngineLoop> loop = std::move(*made);
    check(loop->start());
    rig->fake_store().take_time(latency_us);
    std::vector<std::vector<int32_t>> prompts;
    std::vector<Ref<ReplySink>> sinks;
    for (const int64_t length : lengths) {
        prompts.push_back(some_ids(length, static_cast<uint64_t>(length)));
        RequestDesc desc;
        desc.tokens = prompts.back();
        desc.sampling.temperature = 0.8F;
        desc.sampling.seed = 7;
        desc.sampling.seed_set = true;
        desc.max_new_tokens = 6;
        desc.flags = kRawText | kReturnIds | kIgnoreEos | kDraftsAllowed;
        check(loop->submit(desc, sinks.emplace_back().out()));
    }
    Prefetched out;
    for (const Ref<ReplySink>& sink : sinks) {
        std::vector<int32_t>& ids = out.ids.emplace_back();
        SinkEvent event;
        while (!sink->finished() && sink->next(120'000'000, &event)) {
            ids.insert(ids.end(), event.ids.begin(), event.ids.end());
            if (event.timings != nullptr) {
                out.prefill_us += event.timings->prefill;
            }
        }
    }
    loop->stop();
    out.waited_us = rig->fake_store().waited_us();
    return out;
}

TEST(EnginePrefetch, Gives_equal_ids) {
    const std::vector<int64_t> lengths = {200, 64, 65, 66, 129, 193, 450};
    EXPECT_EQ(run(true, 0, lengths).ids, run(false, 0, lengths).ids);
}

TEST(EnginePrefetch, Hides_the_reads_of_all_chunks_but_the_first) {
    // 10 chunks of 64 rows. What a chunk can hide of the next one's fetch is what it computes
    // itself: at least 2 ms on any machine, more on a busy one.
    constexpr int64_t kLatencyUs = 40'000;
    const Prefetched off = run(false, kLatencyUs, {640});
    const Prefetched on = run(true, kLatencyUs, {640});
    std::printf(
        "640 tokens, fetches of 40 ms: prefill %.1f ms, %.1f of them waiting, without; "
        "%.1f, %.1f with prefetch\n",
        static_cast<double>(off.prefill_us) * 1e-3, static_cast<double>(off.waited_us) * 1e-3,
        static_cast<double>(on.prefill_us) * 1e-3, static_cast<double>(on.waited_us) * 1e-3);
    EXPECT_EQ(on.ids, off.ids);
    EXPECT_GT(off.prefill_us, 10 * kLatencyUs);
    EXPECT_LT(on.waited_us, off.waited_us - 9 * 2'000);
}

}  // namespace
}  // namespace tenon::testing
