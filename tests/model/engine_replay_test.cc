// SPDX-License-Identifier: MIT
// A conversation on the real small model whose replies are not what their text would be tokenized
// to: with replay memory the next turn goes on from the reply itself.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fakes/fake_host.h"
#include "host/engine/engine_loop.h"
#include "model/models.h"

namespace tenon::testing {
namespace {

using Json = nlohmann::ordered_json;

struct Played {
    std::vector<int32_t> prompt, ids;
    std::string content;
    int64_t cached = 0;
};

class EngineReplay : public ::testing::Test {
  protected:
    explicit EngineReplay(int64_t replay_bytes = 1 << 20) {
        RigOptions options = mini_model();
        options.slots = 2;
        options.snapshot_cells = 64;
        rig_ = make_rig(options);
        EngineSettings settings;
        settings.slots = 2;
        settings.context_tokens = options.context;
        settings.snapshot_cells = 64;
        settings.replay_bytes = replay_bytes;
        settings.salt_by_key = true;
        auto made = EngineLoop::create(rig_->model(), std::move(settings), host_, {});
        check(made.ok() ? Status() : made.take_status());
        loop_ = std::move(*made);
        check(loop_->start());
    }
    ~EngineReplay() override { loop_->stop(); }

    static Json user(const std::string& text) { return {{"role", "user"}, {"content", text}}; }
    static Json assistant(const std::string& text) {
        return {{"role", "assistant"}, {"content", text}};
    }

    Played ask(const Json& messages, uint64_t salt = 0) {
        Ref<Prompt> prompt;
        const Json body = {{"messages", messages}, {"thinking", false}};
        check(loop_->render(body.dump(), salt, prompt.out()));
        Played reply;
        reply.prompt.assign(prompt->ids().begin(), prompt->ids().end());
        RequestDesc desc;
        desc.tokens = prompt->ids();
        desc.borders = prompt->borders();
        const LogitBias bias{odd_letter(), 100};
        desc.sampling.bias = Span<const LogitBias>(&bias, 1);
        desc.sampling.temperature = 0;
        desc.max_new_tokens = kReplyTokens;
        desc.cache_salt = salt;
        desc.parser.start = prompt->start();
        desc.keeps_reasoning = prompt->keeps_reasoning();
        desc.flags = kReturnIds | kDraftsAllowed;
        Ref<ReplySink> sink;
        check(loop_->submit(desc, sink.out()));
        SinkEvent event;
        while (!sink->finished() && sink->next(120'000'000, &event)) {
            reply.ids.insert(reply.ids.end(), event.ids.begin(), event.ids.end());
            if (event.kind == SinkEventKind::content) {
                reply.content += event.text.view();
            }
            if (event.timings != nullptr) {
                reply.cached = event.timings->cached_tokens;
            }
        }
        EXPECT_EQ(reply.ids.size(), kReplyTokens);
        EXPECT_NE(encoded(reply.content), reply.ids);
        return reply;
    }
    std::vector<int32_t> encoded(const std::string& text) {
        Ref<TokenList> list;
        check(loop_->text().encode(text, 0, list.out()));
        return {list->ids().begin(), list->ids().end()};
    }
    /// A letter whose repetitions the tokenizer joins, while the model is made to say it alone.
    int32_t odd_letter() {
        for (char c = 'a'; c <= 'z'; ++c) {
            const std::vector<int32_t> one = encoded(std::string(1, c));
            if (one.size() == 1 && encoded(std::string(kReplyTokens, c)).size() < kReplyTokens) {
                return one[0];
            }
        }
        ADD_FAILURE() << "the tokenizer joins no letters";
        return 0;
    }
    static constexpr size_t kReplyTokens = 24;
    fakes::FakeHost host_;
    std::unique_ptr<ModelRig> rig_;
    Ref<EngineLoop> loop_;
};

class EngineNoReplay : public EngineReplay {
  protected:
    EngineNoReplay() : EngineReplay(0) {}
};

bool begins_with(const std::vector<int32_t>& all, const std::vector<int32_t>& part) {
    return all.size() >= part.size() && std::equal(part.begin(), part.end(), all.begin());
}

TEST_F(EngineReplay, The_next_turn_goes_on_from_the_sampled_ids) {
    Json talk = Json::array({user("Tell me about a cat and a dog.")});
    const Played first = ask(talk);
    std::vector<int32_t> known = first.prompt;
    known.insert(known.end(), first.ids.begin(), first.ids.end());
    talk.push_back(assistant(first.content));
    talk.push_back(user("And a bird?"));

    const Played second = ask(talk);

    EXPECT_TRUE(begins_with(second.prompt, known));
    // All but the last token of the reply, which was never computed.
    EXPECT_EQ(second.cached, static_cast<int64_t>(first.prompt.size() + first.ids.size()) - 1);
    EXPECT_EQ(host_.value("replayed_turns_total"), 1);

    // The third turn finds both.
    known = second.prompt;
    known.insert(known.end(), second.ids.begin(), second.ids.end());
    talk.push_back(assistant(second.content));
    talk.push_back(user("Thanks."));
    const Played third = ask(talk);
    EXPECT_EQ(host_.value("replayed_turns_total"), 3);
    EXPECT_TRUE(begins_with(third.prompt, known));
    EXPECT_EQ(third.cached, static_cast<int64_t>(second.prompt.size() + second.ids.size()) - 1);
}

TEST_F(EngineReplay, Other_prompts_callers_and_texts_get_the_canonical_form) {
    const Json start = Json::array({user("Tell me about a cat and a dog.")});
    const uint64_t alice = loop_->cache_salt("alice's key", "");
    const Played first = ask(start, alice);
    const auto second = [&](const Json& before, const std::string& said, uint64_t salt) {
        Json talk = before;
        talk.push_back(assistant(said));
        talk.push_back(user("And a bird?"));
        return ask(talk, salt);
    };
    std::vector<int32_t> canonical = first.prompt;
    const std::vector<int32_t> text = encoded(first.content);
    canonical.insert(canonical.end(), text.begin(), text.end());

    EXPECT_FALSE(begins_with(second(start, first.content, alice).prompt, canonical));
    EXPECT_EQ(host_.value("replayed_turns_total"), 1);
    const Played bob = second(start, first.content, loop_->cache_salt("bob's key", ""));
    EXPECT_TRUE(begins_with(bob.prompt, canonical));
    EXPECT_EQ(bob.cached, 0) << "another key shares no prefix";
    EXPECT_TRUE(begins_with(second(start, first.content, 0).prompt, canonical));
    const Json other = Json::array({user("Tell me about a cat and a cow.")});
    const Played elsewhere = second(other, first.content, alice);
    EXPECT_TRUE(std::search(elsewhere.prompt.begin(), elsewhere.prompt.end(), text.begin(),
                            text.end()) != elsewhere.prompt.end());
    second(start, first.content + "!", alice);
    EXPECT_EQ(host_.value("replayed_turns_total"), 1);
}

TEST_F(EngineNoReplay, Without_a_budget_turns_are_written_canonically) {
    Json talk = Json::array({user("Tell me about a cat and a dog.")});
    const Played first = ask(talk);
    std::vector<int32_t> canonical = first.prompt;
    const std::vector<int32_t> text = encoded(first.content);
    canonical.insert(canonical.end(), text.begin(), text.end());
    talk.push_back(assistant(first.content));
    talk.push_back(user("And a bird?"));

    const Played second = ask(talk);

    EXPECT_TRUE(begins_with(second.prompt, canonical));
    EXPECT_LT(second.cached, static_cast<int64_t>(first.prompt.size() + first.ids.size()) - 1);
}

}  // namespace
}  // namespace tenon::testing
