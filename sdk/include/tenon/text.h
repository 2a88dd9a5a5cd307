// SPDX-License-Identifier: MIT
// Between messages and token ids: prompt rendering, tokenization, reply parsing, stop strings.
#pragma once

#include "tenon/object.h"

namespace tenon {

/// Bytes owned by the object (text, JSON); not null-terminated by contract.
class Blob : public Object {
  public:
    static constexpr const char* kFacet = "text.blob/1";
    virtual StrView view() noexcept = 0;
};

/// Token ids owned by the object.
class TokenList : public Object {
  public:
    static constexpr const char* kFacet = "text.tokens/1";
    virtual Span<const int32_t> ids() noexcept = 0;
};

enum class BorderKind : uint32_t { system_end, message_end, last_header };

/// A position after which a cut may lie (engine.md 1.1): tokens [0, position) belong to the prefix.
struct Border {
    int64_t position = 0;
    BorderKind kind = BorderKind::message_end;
    uint32_t reserved = 0;
};

/// One image of a prompt: its placeholder position and where its bytes come from.
struct PromptImage {
    int64_t position = 0;  ///< index of the placeholder token
    StrView url;           ///< as the client wrote it
    StrView part;          ///< JSON path of the request part, for messages
};

/// Where the reply starts for the parser (chat-encoding.md 6). `calls`: inside a call block that
/// the prompt opened; `render` writes no such prompt.
enum class ReplyStart : uint32_t {
    reasoning,
    content,
    reasoning_continued,
    content_continued,
    calls
};

/// A rendered prompt. Views live as long as the object.
class Prompt : public Object {
  public:
    static constexpr const char* kFacet = "text.prompt/1";
    virtual Span<const int32_t> ids() noexcept = 0;
    virtual StrView text() noexcept = 0;
    virtual Span<const Border> borders() noexcept = 0;  ///< ascending
    virtual Span<const PromptImage> images() noexcept = 0;
    virtual ReplyStart start() noexcept = 0;
    virtual bool thinking() noexcept = 0;
    /// The next turn repeats this reply token for token (engine.md 1.1).
    virtual bool keeps_reasoning() noexcept = 0;
    /// Offered tools as a JSON array, "" if none are offered.
    virtual StrView tools_json() noexcept = 0;
    virtual bool parallel_tool_calls() noexcept = 0;
    virtual bool json_reply() noexcept = 0;  ///< a JSON response format was asked
};

enum class ReplyEventKind : uint32_t {
    reasoning,  ///< text
    content,    ///< text
    call,       ///< index, id, text = function name
    arguments,  ///< index, text = next piece of the arguments JSON
    finish,     ///< text = finish_reason: stop, length, tool_calls, error
};

struct ReplyEvent {
    ReplyEventKind kind = ReplyEventKind::content;
    int32_t index = 0;
    StrView text;  ///< borrowed for the call
    StrView id;    ///< kind `call`: "call_" + 24 alphanumerics
};

class ReplyEvents {
  public:
    virtual void on_event(const ReplyEvent& event) noexcept = 0;

  protected:
    ~ReplyEvents() = default;
};

enum class ReplyEnd : uint32_t { eos, length, stop_string };

struct ReplyParserConfig {
    uint32_t struct_size = sizeof(ReplyParserConfig);
    ReplyStart start = ReplyStart::content;
    StrView tools_json;  ///< JSON array of OpenAI tools, "" = none offered; "[]" = offered, not
                         ///< described
    bool parallel_tool_calls = true;
    uint8_t reserved[7] = {};
    uint64_t call_id_seed = 0;  ///< ids of calls are derived from it; 0 = random
    Span<const StrView> stops;  ///< stop strings; applied to content only
};

/// Incremental parser of one reply. Thread: the delivery thread; not shared.
class ReplyParser : public Object {
  public:
    static constexpr const char* kFacet = "text.reply_parser/1";
    /// Feeds sampled ids (EOS excluded). The concatenation of events does not depend on the split.
    virtual Status feed(Span<const int32_t> ids, ReplyEvents& events) noexcept = 0;
    /// Text-only input: spelled markers count (tests, `tenon parse`).
    virtual Status feed_text(StrView text, ReplyEvents& events) noexcept = 0;
    /// Ends the reply; gives out what was held and the finish event.
    virtual Status finish(ReplyEnd end, ReplyEvents& events) noexcept = 0;
    /// True once a stop string has been met; what follows is dropped.
    virtual bool stopped() noexcept = 0;
    /// Tokens fed while the parser was in reasoning.
    virtual int64_t reasoning_tokens() noexcept = 0;
};

/// Decides per token whether the reply ends by a stop string (engine thread; exact over token
/// borders and over the reasoning border).
class StopMatcher : public Object {
  public:
    static constexpr const char* kFacet = "text.stop_matcher/1";
    /// True if this token completes a stop string in content.
    virtual bool feed(int32_t token) noexcept = 0;
};

/// Streaming detokenizer: deltas end on UTF-8 borders.
class StreamDecoder : public Object {
  public:
    static constexpr const char* kFacet = "text.stream_decoder/1";
    /// Text that became certain with these ids; the view lives until the next call.
    virtual StrView feed(Span<const int32_t> ids) noexcept = 0;
    /// What a flush gives out at the end.
    virtual StrView flush() noexcept = 0;
};

struct TextInfo {
    uint32_t struct_size = sizeof(TextInfo);
    int32_t vocab = 0;  ///< ids of the tokenizer; ids at or above never occur
    int32_t bos = -1, eos = -1, pad = -1;
    int32_t think_open = -1, think_close = -1;
    int32_t image = -1;
    Span<const int32_t> forbidden;  ///< ids that must never be sampled
    StrView tokenizer_digest;       ///< hex SHA-256 of tokenizer.json
};

enum : uint32_t { kParseSpecials = 1, kSkipSpecials = 1 };

/// A call of an assistant turn as the client sends it back.
struct VisibleCall {
    StrView id, name;
    StrView arguments;  ///< JSON text; blanks between its tokens do not matter
};

/// An assistant turn as the client sees it and sends it back.
struct VisibleTurn {
    StrView reasoning;  ///< "" if the client sends none
    StrView content;
    Span<const VisibleCall> calls;
};

/// The ids that earlier replies were sampled as, during one `render_with` (engine.md 4.4). Borrowed
/// for that call; one thread.
class TurnReplay {
  public:
    /// The next ids of the prompt, in order.
    virtual void add_prompt(Span<const int32_t> ids) noexcept = 0;
    /// Ids of the turn whose header's last token (the marker of reasoning) follows the prompt so
    /// far: all of it, or, for a turn that is shown without its reasoning, what came after the
    /// close marker. End tokens are left out. Empty: not known, write the canonical form. Valid
    /// until the next call.
    virtual Span<const int32_t> find(const VisibleTurn& turn, bool shows_reasoning) noexcept = 0;

  protected:
    ~TurnReplay() = default;
};

/// Thread-safe and const. Lives as long as the model or family that made it.
class TextCodec : public Object {
  public:
    static constexpr const char* kFacet = "text.codec/1";
    virtual TextInfo info() noexcept = 0;
    /// A chat completion request body (OpenAI shape, `model` optional) to a prompt.
    /// errors  invalid_argument: message names the field ("messages[2].content: …") -> HTTP 400
    virtual Status render(StrView request_json, Prompt** out) noexcept = 0;
    /// As `render`, with assistant turns written as the ids that they were sampled as where
    /// `replay` knows them; `Prompt::text` shows the canonical form. A codec without this renders
    /// as ever.
    virtual Status render_with(StrView request_json, TurnReplay& replay, Prompt** out) noexcept {
        static_cast<void>(replay);
        return render(request_json, out);
    }
    /// Text to ids; flags 0: all text is ordinary text, kParseSpecials: added tokens become their
    /// ids.
    virtual Status encode(StrView text, uint32_t flags, TokenList** out) noexcept = 0;
    /// Ids to text; invalid UTF-8 becomes U+FFFD. flags 0 keeps specials, kSkipSpecials drops them.
    /// errors  invalid_argument: an id outside the tokenizer (names it and its place)
    virtual Status decode(Span<const int32_t> ids, uint32_t flags, Blob** out) noexcept = 0;
    virtual Status make_parser(const ReplyParserConfig& config, ReplyParser** out) noexcept = 0;
    virtual Status make_stop(const ReplyParserConfig& config, StopMatcher** out) noexcept = 0;
    virtual Status make_decoder(uint32_t flags, StreamDecoder** out) noexcept = 0;
    /// One token's raw bytes (logprobs); the view lives as long as the codec. Empty for unknown
    /// ids.
    virtual StrView token_bytes(int32_t id) noexcept = 0;
};

}  // namespace tenon
