// SPDX-License-Identifier: MIT
// The engine on the real small model: a request's ids do not depend on neighbours, chunks or
// drafts.
#include <gtest/gtest.h>

#include "fakes/fake_host.h"
#include "host/engine/engine_loop.h"
#include "model/models.h"

namespace tenon::testing {
namespace {

struct Request {
    const char* text;
    float temperature = 0, presence = 0, repetition = 1;
    int32_t bias_token = -1;
    int64_t max_new = 40;
};

// Greedy, seeded, with penalties, with bias; short and longer than the window of 64.
const Request kRequests[] = {
    {"What is 17 plus 25?"},
    {"Tell me about a cat.", 1.0F},
    {"Count from 1 to 10. Then count from 10 to 1, and then say the days of the week, the months "
     "of the "
     "year, and the letters of the alphabet one after the other without leaving any of them out.",
     0.8F},
    {"What is the capital of France?", 0, 0.5F, 1.2F},
    {"Say something nice.", 1.2F, 0.3F, 1.1F},
    {"Write a list of five colours.", 0, 0, 1, 40},
    {"x", 1.0F, 0, 1, -1, 64},
};

class EngineMini : public ::testing::Test {
  protected:
    struct Setup {
        int32_t slots = 4, chunk_rows = 256, draft_depth = 0;
        bool copies = false, allowed = true;
    };

    /// Ids of all requests: one after the other, or submitted at once.
    static std::vector<std::vector<int32_t>> run(const Setup& setup, bool together) {
        RigOptions options = mini_model();
        options.slots = setup.slots;
        options.chunk_rows = setup.chunk_rows;
        const std::unique_ptr<ModelRig> rig = make_rig(options);
        fakes::FakeHost host;
        EngineSettings settings;
        settings.slots = setup.slots;
        settings.context_tokens = options.context;
        settings.chunk_rows = setup.chunk_rows;
        settings.draft_depth = setup.draft_depth;
        settings.copy_drafts = setup.copies;
        auto made = EngineLoop::create(rig->model(), std::move(settings), host, {});
        check(made.ok() ? Status() : made.take_status());
        const Ref<EngineLoop> loop = std::move(*made);
        check(loop->start());
        std::vector<std::vector<int32_t>> ids;
        std::vector<Ref<ReplySink>> sinks;
        for (const Request& request : kRequests) {
            sinks.push_back(submit(*loop, request, setup.allowed));
            if (!together) {
                ids.push_back(take(*sinks.back()));
            }
        }
        for (size_t i = 0; together && i < sinks.size(); ++i) {
            ids.push_back(take(*sinks[i]));
        }
        loop->stop();  // the last slot is closed behind its terminal event
        EngineStats stats;
        loop->stats(&stats);
        EXPECT_EQ(stats.pages_free, stats.pages_total);
        // Whether drafts pay is decided by measured cost, so a run may have few or none.
        drafted_ += stats.drafted_total;
        if (!setup.allowed || (setup.draft_depth == 0 && !setup.copies)) {
            EXPECT_EQ(stats.drafted_total, 0);
        }
        return ids;
    }
    static Ref<ReplySink> submit(EngineLoop& loop, const Request& request, bool drafts) {
        Ref<TokenList> prompt;
        check(loop.text().encode(request.text, 0, prompt.out()));
        const LogitBias bias{request.bias_token, 3};
        RequestDesc desc;
        desc.tokens = prompt->ids();
        desc.sampling.temperature = request.temperature;
        desc.sampling.presence = request.presence;
        desc.sampling.repetition = request.repetition;
        if (request.bias_token >= 0) {
            desc.sampling.bias = Span<const LogitBias>(&bias, 1);
        }
        desc.max_new_tokens = request.max_new;
        desc.flags = kRawText | kReturnIds | kIgnoreEos | (drafts ? kDraftsAllowed : 0U);
        Ref<ReplySink> sink;
        check(loop.submit(desc, sink.out()));
        return sink;
    }
    static std::vector<int32_t> take(ReplySink& sink) {
        std::vector<int32_t> ids;
        SinkEvent event;
        while (!sink.finished() && sink.next(60'000'000, &event)) {
            ids.insert(ids.end(), event.ids.begin(), event.ids.end());
            EXPECT_NE(event.kind, SinkEventKind::error) << event.text.view();
        }
        return ids;
    }
    static inline int64_t drafted_ = 0;
    /// The yardstick: one slot, one request at a time.
    static const std::vector<std::vector<int32_t>>& alone() {
        static const auto ids = run({1, 256, 0}, false);
        return ids;
    }
};

TEST_F(EngineMini, Alone_every_request_gives_all_its_tokens) {
    for (size_t i = 0; i < alone().size(); ++i) {
        EXPECT_EQ(static_cast<int64_t>(alone()[i].size()), kRequests[i].max_new)
            << kRequests[i].text;
    }
    EXPECT_NE(alone()[0], alone()[1]);
}

TEST_F(EngineMini, In_a_batch_of_four_the_ids_are_the_same) {
    EXPECT_EQ(run({4, 256, 0}, true), alone());
}

TEST_F(EngineMini, With_small_chunks_the_ids_are_the_same) {
    EXPECT_EQ(run({3, 64, 0}, true), alone());
}

TEST_F(EngineMini, With_drafts_the_ids_are_the_same) {
    EXPECT_EQ(run({4, 256, 5}, true), alone());
    EXPECT_EQ(run({1, 256, 3}, false), alone());
}

TEST_F(EngineMini, With_drafts_from_the_text_itself_the_ids_are_the_same) {
    EXPECT_EQ(run({4, 256, 5, true}, true), alone());
    EXPECT_EQ(run({2, 64, 0, true}, true), alone());
    EXPECT_GT(drafted_, 0);
}

TEST_F(EngineMini, A_request_that_wants_no_drafts_gets_none) {
    EXPECT_EQ(run({4, 256, 5, true, false}, true), alone());
}

}  // namespace
}  // namespace tenon::testing
