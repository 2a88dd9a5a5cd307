// SPDX-License-Identifier: MIT
// Rules of grammars: what is legal, that masks, walks and states agree, and that a state is what
// was emitted and nothing else. The vocabulary is made here: all bytes, some longer tokens, end
// tokens.
#include "tenon/constraint.h"
#include "tenon/testing/plugin_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace tenon::testing {
namespace {

constexpr int32_t kLonger = 256;
constexpr const char* kLongerTokens[] = {"ab",  "aab", "bc", "\": ", "{\"", "\"}", "true",
                                         "yes", "ye",  "es", "blue", "  ",  "12",  "\u00fc"};
constexpr int32_t kEnd = 256 + static_cast<int32_t>(std::size(kLongerTokens));
constexpr int32_t kOtherEnd = kEnd + 1;
constexpr int32_t kNeverText = kEnd + 2;
constexpr int32_t kVocabulary = kEnd + 3;

struct Vocabulary {
    std::array<char, 256> byte{};
    std::vector<StrView> bytes;
    int32_t ends[2] = {kEnd, kOtherEnd};

    Vocabulary() {
        for (size_t i = 0; i < byte.size(); ++i) {
            byte[i] = static_cast<char>(i);
            bytes.emplace_back(&byte[i], 1);
        }
        for (const char* text : kLongerTokens) {
            bytes.emplace_back(text);
        }
        bytes.resize(kVocabulary);
    }
    TokenVocabulary view() const { return {bytes, ends}; }
};

/// One grammar of each kind with texts that it takes and texts that it refuses.
struct Sample {
    const char* kind;
    const char* source;
    std::vector<std::string> taken;
    std::vector<std::string> refused;
    const char* malformed;  ///< a source that is an error; null if every text is a source
};

const std::vector<Sample>& samples() {
    static const std::vector<Sample> all = {
        {"choice",
         R"(["yes", "yesterday", "no", "\u00fc"])",
         {"yes", "yesterday", "no", "\u00fc"},
         {"", "ye", "yesno", "on"},
         R"(["yes", )"},
        {"regex", "a{1,3}(b|c)d*", {"ab", "aaacddd", "acd"}, {"", "b", "aaaab", "abc"}, "a(b"},
        {"ebnf",
         "root ::= \"a\" root \"b\" | \"c\"",
         {"c", "acb", "aacbb"},
         {"", "ab", "acbb"},
         "root ::= \"a"},
        {"json_object",
         "",
         {R"({})", R"({"a": true})", R"({"a": {"b": [1, null]}})"},
         {"", "[]", "1", R"({"a"})"},
         nullptr},
        {"json_schema",
         R"({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false})",
         {R"({"n": 12})", R"({"n": -3})"},
         {"", "{}", R"({"m": 1})", R"({"n": "12"})"},
         R"({"type": )"},
    };
    return all;
}

class ConstraintRules : public ::testing::TestWithParam<const Component*> {
  protected:
    void SetUp() override {
        OptionSet options(*GetParam());
        auto object = create_component(*GetParam(), host_, options);
        if (!object.ok()) {
            GTEST_SKIP() << "not usable with defaults here: " << object.status().message().view();
        }
        owner_ = std::move(*object);
        compiler_ = facet_of<ConstraintCompiler>(owner_.get());
        ASSERT_NE(compiler_, nullptr) << "offers no " << ConstraintCompiler::kFacet;
        TENON_ASSERT_OK(compiler_->use(vocabulary_.view()));
    }

    Status compile(const char* kind, const char* source, Ref<TokenConstraint>* out) {
        return compiler_->compile(kind, source, out->out());
    }
    /// Runs `body` with a fresh state of each grammar that this compiler knows.
    template <class Body>
    void for_each_grammar(const Body& body) {
        int known = 0;
        for (const Sample& sample : samples()) {
            SCOPED_TRACE(sample.kind);
            Ref<TokenConstraint> state;
            const Status status = compile(sample.kind, sample.source, &state);
            if (!status.ok()) {
                TENON_EXPECT_ERROR(status, Code::unsupported, sample.kind);
                continue;
            }
            ++known;
            body(sample, *state);
        }
        EXPECT_GT(known, 0) << "knows none of the kinds";
    }
    static std::vector<int32_t> byte_ids(const std::string& text) {
        std::vector<int32_t> ids;
        for (const char c : text) {
            ids.push_back(static_cast<uint8_t>(c));
        }
        return ids;
    }
    /// The tokens of `text`, cut at random into longer tokens where there are such.
    static std::vector<int32_t> random_ids(const std::string& text, std::mt19937_64& random) {
        std::vector<int32_t> ids;
        for (size_t at = 0; at < text.size();) {
            int32_t id = static_cast<uint8_t>(text[at]);
            size_t taken = 1;
            for (size_t i = 0; i < std::size(kLongerTokens); ++i) {
                const std::string token = kLongerTokens[i];
                if (text.compare(at, token.size(), token) == 0 && random() % 2 == 0) {
                    id = kLonger + static_cast<int32_t>(i);
                    taken = token.size();
                    break;
                }
            }
            ids.push_back(id);
            at += taken;
        }
        return ids;
    }
    static std::vector<int32_t> legal_now(TokenConstraint& state) {
        std::vector<int32_t> ids;
        for (int32_t id = 0; id < kVocabulary; ++id) {
            if (state.walk(Span<const int32_t>(&id, 1)) == 1) {
                ids.push_back(id);
            }
        }
        return ids;
    }

    static constexpr int64_t kWords = (kVocabulary + 31) / 32 + 1;  // one more than needed

    TestHost host_;
    Vocabulary vocabulary_;
    Ref<Object> owner_;
    ConstraintCompiler* compiler_ = nullptr;
};

TENON_INSTANTIATE_FOR_KIND(ConstraintRules, PluginKind::constraint);

TEST_P(ConstraintRules, Takes_what_the_grammar_describes_in_any_tokens) {
    std::mt19937_64 random(1);
    for_each_grammar([&](const Sample& sample, TokenConstraint&) {
        for (const std::string& text : sample.taken) {
            for (int round = 0; round < 4; ++round) {
                Ref<TokenConstraint> state;
                TENON_ASSERT_OK(compile(sample.kind, sample.source, &state));
                auto ids = random_ids(text, random);
                ids.push_back(round % 2 == 0 ? kEnd : kOtherEnd);

                EXPECT_EQ(state->walk(ids), static_cast<int32_t>(ids.size())) << text;
                TENON_EXPECT_OK(state->accept(ids));
            }
        }
    });
}

TEST_P(ConstraintRules, Refuses_what_the_grammar_does_not_describe) {
    for_each_grammar([&](const Sample& sample, TokenConstraint& state) {
        for (const std::string& text : sample.refused) {
            auto ids = byte_ids(text);
            ids.push_back(kEnd);

            EXPECT_LT(state.walk(ids), static_cast<int32_t>(ids.size())) << text;
        }
    });
}

TEST_P(ConstraintRules, An_illegal_token_is_named_and_changes_nothing) {
    for_each_grammar([&](const Sample& sample, TokenConstraint& state) {
        const auto before = legal_now(state);
        auto ids = byte_ids(sample.taken[0]);
        ids.push_back(kNeverText);

        TENON_EXPECT_ERROR(state.accept(ids), Code::invalid_argument, std::to_string(kNeverText));
        EXPECT_EQ(legal_now(state), before);
        for (const int32_t id : {-1, kVocabulary, kNeverText}) {
            EXPECT_EQ(state.walk(Span<const int32_t>(&id, 1)), 0) << id;
            EXPECT_EQ(state.accept(Span<const int32_t>(&id, 1)).code(), Code::invalid_argument);
        }
    });
}

TEST_P(ConstraintRules, Walking_and_filling_change_nothing) {
    for_each_grammar([&](const Sample& sample, TokenConstraint& state) {
        const auto before = legal_now(state);
        const auto ids = byte_ids(sample.taken.back());
        std::vector<uint32_t> masks((ids.size() + 1) * kWords);

        state.walk(ids);
        TENON_EXPECT_OK(state.fill(ids, masks, kWords));

        EXPECT_EQ(legal_now(state), before);
        EXPECT_FALSE(state.complete());
    });
}

TEST_P(ConstraintRules, Masks_say_what_walking_says) {
    for_each_grammar([&](const Sample& sample, TokenConstraint& state) {
        const auto ids = byte_ids(sample.taken.back());
        std::vector<uint32_t> masks((ids.size() + 1) * kWords, 0xaaaaaaaaU);
        TENON_ASSERT_OK(state.fill(ids, masks, kWords));

        for (size_t row = 0; row <= ids.size(); ++row) {
            const uint32_t* mask = masks.data() + row * kWords;
            std::vector<int32_t> candidates(ids.begin(), ids.begin() + static_cast<int64_t>(row));
            candidates.push_back(0);
            for (int32_t id = 0; id < kVocabulary; ++id) {
                candidates.back() = id;
                const bool legal = state.walk(candidates) == static_cast<int32_t>(row) + 1;
                EXPECT_EQ((mask[id / 32] >> (id % 32) & 1U) != 0, legal) << row << ' ' << id;
            }
            for (int32_t id = kVocabulary; id < kWords * 32; ++id) {
                EXPECT_EQ(mask[id / 32] >> (id % 32) & 1U, 0U) << "behind the vocabulary: " << id;
            }
        }
    });
}

TEST_P(ConstraintRules, Masks_of_a_window_are_those_of_single_steps) {
    std::mt19937_64 random(2);
    for_each_grammar([&](const Sample& sample, TokenConstraint& state) {
        const auto ids = random_ids(sample.taken.back(), random);
        std::vector<uint32_t> window((ids.size() + 1) * kWords);
        TENON_ASSERT_OK(state.fill(ids, window, kWords));

        for (size_t row = 0; row <= ids.size(); ++row) {
            std::vector<uint32_t> one(kWords);
            TENON_ASSERT_OK(state.fill({}, one, kWords));
            EXPECT_TRUE(std::equal(one.begin(), one.end(),
                                   window.begin() + static_cast<int64_t>(row) * kWords))
                << row;
            if (row < ids.size()) {
                TENON_ASSERT_OK(state.accept(Span<const int32_t>(&ids[row], 1)));
            }
        }
    });
}

TEST_P(ConstraintRules, Fill_refuses_what_does_not_fit_and_writes_nothing) {
    for_each_grammar([&](const Sample& sample, TokenConstraint& state) {
        const auto ids = byte_ids(sample.taken[0]);
        std::vector<uint32_t> masks((ids.size() + 1) * kWords, 7);
        const auto untouched = masks;
        const int32_t never = kNeverText;

        EXPECT_EQ(state.fill(ids, Span<uint32_t>(masks.data(), masks.size() - 1), kWords).code(),
                  Code::invalid_argument);
        EXPECT_EQ(state.fill(ids, masks, kVocabulary / 32).code(), Code::invalid_argument);
        EXPECT_EQ(state.fill(Span<const int32_t>(&never, 1), masks, kWords).code(),
                  Code::invalid_argument);
        EXPECT_EQ(masks, untouched);
    });
}

TEST_P(ConstraintRules, Is_complete_when_only_an_end_may_follow) {
    for_each_grammar([&](const Sample& sample, TokenConstraint&) {
        for (const std::string& text : sample.taken) {
            Ref<TokenConstraint> state;
            TENON_ASSERT_OK(compile(sample.kind, sample.source, &state));
            for (const int32_t id : byte_ids(text)) {
                EXPECT_EQ(state->complete(),
                          legal_now(*state) == (std::vector<int32_t>{kEnd, kOtherEnd}));
                TENON_ASSERT_OK(state->accept(Span<const int32_t>(&id, 1)));
            }
            const auto legal = legal_now(*state);
            EXPECT_EQ(state->complete(), legal == (std::vector<int32_t>{kEnd, kOtherEnd})) << text;
            EXPECT_TRUE(std::find(legal.begin(), legal.end(), kEnd) != legal.end()) << text;
            TENON_ASSERT_OK(state->accept(Span<const int32_t>(&kEnd, 1)));
            EXPECT_TRUE(legal_now(*state).empty()) << "something is legal behind the end";
        }
    });
}

TEST_P(ConstraintRules, A_state_is_what_was_emitted) {
    std::mt19937_64 random(3);
    for_each_grammar([&](const Sample& sample, TokenConstraint& state) {
        std::vector<int32_t> emitted;
        for (int step = 0; step < 40; ++step) {
            auto legal = legal_now(state);
            if (legal.empty()) {
                break;
            }
            // Bytes of the source and its longer tokens make texts that go somewhere.
            const int32_t id = legal[random() % legal.size()];
            std::vector<uint32_t> mask(kWords);
            TENON_ASSERT_OK(state.fill({}, mask, kWords));
            TENON_ASSERT_OK(state.accept(Span<const int32_t>(&id, 1)));
            emitted.push_back(id);

            Ref<TokenConstraint> again;
            TENON_ASSERT_OK(compile(sample.kind, sample.source, &again));
            TENON_ASSERT_OK(again->accept(emitted));
            EXPECT_EQ(legal_now(*again), legal_now(state)) << step;
            EXPECT_EQ(again->complete(), state.complete());
        }
    });
}

TEST_P(ConstraintRules, States_of_one_grammar_do_not_share_anything) {
    for_each_grammar([&](const Sample& sample, TokenConstraint& first) {
        Ref<TokenConstraint> second;
        TENON_ASSERT_OK(compile(sample.kind, sample.source, &second));
        const auto before = legal_now(first);

        TENON_ASSERT_OK(second->accept(byte_ids(sample.taken[0])));

        EXPECT_EQ(legal_now(first), before);
        second.reset();
        EXPECT_EQ(legal_now(first), before);
    });
}

TEST_P(ConstraintRules, Unknown_kinds_and_malformed_sources_are_named_errors) {
    Ref<TokenConstraint> state;
    TENON_EXPECT_ERROR(compile("no_such_kind", "x", &state), Code::unsupported, "no_such_kind");
    EXPECT_EQ(state.get(), nullptr);
    for_each_grammar([&](const Sample& sample, TokenConstraint&) {
        if (sample.malformed == nullptr) {
            return;
        }
        Ref<TokenConstraint> none;
        const Status status = compile(sample.kind, sample.malformed, &none);
        EXPECT_EQ(status.code(), Code::invalid_argument);
        EXPECT_FALSE(status.message().empty());
        EXPECT_EQ(none.get(), nullptr);
    });
}

TEST_P(ConstraintRules, A_vocabulary_with_ends_outside_it_is_refused) {
    OptionSet options(*GetParam());
    auto object = create_component(*GetParam(), host_, options);
    ASSERT_TRUE(object.ok());
    auto* compiler = facet_of<ConstraintCompiler>(object->get());
    ASSERT_NE(compiler, nullptr);
    for (const int32_t end : {-1, kVocabulary}) {
        EXPECT_EQ(compiler->use({vocabulary_.bytes, Span<const int32_t>(&end, 1)}).code(),
                  Code::invalid_argument);
    }
    EXPECT_EQ(compiler->use({}).code(), Code::invalid_argument);
    TENON_EXPECT_OK(compiler->use(vocabulary_.view()));
}

TEST_P(ConstraintRules, Compiles_on_several_threads_at_once) {
    std::vector<std::thread> threads;
    std::array<std::string, 4> wrong;
    for (size_t t = 0; t < wrong.size(); ++t) {
        threads.emplace_back([&, t] {
            for (int round = 0; round < 8; ++round) {
                for (const Sample& sample : samples()) {
                    Ref<TokenConstraint> state;
                    const Status status = compile(sample.kind, sample.source, &state);
                    auto ids = byte_ids(sample.taken[0]);
                    ids.push_back(kEnd);
                    if (status.ok() && state->walk(ids) != static_cast<int32_t>(ids.size())) {
                        wrong[t] = sample.kind;
                    }
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const std::string& kind : wrong) {
        EXPECT_EQ(kind, "");
    }
}

}  // namespace
}  // namespace tenon::testing
