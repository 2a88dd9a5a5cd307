// SPDX-License-Identifier: MIT
// An engine without a model: replies are scripts, tokens are bytes. For front ends and their tests.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tenon/engine.h"

namespace tenon::testing {

/// What one request looked like, copied out of its RequestDesc.
struct SubmittedRequest {
    std::vector<int32_t> tokens;
    SamplingParams sampling;  ///< its spans are not valid; see below
    std::vector<std::string> stops;
    std::vector<int32_t> stop_ids;
    std::vector<LogitBias> bias;
    std::string tools_json, label;
    ReplyStart start = ReplyStart::content;
    Priority priority = Priority::foreground;
    int64_t max_new_tokens = 0;
    int32_t replies = 1;
    uint32_t flags = 0;
    uint64_t cache_salt = 0;
    bool thinking = false;
};

/// One event of a script, and how long the engine works before it.
struct ScriptStep {
    int64_t delay_us = 0;
    SinkEventKind kind = SinkEventKind::content;
    std::string text, id;
    int32_t reply = 0, index = 0;
    Code code = Code::ok;
    std::vector<int32_t> ids;
    std::vector<SinkLogprob> logprobs;
    int32_t top = 0;
};

/// A reply as a list of events. Terminal events get timings from what came before.
class Script {
  public:
    Script& wait(int64_t us);  ///< before the next event
    Script& reasoning(std::string text, int32_t reply = 0);
    Script& content(std::string text, int32_t reply = 0);
    Script& call(int32_t index, std::string id, std::string name, int32_t reply = 0);
    Script& arguments(int32_t index, std::string text, int32_t reply = 0);
    Script& tokens(std::vector<int32_t> ids, std::vector<SinkLogprob> logprobs = {},
                   int32_t top = 0, int32_t reply = 0);
    Script& finish(std::string reason = "stop", int32_t reply = 0);
    Script& fail(Code code, std::string kind, std::string message, int32_t reply = 0);
    /// `count` pieces of content, `every_us` apart.
    Script& pieces(int count, int64_t every_us, const std::string& text = "word ");

    const std::vector<ScriptStep>& steps() const { return steps_; }

  private:
    ScriptStep& add(SinkEventKind kind, int32_t reply);
    std::vector<ScriptStep> steps_;
    int64_t wait_us_ = 0;
};

/// Thread: any, as Engine asks.
///
/// Text: one token a byte (id = byte), ids 256 "<bos>", 257 "<eos>", 258
/// "<think>" as specials; 300 ids in all. `render` wants a list `messages` with string `role`s and
/// concatenates their text; an image_url part becomes a PromptImage.
class FakeEngine final : public Implements<FakeEngine, Engine> {
  public:
    FakeEngine();
    ~FakeEngine();

    /// How the next requests are answered; the default repeats the prompt's text once.
    void answer_with(std::function<Script(const SubmittedRequest&)> make);
    void answer_with(Script script);
    /// What the next submits are refused with; nullptr: none.
    void refuse_with(Code code, std::string message);
    void accept_again();
    void set_state(EngineState state) { state_.store(state); }
    void set_running(int64_t running, int64_t last_step_age_us);

    std::vector<SubmittedRequest> requests() const;
    SubmittedRequest last_request() const;
    /// Sinks that were released before all terminal events were taken, and with which reasons.
    int64_t cancelled() const { return cancelled_.load(); }
    CancelReason last_cancel() const { return last_cancel_.load(); }
    int64_t open_sinks() const { return open_sinks_.load(); }
    int64_t events_taken() const { return events_taken_.load(); }

    EngineInfo info() noexcept override;
    TextCodec& text() noexcept override;
    Status submit(const RequestDesc& request, ReplySink** out) noexcept override;
    void stats(EngineStats* out) noexcept override;
    /// 0 without key and wish, else a number for each pair of them.
    uint64_t cache_salt(StrView key, StrView wish) noexcept override;
    Status render(StrView request_json, uint64_t cache_salt, Prompt** out) noexcept override;
    int32_t retry_after_s() noexcept override { return 7; }

  private:
    friend class FakeSink;
    class Codec;

    std::unique_ptr<Codec> codec_;
    mutable std::mutex mutex_;  // guards everything up to the atomics
    std::function<Script(const SubmittedRequest&)> make_;
    std::vector<SubmittedRequest> requests_;
    std::vector<std::string> callers_;
    Code refusal_ = Code::ok;
    std::string refusal_text_;
    int64_t running_ = 0, last_step_age_us_ = 0;
    uint64_t next_id_ = 1;
    std::atomic<EngineState> state_{EngineState::ready};
    std::atomic<int64_t> cancelled_{0}, open_sinks_{0}, events_taken_{0};
    std::atomic<CancelReason> last_cancel_{CancelReason::none};
};

}  // namespace tenon::testing
