// SPDX-License-Identifier: MIT
// The engine as front ends see it: submit a request, drain its reply, cancel, read figures.
#pragma once

#include "tenon/constraint.h"
#include "tenon/plan.h"
#include "tenon/text.h"

namespace tenon {

struct LogitBias {
    int32_t token = 0;
    float add = 0;
};

/// engine.md 1.2. Values out of range, NaN and infinities are refused at submit, naming the field.
struct SamplingParams {
    float temperature = 1, top_p = 1, min_p = 0;
    float presence = 0, frequency = 0, repetition = 1;
    int32_t top_k = 0;      ///< 0 = off
    int32_t logprobs = -1;  ///< top entries a token; -1 = none
    uint64_t seed = 0;
    bool seed_set = false;  ///< false: first 8 bytes of SHA-256(salt, tokens)
    uint8_t reserved[7] = {};
    Span<const LogitBias> bias;
    Span<const int32_t> stop_ids;  ///< in addition to EOS
};

enum class Priority : uint32_t { foreground, background };

enum : uint32_t {
    kDraftsAllowed = 1,
    kIgnoreEos = 2,
    kPromptLogprobs = 4,
    kNoPrefix = 8,
    kStrictPrefix = 16,
    kReturnIds = 32,
    kRawText = 64,  ///< completions: no reply parser; all text is content
};

/// A run of image rows in a prompt, which hold the image token (engine.md 1.1).
struct RequestImage {
    int64_t position = 0;
    int32_t rows = 0;
    uint32_t reserved = 0;
    uint8_t key[32] = {};  ///< SHA-256 of pixels, grid and preprocessing version
};

/// One request; borrowed for the call (the engine copies what it keeps).
struct RequestDesc {
    uint32_t struct_size = sizeof(RequestDesc);
    Priority priority = Priority::foreground;
    Span<const int32_t> tokens;
    Span<const Border> borders;
    SamplingParams sampling;
    int64_t max_new_tokens = 0;    ///< 0 = the profile's default, capped to the room
    int64_t thinking_budget = -1;  ///< tokens of reasoning; -1 = no bound
    Span<const StrView> stops;     ///< stop strings
    ReplyParserConfig parser;      ///< unused with kRawText (its `stops` are taken from above)
    TokenConstraint* constraint = nullptr;
    int32_t replies = 1;
    uint32_t flags = kDraftsAllowed;
    uint64_t cache_salt = 0;  ///< of Engine::cache_salt; 0 = shared
    int64_t deadline_us = 0;  ///< 0 = none; duration from submit
    bool keeps_reasoning = false;
    bool thinking = false;
    uint8_t reserved[6] = {};
    StrView label;                    ///< front end and route, for logs: "openai chat"
    Span<const RequestImage> images;  ///< ascending, disjoint, inside [0, n - 1)
};

enum class CancelReason : uint32_t { none, client_gone, slow_client, deadline, shutdown, memory };

enum class SinkEventKind : uint32_t {
    started,  ///< admitted to a slot
    reasoning,
    content,
    call,
    arguments,
    tokens,  ///< with kReturnIds or logprobs: ids (and logprobs), before the text that they
             ///< complete
    finish,  ///< terminal: text = finish reason
    error,   ///< terminal: code, id = kind ("timeout", "storage", …: engine.md 7), text = message
};

struct SinkLogprob {
    int32_t token = 0;
    float logprob = 0;
};

/// Figures of a finished request; all times µs.
struct ReplyTimings {
    int64_t queue = 0, prefill = 0, decode = 0, first_token = 0;
    int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
    int64_t rounds = 0, drafted = 0, accepted = 0;
    uint64_t seed = 0;
    uint8_t token_sha[32] = {};  ///< SHA-256 of the emitted ids, little-endian i32
};

struct SinkEvent {
    SinkEventKind kind = SinkEventKind::content;
    int32_t reply = 0;  ///< index, for n > 1
    int32_t index = 0;  ///< call index
    Code code = Code::ok;
    StrView text;  ///< see the kinds; views live until the sink's next call
    StrView id;    ///< call: its id
    Span<const int32_t> ids;
    Span<const SinkLogprob> logprobs;  ///< per id: 1 + top entries
    int32_t top = 0;
    int32_t reserved = 0;
    const ReplyTimings* timings = nullptr;  ///< terminal events
};

/// One request's bounded ring of events, drained by the front end that submitted it.
///
/// Exactly one terminal event per reply (finish or error) reaches it. A full ring pauses only this
/// request. Thread: one front-end thread; `cancel` from any.
class ReplySink : public Object {
  public:
    static constexpr const char* kFacet = "engine.reply/1";
    /// Waits at most `timeout_us` for an event. False: none came in time. Views of the event live
    /// until the next call of `next` on this sink.
    virtual bool next(int64_t timeout_us, SinkEvent* out) noexcept = 0;
    /// All replies have had their terminal event and it was taken.
    virtual bool finished() noexcept = 0;
    virtual void cancel(CancelReason reason) noexcept = 0;
    virtual uint64_t request_id() noexcept = 0;
    // release(): drops the front end's reference; a running request is cancelled (client_gone).
};

struct EngineInfo {
    uint32_t struct_size = sizeof(EngineInfo);
    int32_t slots = 0;
    int64_t context_tokens = 0;
    StrView served_name;
    Span<const StrView> aliases;
    StrView profile_name, profile_digest;
    StrView version;
    int64_t created_unix = 0;                     ///< seconds; of the model
    float temperature = 1, top_p = 1, min_p = 0;  ///< profile defaults for silent requests
    int32_t top_k = 0;
    int64_t max_tokens = 0;  ///< where a request names none
    int32_t vocab = 0, max_queued = 0;
};

enum class EngineState : uint32_t { loading, ready, draining, failed };

struct SlotStats {
    uint32_t slot = 0, state = 0;  ///< SlotView::state
    uint64_t request = 0;
    int32_t reply = 0;
    uint32_t priority = 0;  ///< Priority
    int64_t max_new = 0;
    int64_t length = 0, prompt = 0, cached = 0, emitted = 0;
    int64_t age_us = 0;      ///< since submit
    int64_t queue_us = 0;    ///< of it before the slot
    int64_t prefill_us = 0;  ///< from the slot to the first token, or to now
    int64_t decode_us = 0;   ///< from the first token to now
    int64_t rounds = 0, drafted = 0, accepted = 0;
};

/// A consistent copy of counters; never waits for the engine thread.
struct EngineStats {
    uint32_t struct_size = sizeof(EngineStats);
    EngineState state = EngineState::loading;
    int64_t last_step_age_us = 0;  ///< since the engine thread was last alive
    int64_t running = 0, waiting = 0, decoding = 0, prefilling = 0;
    int64_t requests_total = 0, prompt_tokens_total = 0, completion_tokens_total = 0;
    int64_t cached_tokens_total = 0, rounds_total = 0, drafted_total = 0, accepted_total = 0;
    int64_t prefill_us_total = 0, decode_us_total = 0;
    int64_t pages_total = 0, pages_free = 0;
    int64_t steps_total = 0;
    int32_t slot_count = 0, reserved = 0;
    SlotStats slots[48] = {};
};

/// The engine service ("engine.engine/1" through Host::service). Thread: any.
class Engine : public Object {
  public:
    static constexpr const char* kFacet = "engine.engine/1";
    virtual EngineInfo info() noexcept = 0;
    virtual TextCodec& text() noexcept = 0;
    /// Admission happens here, before any HTTP 200.
    /// errors  invalid_argument (names the field), does_not_fit (context), unavailable: queue full
    ///         (message starts with "queue full") or not ready
    virtual Status submit(const RequestDesc& request, ReplySink** out) noexcept = 0;
    virtual void stats(EngineStats* out) noexcept = 0;
    /// Root of the prefix tree that a caller may use (engine.md 4.1): a digest of the API key if
    /// the profile says `prefix.scope = "key"`, and of the request's own `cache_salt`. Equal after
    /// a restart; equal to another caller's by chance alone (64 bits).
    ///
    /// key   the key by which the caller was let in; "" = no key was asked for
    /// wish  the request's `cache_salt`; "" = none
    virtual uint64_t cache_salt(StrView key, StrView wish) noexcept = 0;
    /// A chat request's prompt for one caller: TextCodec::render with the replay memory of
    /// `cache_salt` (engine.md 4.4). Its errors are the codec's.
    virtual Status render(StrView request_json, uint64_t cache_salt, Prompt** out) noexcept = 0;
    /// Seconds a refused client should wait.
    virtual int32_t retry_after_s() noexcept = 0;
};

/// What a front-end plugin's `create` returns. Thread: main.
class Frontend : public Object {
  public:
    static constexpr const char* kFacet = "frontend.frontend/1";
    /// Binds and listens; before the engine is ready requests get 503. errors  invalid_argument:
    /// address in use
    virtual Status start() noexcept = 0;
    /// "http://127.0.0.1:8888", the bound port; "" if it mounts in another front end.
    virtual StrView url() noexcept = 0;
    /// Stops accepting, lets replies end until `deadline_us` (Host::now_us), then closes.
    virtual Status drain(int64_t deadline_us) noexcept = 0;
};

}  // namespace tenon
