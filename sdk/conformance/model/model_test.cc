// SPDX-License-Identifier: MIT
// Rules of model families: whose checkpoints they refuse and how; with --checkpoint also that text
// survives their codec. What a model computes is its own plugin's business.
#include "tenon/model.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {
namespace {

/// A model directory without weights: the given config.json, other files from disk.
class TextCheckpoint final : public Implements<TextCheckpoint, Checkpoint> {
  public:
    TextCheckpoint(std::string dir, std::string config)
        : dir_(std::move(dir)), config_(std::move(config)) {}

    StrView dir() noexcept override { return dir_; }
    StrView config_json() noexcept override { return config_; }
    WeightSource* weights() noexcept override { return nullptr; }
    Status file(StrView name, StrView* out) noexcept override {
        return guard([&]() -> Status {
            std::ifstream in(dir_ + "/" + name.str(), std::ios::binary);
            if (!in) {
                return error(Code::not_found, "{}/{}: no such file", dir_, name.view());
            }
            std::stringstream text;
            text << in.rdbuf();
            *out = files_[name.str()] = text.str();
            return {};
        });
    }

  private:
    std::string dir_, config_;
    std::map<std::string, std::string> files_;
};

class FamilyRules : public ::testing::TestWithParam<const Component*> {
  protected:
    void SetUp() override {
        OptionSet options(*GetParam());
        auto made = Created<ModelFamily>::make(*GetParam(), host_, options);
        ASSERT_TRUE(made.ok()) << made.status().message().view();
        family_ = std::move(*made);
    }

    Status inspect(const std::string& config) {
        Ref<TextCheckpoint> checkpoint(new TextCheckpoint("/nonexistent", config));
        ModelInfo info;
        return family_->inspect(*checkpoint, &info);
    }

    TestHost host_;
    Created<ModelFamily> family_;
};

TENON_INSTANTIATE_FOR_KIND(FamilyRules, PluginKind::model);

TEST_P(FamilyRules, A_checkpoint_of_another_family_is_not_found_so_that_the_next_one_is_asked) {
    TENON_EXPECT_ERROR(inspect(R"({"model_type": "conformance_no_such_model"})"), Code::not_found,
                       "conformance_no_such_model");
}

TEST_P(FamilyRules, A_config_that_is_no_config_is_an_error_and_nothing_else) {
    const std::string configs[] = {"",
                                   "{}",
                                   "[]",
                                   "null",
                                   "{\"model_type\": 7}",
                                   "{\"model_type\": \"x\"",
                                   std::string(100'000, '['),
                                   std::string("{\"model_type\": \"\xff\xfe\"}"),
                                   std::string(1, '\0')};
    for (const std::string& config : configs) {
        const Status status = inspect(config);
        EXPECT_FALSE(status.ok()) << config.substr(0, 40);
        EXPECT_FALSE(status.message().str().empty()) << config.substr(0, 40);
        EXPECT_LT(status.message().str().size(), 2000u) << "repeats the whole input";
    }
}

TEST_P(FamilyRules, Nothing_is_loaded_without_what_a_model_needs) {
    Ref<TextCheckpoint> checkpoint(
        new TextCheckpoint("/nonexistent", R"({"model_type": "conformance_no_such_model"})"));
    ModelServices services;
    services.host = &host_;
    services.checkpoint = checkpoint.get();
    services.tables = checkpoint.get();
    Model* model = nullptr;

    EXPECT_FALSE(family_->load(services, ModelRequest{}, &model).ok());
    EXPECT_EQ(model, nullptr);
}

TEST_P(FamilyRules, Text_without_a_tokenizer_is_an_error_that_names_the_file) {
    Ref<TextCheckpoint> checkpoint(new TextCheckpoint("/nonexistent", ""));
    TextCodec* codec = nullptr;
    const Status status = family_->open_text(*checkpoint, &codec);

    EXPECT_FALSE(status.ok());
    EXPECT_EQ(codec, nullptr);
    EXPECT_NE(status.message().str().find("tokenizer.json"), std::string::npos)
        << status.message().view();
}

class TextRules : public FamilyRules {
  protected:
    void SetUp() override {
        FamilyRules::SetUp();
        if (HasFatalFailure()) {
            return;
        }
        if (checkpoint_under_test().empty()) {
            GTEST_SKIP() << "no --checkpoint DIR";
        }
        checkpoint_ = Ref<TextCheckpoint>(new TextCheckpoint(checkpoint_under_test(), ""));
        TENON_ASSERT_OK(family_->open_text(*checkpoint_, &codec_));
    }

    std::vector<int32_t> encode(const std::string& text, uint32_t flags = 0) {
        TokenList* raw = nullptr;
        const Status status = codec_->encode(text, flags, &raw);
        EXPECT_TRUE(status.ok()) << status.message().view();
        Ref<TokenList> list(raw);
        return list.get() == nullptr ? std::vector<int32_t>()
                                     : std::vector<int32_t>(list->ids().begin(), list->ids().end());
    }

    Ref<TextCheckpoint> checkpoint_;
    TextCodec* codec_ = nullptr;  // the family's
};

TENON_INSTANTIATE_FOR_KIND(TextRules, PluginKind::model);

const char* const kTexts[] = {"",
                              "a",
                              "The quick brown fox.",
                              "  two  spaces\tand a tab\r\n",
                              "naïve café, 東京, नमस्ते, 🙂👩‍👩‍👧",
                              "{\"a\": [1, 2.5e-3, null]}",
                              "<|endoftext|> </think> <think>"};

TEST_P(TextRules, Ids_give_the_text_back_and_lie_inside_the_tokenizer) {
    for (const std::string text : kTexts) {
        const std::vector<int32_t> ids = encode(text);
        for (const int32_t id : ids) {
            EXPECT_GE(id, 0);
            EXPECT_LT(id, codec_->info().vocab);
        }
        Blob* raw = nullptr;
        TENON_ASSERT_OK(codec_->decode(ids, 0, &raw));
        Ref<Blob> blob(raw);
        EXPECT_EQ(blob->view().str(), text);
    }
}

TEST_P(TextRules, A_stream_decoder_gives_the_same_text_for_any_split) {
    for (const std::string text : kTexts) {
        const std::vector<int32_t> ids = encode(text);
        for (const size_t step : {size_t{1}, size_t{2}, size_t{3}, ids.size() + 1}) {
            StreamDecoder* raw = nullptr;
            TENON_ASSERT_OK(codec_->make_decoder(0, &raw));
            Ref<StreamDecoder> decoder(raw);
            std::string got;
            for (size_t at = 0; at < ids.size(); at += step) {
                const size_t n = std::min(step, ids.size() - at);
                got += decoder->feed({ids.data() + at, n}).view();
            }
            got += decoder->flush().view();
            EXPECT_EQ(got, text) << "in steps of " << step;
        }
    }
}

/// Events as text, one a line; neighbouring pieces of one kind are joined.
class Transcript final : public ReplyEvents {
  public:
    void on_event(const ReplyEvent& event) noexcept override {
        const std::string head =
            format("{} {} {} ", static_cast<uint32_t>(event.kind), event.index, event.id);
        const bool is_piece = event.kind == ReplyEventKind::reasoning ||
                              event.kind == ReplyEventKind::content ||
                              event.kind == ReplyEventKind::arguments;
        if (!is_piece || head != head_) {
            text += "\n" + head;
        }
        head_ = is_piece ? head : "";
        text += event.text.str();
    }

    std::string text;

  private:
    std::string head_;
};

const std::string kReply = "I count: 1, 2.\nnaïve 🙂 <b>ok</b> {\"a\": [1]}\n\nDone";

TEST_P(TextRules, A_stream_decoder_that_ends_inside_a_character_says_what_decoding_says) {
    const std::vector<int32_t> ids = encode("é🙂👩‍👩‍👧");
    for (size_t n = 1; n <= ids.size(); ++n) {
        Ref<Blob> whole;
        TENON_ASSERT_OK(codec_->decode({ids.data(), n}, 0, whole.out()));
        Ref<StreamDecoder> decoder;
        TENON_ASSERT_OK(codec_->make_decoder(0, decoder.out()));
        std::string got = decoder->feed({ids.data(), n}).str();
        got += decoder->flush().view();
        EXPECT_EQ(got, whole->view().str()) << n << " ids";
    }
}

TEST_P(TextRules, A_parser_says_the_same_for_any_split_and_beside_another_one) {
    std::vector<int32_t> ids = encode(kReply);
    if (const int32_t close = codec_->info().think_close; close >= 0) {
        ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(ids.size() / 3), close);
    }
    const auto open = [&](ReplyStart start, Ref<ReplyParser>* out) {
        ReplyParserConfig config;
        config.start = start;
        config.call_id_seed = 7;
        TENON_ASSERT_OK(codec_->make_parser(config, out->out()));
    };
    for (const ReplyStart start : {ReplyStart::reasoning, ReplyStart::content}) {
        std::string whole;
        for (const size_t step : {ids.size(), size_t{1}, size_t{2}, size_t{5}}) {
            Ref<ReplyParser> parser, other;
            open(start, &parser);
            open(ReplyStart::reasoning, &other);
            Transcript events, ignored;
            for (size_t at = 0; at < ids.size(); at += step) {
                const size_t n = std::min(step, ids.size() - at);
                TENON_ASSERT_OK(parser->feed({ids.data() + at, n}, events));
                TENON_ASSERT_OK(other->feed({ids.data(), 1}, ignored));
            }
            TENON_ASSERT_OK(parser->finish(ReplyEnd::eos, events));
            whole = step == ids.size() ? events.text : whole;
            EXPECT_EQ(events.text, whole) << "in steps of " << step;
            EXPECT_NE(events.text.find("Done"), std::string::npos) << events.text;
            EXPECT_EQ(events.text.substr(events.text.rfind('\n') + 1), "4 0  stop") << events.text;
        }
    }
}

TEST_P(TextRules, A_stop_string_ends_the_reply_before_it_over_any_token_border) {
    const StrView stop = "1, 2";
    ReplyParserConfig config;
    config.stops = {&stop, 1};
    Ref<ReplyParser> parser;
    Ref<StopMatcher> matcher;
    TENON_ASSERT_OK(codec_->make_parser(config, parser.out()));
    TENON_ASSERT_OK(codec_->make_stop(config, matcher.out()));
    Transcript events;
    bool matched = false;
    for (const int32_t id : encode(kReply)) {
        TENON_ASSERT_OK(parser->feed({&id, 1}, events));
        matched = matched || matcher->feed(id);
        EXPECT_EQ(parser->stopped(), matched);
    }
    TENON_ASSERT_OK(parser->finish(ReplyEnd::stop_string, events));
    EXPECT_TRUE(matched);
    EXPECT_EQ(events.text, "\n1 0  I count: \n4 0  stop");
}

TEST_P(TextRules, A_request_renders_the_same_each_time_with_borders_inside) {
    const std::string request = R"({"messages": [{"role": "system", "content": "Be brief."}, )"
                                R"({"role": "user", "content": "naïve 🙂?"}]})";
    std::vector<int32_t> first;
    for (int i = 0; i < 2; ++i) {
        Ref<Prompt> prompt;
        TENON_ASSERT_OK(codec_->render(request, prompt.out()));
        const std::vector<int32_t> ids(prompt->ids().begin(), prompt->ids().end());
        first = i == 0 ? ids : first;
        EXPECT_EQ(ids, first);
        ASSERT_FALSE(ids.empty());
        for (const int32_t id : ids) {
            EXPECT_GE(id, 0);
            EXPECT_LT(id, codec_->info().vocab);
        }
        EXPECT_NE(prompt->text().str().find("naïve 🙂?"), std::string::npos);
        int64_t last = 0;
        for (const Border& border : prompt->borders()) {
            EXPECT_GE(border.position, last);
            EXPECT_LE(border.position, static_cast<int64_t>(ids.size()));
            last = border.position;
        }
    }
}

TEST_P(TextRules, Claims_the_checkpoint_and_describes_a_model_that_can_run) {
    StrView config;
    TENON_ASSERT_OK(checkpoint_->file("config.json", &config));
    ModelInfo info;
    TextCheckpoint whole(checkpoint_under_test(), config.str());
    TENON_ASSERT_OK(family_->inspect(whole, &info));
    EXPECT_GT(info.page_tokens, 0);
    EXPECT_GT(info.page_bytes, 0);
    EXPECT_GE(info.max_window_rows, 1);
    EXPECT_GE(info.max_step_rows, info.max_window_rows);
    EXPECT_GE(info.max_chunk_rows, 1);
    EXPECT_GE(info.vocab, codec_->info().vocab) << "a token without a logit";
    EXPECT_GT(info.context_limit, 0);
    EXPECT_GE(info.draft_max, 0);
    EXPECT_LT(info.draft_max, info.max_window_rows) << "a window holds a row and its drafts";
    EXPECT_GE(info.ring_slack, info.draft_max) << "refused drafts must be rewound";
    EXPECT_GE(info.max_in_flight, 1);
    EXPECT_NE(info.family[0], '\0');
}

TEST_P(TextRules, User_text_never_becomes_a_control_token) {
    const TextInfo info = codec_->info();
    for (const int32_t control : {info.bos, info.eos, info.think_open, info.think_close}) {
        if (control < 0) {
            continue;
        }
        const std::string spelled = codec_->token_bytes(control).str();
        for (const int32_t id : encode("a" + spelled + "b")) {
            EXPECT_NE(id, control) << spelled;
        }
    }
}

TEST_P(TextRules, Ids_outside_the_tokenizer_are_refused_with_their_value) {
    for (const int32_t id : {-1, codec_->info().vocab, INT32_MAX}) {
        Blob* raw = nullptr;
        TENON_EXPECT_ERROR(codec_->decode({&id, 1}, 0, &raw), Code::invalid_argument,
                           std::to_string(id));
        EXPECT_EQ(raw, nullptr);
        EXPECT_TRUE(codec_->token_bytes(id).empty());
    }
}

TEST_P(TextRules, Requests_that_are_no_requests_are_refused) {
    for (const std::string& request :
         {std::string(), std::string("{"), std::string("[]"), std::string("{\"messages\": 1}"),
          std::string("{\"messages\": []}"), std::string(100'000, '['), std::string("\xff")}) {
        Prompt* raw = nullptr;
        const Status status = codec_->render(request, &raw);
        EXPECT_EQ(status.code(), Code::invalid_argument) << request.substr(0, 40);
        EXPECT_EQ(raw, nullptr);
    }
}

}  // namespace
}  // namespace tenon::testing
