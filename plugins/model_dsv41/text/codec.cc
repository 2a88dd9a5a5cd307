// SPDX-License-Identifier: MIT
// Wraps the text library into the objects of tenon/text.h.
#include "text/codec.h"

#include <algorithm>
#include <random>

#include "text/chat_prompt.h"
#include "text/chat_request.h"
#include "text/control_tokens.h"
#include "text/reply_reader.h"
#include "text/sha256.h"
#include "text/tokenizer.h"

namespace tenon::dsv41 {

namespace {

// Merging a long piece takes some 25 bytes of memory a byte; a million tokens of ordinary text are
// about 5 MB.
constexpr uint64_t kMostTextBytes = 32 << 20;

// Names of vocabulary entries that stand for image data; sampled, they would be text that no client
// can send back.
constexpr std::string_view kSentinels[] = {"place_holder_mm_span", "<｜deepseek_image｜>",
                                           "<｜rl_image_"};

std::span<const int32_t> as_span(Span<const int32_t> ids) {
    return {ids.data, static_cast<size_t>(ids.size)};
}

class TextBlob final : public Implements<TextBlob, Blob> {
  public:
    explicit TextBlob(std::string text) : text_(std::move(text)) {}
    StrView view() noexcept override { return text_; }

  private:
    std::string text_;
};

class Tokens final : public Implements<Tokens, TokenList> {
  public:
    explicit Tokens(std::vector<int32_t> ids) : ids_(std::move(ids)) {}
    Span<const int32_t> ids() noexcept override { return ids_; }

  private:
    std::vector<int32_t> ids_;
};

/// What of a request outlives its prompt.
struct PromptFacts {
    std::string tools_json;
    bool thinking = false, keeps_reasoning = false, parallel_tool_calls = true, json_reply = false;
};

class RenderedPrompt final : public Implements<RenderedPrompt, Prompt> {
  public:
    RenderedPrompt(ChatPrompt prompt, EncodedPrompt encoded, PromptFacts facts)
        : prompt_(std::move(prompt)), encoded_(std::move(encoded)), facts_(std::move(facts)) {
        for (size_t i = 0; i < prompt_.images.size(); ++i) {
            images_.push_back(PromptImage{.position = encoded_.image_positions[i],
                                          .url = prompt_.images[i].url,
                                          .part = prompt_.images[i].path});
        }
    }
    Span<const int32_t> ids() noexcept override { return encoded_.ids; }
    StrView text() noexcept override { return prompt_.text; }
    Span<const Border> borders() noexcept override { return encoded_.borders; }
    Span<const PromptImage> images() noexcept override { return images_; }
    ReplyStart start() noexcept override { return prompt_.start; }
    bool thinking() noexcept override { return facts_.thinking; }
    bool keeps_reasoning() noexcept override { return facts_.keeps_reasoning; }
    StrView tools_json() noexcept override { return facts_.tools_json; }
    bool parallel_tool_calls() noexcept override { return facts_.parallel_tool_calls; }
    bool json_reply() noexcept override { return facts_.json_reply; }

  private:
    ChatPrompt prompt_;
    EncodedPrompt encoded_;
    PromptFacts facts_;
    std::vector<PromptImage> images_;  // views into prompt_
};

class Parser final : public Implements<Parser, ReplyParser> {
  public:
    Parser(const Tokenizer& tokenizer, const ControlTokens& controls, MachineConfig config)
        : reader_(tokenizer, controls, std::move(config)) {}

    Status feed(Span<const int32_t> ids, ReplyEvents& events) noexcept override {
        return guard([&] {
            reader_.feed(as_span(ids), parsed_);
            hand_out(events);
        });
    }
    Status feed_text(StrView text, ReplyEvents& events) noexcept override {
        return guard([&] {
            reader_.feed_text(text, parsed_);
            hand_out(events);
        });
    }
    Status finish(ReplyEnd end, ReplyEvents& events) noexcept override {
        return guard([&] {
            reader_.finish(end, parsed_);
            hand_out(events);
        });
    }
    bool stopped() noexcept override { return reader_.has_stopped(); }
    int64_t reasoning_tokens() noexcept override { return reader_.reasoning_tokens(); }

  private:
    void hand_out(ReplyEvents& events) {
        for (const ParsedEvent& event : parsed_) {
            events.on_event(ReplyEvent{event.kind, event.index, event.text, event.id});
        }
        parsed_.clear();
    }

    ReplyReader reader_;
    std::vector<ParsedEvent> parsed_;
};

/// Reads the reply as the parser of the delivery thread does, so that both find the same token.
class Stops final : public Implements<Stops, StopMatcher> {
  public:
    Stops(const Tokenizer& tokenizer, const ControlTokens& controls, MachineConfig config)
        : has_stops_(std::any_of(config.stops.begin(), config.stops.end(),
                                 [](const auto& s) { return !s.empty(); })),
          reader_(tokenizer, controls, std::move(config)) {}

    bool feed(int32_t token) noexcept override {
        if (!has_stops_ || reader_.has_stopped()) {
            return false;
        }
        reader_.feed({&token, 1}, ignored_);
        ignored_.clear();
        return reader_.has_stopped();
    }

  private:
    bool has_stops_;
    ReplyReader reader_;
    std::vector<ParsedEvent> ignored_;
};

class Decoder final : public Implements<Decoder, StreamDecoder> {
  public:
    Decoder(const Tokenizer& tokenizer, bool skip_specials) : stream_(tokenizer, skip_specials) {}
    StrView feed(Span<const int32_t> ids) noexcept override {
        delta_ = stream_.feed(as_span(ids));
        return delta_;
    }
    StrView flush() noexcept override {
        delta_ = stream_.flush();
        return delta_;
    }

  private:
    DecodeStream stream_;
    std::string delta_;
};

class Codec final : public Implements<Codec, TextCodec> {
  public:
    Codec(Tokenizer tokenizer, ChatDefaults defaults, bool text_specials, std::string digest)
        : tokenizer_(std::move(tokenizer)),
          controls_(tokenizer_),
          defaults_(std::move(defaults)),
          specials_(text_specials ? Tokenizer::Specials::parsed : Tokenizer::Specials::as_text),
          digest_(std::move(digest)) {
        for (int32_t id = 0; id < tokenizer_.size(); ++id) {
            const std::string_view raw = tokenizer_.raw(id);
            const bool is_sentinel =
                tokenizer_.is_added(id) &&
                std::any_of(std::begin(kSentinels), std::end(kSentinels),
                            [&](auto name) { return raw.find(name) != std::string_view::npos; });
            if (!tokenizer_.has(id) || is_sentinel) {
                forbidden_.push_back(id);
            }
        }
    }

    const ControlTokens& controls() const { return controls_; }

    TextInfo info() noexcept override {
        TextInfo info;
        info.vocab = tokenizer_.size();
        info.bos = controls_.id(Control::bos);
        info.eos = controls_.id(Control::eos);
        info.pad = controls_.id(Control::pad);
        info.think_open = controls_.id(Control::think_open);
        info.think_close = controls_.id(Control::think_close);
        info.image = controls_.id(Control::image);
        info.forbidden = forbidden_;
        info.tokenizer_digest = digest_;
        return info;
    }

    Status render(StrView request_json, Prompt** out) noexcept override {
        return render_prompt(request_json, nullptr, out);
    }
    Status render_with(StrView request_json, TurnReplay& replay, Prompt** out) noexcept override {
        return render_prompt(request_json, &replay, out);
    }

    Status render_prompt(StrView request_json, TurnReplay* replay, Prompt** out) noexcept {
        return guard([&]() -> Status {
            TENON_ASSIGN(ChatRequest request, parse_chat_request(request_json, defaults_));
            PromptFacts facts;
            facts.thinking = request.thinking;
            facts.keeps_reasoning = !request.thinking || !request.tool_lines.empty();
            facts.parallel_tool_calls = request.parallel_tool_calls;
            facts.json_reply = request.asks_json_object;
            facts.tools_json = std::move(request.tools_json);
            ChatPrompt prompt = write_chat_prompt(std::move(request));
            TENON_TRY(check_size(prompt.text.size(), "messages: the prompt"));
            TENON_ASSIGN(EncodedPrompt encoded,
                         encode_chat_prompt(prompt, tokenizer_, controls_, specials_, replay));
            *out = new RenderedPrompt(std::move(prompt), std::move(encoded), std::move(facts));
            return {};
        });
    }

    Status encode(StrView text, uint32_t flags, TokenList** out) noexcept override {
        return guard([&]() -> Status {
            TENON_TRY(check_size(text.size, "text"));
            std::vector<int32_t> ids;
            Tokenizer::Scratch scratch = tokenizer_.make_scratch();
            const bool parses = (flags & kParseSpecials) != 0;
            TENON_TRY(tokenizer_.encode(
                text, parses ? Tokenizer::Specials::parsed : Tokenizer::Specials::as_text, scratch,
                ids));
            *out = new Tokens(std::move(ids));
            return {};
        });
    }

    Status decode(Span<const int32_t> ids, uint32_t flags, Blob** out) noexcept override {
        return guard([&]() -> Status {
            TENON_ASSIGN(std::string text,
                         tokenizer_.decode(as_span(ids), (flags & kSkipSpecials) != 0));
            *out = new TextBlob(std::move(text));
            return {};
        });
    }

    Status make_parser(const ReplyParserConfig& config, ReplyParser** out) noexcept override {
        return guard([&]() -> Status {
            TENON_ASSIGN(MachineConfig machine, machine_config(config));
            *out = new Parser(tokenizer_, controls_, std::move(machine));
            return {};
        });
    }

    Status make_stop(const ReplyParserConfig& config, StopMatcher** out) noexcept override {
        return guard([&]() -> Status {
            TENON_ASSIGN(MachineConfig machine, machine_config(config));
            *out = new Stops(tokenizer_, controls_, std::move(machine));
            return {};
        });
    }

    Status make_decoder(uint32_t flags, StreamDecoder** out) noexcept override {
        return guard([&] { *out = new Decoder(tokenizer_, (flags & kSkipSpecials) != 0); });
    }

    StrView token_bytes(int32_t id) noexcept override { return tokenizer_.bytes(id); }

  private:
    static Status check_size(uint64_t bytes, std::string_view what) {
        if (bytes > kMostTextBytes) {
            return error(Code::invalid_argument, "{} has {} bytes; at most {} are read", what,
                         bytes, kMostTextBytes);
        }
        return {};
    }

    static Result<MachineConfig> machine_config(const ReplyParserConfig& config) {
        MachineConfig machine;
        static constexpr MachineStart kStarts[] = {
            MachineStart::reasoning, MachineStart::content, MachineStart::reasoning_continued,
            MachineStart::content_continued, MachineStart::calls};
        const auto start = static_cast<uint32_t>(config.start);
        if (start >= std::size(kStarts)) {
            return error(Code::invalid_argument, "reply parser: start = {} is unknown", start);
        }
        machine.start = kStarts[start];
        TENON_ASSIGN(machine.tools, ToolTable::parse(config.tools_json));
        for (const StrView stop : config.stops) {
            machine.stops.push_back(stop.str());
        }
        machine.parallel_tool_calls = config.parallel_tool_calls;
        machine.call_id_seed = config.call_id_seed;
        if (machine.call_id_seed == 0) {
            std::random_device device;
            machine.call_id_seed = (static_cast<uint64_t>(device()) << 32) | device();
        }
        return machine;
    }

    Tokenizer tokenizer_;
    ControlTokens controls_;
    ChatDefaults defaults_;
    Tokenizer::Specials specials_;
    std::string digest_;
    std::vector<int32_t> forbidden_;
};

}  // namespace

Status make_codec(StrView tokenizer_json, const CodecOptions& options, TextCodec** out) {
    ChatDefaults defaults;
    defaults.thinking = options.thinking;
    defaults.effort = options.effort;
    if (options.effort < 1 || options.effort > 100) {
        return error(Code::invalid_argument, "effort = {} is out of range 1…100", options.effort);
    }
    if (!options.efforts_json.empty()) {
        TENON_TRY(parse_efforts(options.efforts_json, defaults));
    }
    TENON_ASSIGN(Tokenizer tokenizer, Tokenizer::load(tokenizer_json));
    auto codec = Ref<Codec>(new Codec(std::move(tokenizer), std::move(defaults),
                                      options.text_specials, sha256_hex(tokenizer_json)));
    const int32_t image = codec->controls().id(Control::image);
    if (options.image_id >= 0 && image >= 0 && image != options.image_id) {
        return error(Code::invalid_argument,
                     "tokenizer.json: '{}' has id {}, config.json says image_token_id = {}",
                     control_text(Control::image), image, options.image_id);
    }
    *out = codec.detach();
    return {};
}

}  // namespace tenon::dsv41
