// SPDX-License-Identifier: MIT
// Scripted replies: a sink gives out its script's events when their time has come.
#include "fakes/fake_engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <nlohmann/json.hpp>

namespace tenon::testing {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kBos = 256, kEos = 257, kThink = 258, kVocab = 300;
constexpr const char* kSpecials[] = {"<bos>", "<eos>", "<think>"};
constexpr int64_t kContext = 4096;
const StrView kAliases[] = {"fake-alias"};

}  // namespace

ScriptStep& Script::add(SinkEventKind kind, int32_t reply) {
    ScriptStep& step = steps_.emplace_back();
    step.kind = kind;
    step.reply = reply;
    step.delay_us = wait_us_;
    wait_us_ = 0;
    return step;
}

Script& Script::wait(int64_t us) {
    wait_us_ += us;
    return *this;
}

Script& Script::reasoning(std::string text, int32_t reply) {
    add(SinkEventKind::reasoning, reply).text = std::move(text);
    return *this;
}

Script& Script::content(std::string text, int32_t reply) {
    add(SinkEventKind::content, reply).text = std::move(text);
    return *this;
}

Script& Script::call(int32_t index, std::string id, std::string name, int32_t reply) {
    ScriptStep& step = add(SinkEventKind::call, reply);
    step.index = index;
    step.id = std::move(id);
    step.text = std::move(name);
    return *this;
}

Script& Script::arguments(int32_t index, std::string text, int32_t reply) {
    ScriptStep& step = add(SinkEventKind::arguments, reply);
    step.index = index;
    step.text = std::move(text);
    return *this;
}

Script& Script::tokens(std::vector<int32_t> ids, std::vector<SinkLogprob> logprobs, int32_t top,
                       int32_t reply) {
    ScriptStep& step = add(SinkEventKind::tokens, reply);
    step.ids = std::move(ids);
    step.logprobs = std::move(logprobs);
    step.top = top;
    return *this;
}

Script& Script::finish(std::string reason, int32_t reply) {
    add(SinkEventKind::finish, reply).text = std::move(reason);
    return *this;
}

Script& Script::fail(Code code, std::string kind, std::string message, int32_t reply) {
    ScriptStep& step = add(SinkEventKind::error, reply);
    step.code = code;
    step.id = std::move(kind);
    step.text = std::move(message);
    return *this;
}

Script& Script::pieces(int count, int64_t every_us, const std::string& text) {
    for (int i = 0; i < count; ++i) {
        wait(every_us).content(text);
    }
    return *this;
}

class FakeSink final : public Implements<FakeSink, ReplySink> {
  public:
    FakeSink(FakeEngine& engine, uint64_t id, const SubmittedRequest& request, Script script)
        : engine_(engine), id_(id), script_(std::move(script)), left_(request.replies) {
        timings_.prompt_tokens = static_cast<int64_t>(request.tokens.size());
        timings_.cached_tokens = timings_.prompt_tokens / 2;
        timings_.prefill = 1000;
        timings_.decode = 2000;
        timings_.seed = request.sampling.seed;
        timings_.token_sha[0] = 0xAB;
        due_ = Clock::now();
        schedule();
        engine_.open_sinks_.fetch_add(1);
    }
    ~FakeSink() { engine_.open_sinks_.fetch_sub(1); }

    bool next(int64_t timeout_us, SinkEvent* out) noexcept override {
        std::unique_lock lock(mutex_);
        const auto until = Clock::now() + std::chrono::microseconds(timeout_us);
        const auto wake = std::min(until, due_);
        if (reason_ == CancelReason::none && wake > Clock::now()) {
            changed_.wait_until(lock, wake, [this] { return reason_ != CancelReason::none; });
        }
        if (left_ <= 0) {
            return false;
        }
        *out = SinkEvent();
        if (reason_ != CancelReason::none) {
            end_cancelled(out);
            return true;
        }
        if (at_ >= script_.steps().size() || due_ > Clock::now()) {
            return false;
        }
        give(script_.steps()[at_++], out);
        schedule();
        return true;
    }

    bool finished() noexcept override {
        const std::lock_guard lock(mutex_);
        return left_ <= 0;
    }

    void cancel(CancelReason reason) noexcept override {
        {
            const std::lock_guard lock(mutex_);
            if (reason_ != CancelReason::none) {
                return;
            }
            reason_ = reason;
        }
        engine_.last_cancel_.store(reason);
        changed_.notify_all();
    }

    uint64_t request_id() noexcept override { return id_; }

    void release() noexcept override {
        if (!finished()) {
            engine_.cancelled_.fetch_add(1);
        }
        delete this;
    }

  private:
    void schedule() {
        if (at_ < script_.steps().size()) {
            due_ += std::chrono::microseconds(script_.steps()[at_].delay_us);
        } else {
            due_ = Clock::time_point::max();
        }
    }

    void give(const ScriptStep& step, SinkEvent* out) {
        out->kind = step.kind;
        out->reply = step.reply;
        out->index = step.index;
        out->code = step.code;
        out->text = step.text;
        out->id = step.id;
        out->ids = step.ids;
        out->logprobs = step.logprobs;
        out->top = step.top;
        timings_.completion_tokens +=
            step.kind == SinkEventKind::content || step.kind == SinkEventKind::reasoning;
        timings_.reasoning_tokens += step.kind == SinkEventKind::reasoning;
        if (step.kind == SinkEventKind::finish || step.kind == SinkEventKind::error) {
            out->timings = &timings_;
            --left_;
        }
        engine_.events_taken_.fetch_add(1);
    }

    void end_cancelled(SinkEvent* out) {
        out->kind = SinkEventKind::error;
        out->code = Code::unavailable;
        out->id = reason_ == CancelReason::shutdown ? "shutdown" : "cancelled";
        out->text = "the server is shutting down";
        out->timings = &timings_;
        left_ = 0;
    }

    FakeEngine& engine_;
    const uint64_t id_;
    const Script script_;
    std::mutex mutex_;  // guards everything below
    std::condition_variable changed_;
    size_t at_ = 0;
    Clock::time_point due_;
    int64_t left_;  ///< replies without their terminal event
    CancelReason reason_ = CancelReason::none;
    ReplyTimings timings_;
};

class FakePrompt final : public Implements<FakePrompt, Prompt> {
  public:
    std::vector<int32_t> ids_;
    std::vector<PromptImage> images_;
    std::vector<std::string> parts_;
    std::string text_, tools_;
    bool thinking_ = false, parallel_ = true;

    ~FakePrompt() = default;
    Span<const int32_t> ids() noexcept override { return ids_; }
    StrView text() noexcept override { return text_; }
    Span<const Border> borders() noexcept override { return {}; }
    Span<const PromptImage> images() noexcept override { return images_; }
    ReplyStart start() noexcept override {
        return thinking_ ? ReplyStart::reasoning : ReplyStart::content;
    }
    bool thinking() noexcept override { return thinking_; }
    bool keeps_reasoning() noexcept override { return false; }
    StrView tools_json() noexcept override { return tools_; }
    bool parallel_tool_calls() noexcept override { return parallel_; }
    bool json_reply() noexcept override { return false; }
};

class FakeTokens final : public Implements<FakeTokens, TokenList> {
  public:
    std::vector<int32_t> ids_;
    ~FakeTokens() = default;
    Span<const int32_t> ids() noexcept override { return ids_; }
};

class FakeBlob final : public Implements<FakeBlob, Blob> {
  public:
    std::string text_;
    ~FakeBlob() = default;
    StrView view() noexcept override { return text_; }
};

class FakeEngine::Codec final : public Implements<Codec, TextCodec> {
  public:
    Codec() {
        for (int i = 0; i < 256; ++i) {
            bytes_[i] = static_cast<char>(i);
        }
    }
    ~Codec() = default;

    TextInfo info() noexcept override {
        TextInfo info;
        info.vocab = kVocab;
        info.bos = kBos;
        info.eos = kEos;
        info.think_open = kThink;
        return info;
    }

    Status render(StrView request_json, Prompt** out) noexcept override {
        return guard([&] { return render_checked(request_json, out); });
    }

    Status encode(StrView text, uint32_t flags, TokenList** out) noexcept override {
        return guard([&] {
            auto list = std::make_unique<FakeTokens>();
            append(text, flags, &list->ids_);
            *out = list.release();
        });
    }

    Status decode(Span<const int32_t> ids, uint32_t flags, Blob** out) noexcept override {
        return guard([&]() -> Status {
            auto blob = std::make_unique<FakeBlob>();
            for (uint64_t i = 0; i < ids.size; ++i) {
                if (ids[i] < 0 || ids[i] > kThink) {
                    return error(Code::invalid_argument, "tokens[{}]: {} is not a token", i,
                                 ids[i]);
                }
                if (ids[i] < kBos) {
                    blob->text_ += static_cast<char>(ids[i]);
                } else if ((flags & kSkipSpecials) == 0) {
                    blob->text_ += kSpecials[ids[i] - kBos];
                }
            }
            *out = blob.release();
            return {};
        });
    }

    Status make_parser(const ReplyParserConfig&, ReplyParser**) noexcept override {
        return error(Code::unsupported, "the fake codec parses nothing");
    }
    Status make_stop(const ReplyParserConfig&, StopMatcher**) noexcept override {
        return error(Code::unsupported, "the fake codec matches nothing");
    }
    Status make_decoder(uint32_t, StreamDecoder**) noexcept override {
        return error(Code::unsupported, "the fake codec streams nothing");
    }
    StrView token_bytes(int32_t id) noexcept override {
        if (id >= 0 && id < 256) {
            return {&bytes_[id], 1};
        }
        return id >= kBos && id <= kThink ? StrView(kSpecials[id - kBos]) : StrView();
    }

  private:
    static void append(std::string_view text, uint32_t flags, std::vector<int32_t>* out) {
        while (!text.empty()) {
            bool is_special = false;
            for (int i = 0; i < 3 && (flags & kParseSpecials) != 0; ++i) {
                const std::string_view special = kSpecials[i];
                if (text.substr(0, special.size()) == special) {
                    out->push_back(kBos + i);
                    text.remove_prefix(special.size());
                    is_special = true;
                    break;
                }
            }
            if (!is_special) {
                out->push_back(static_cast<uint8_t>(text.front()));
                text.remove_prefix(1);
            }
        }
    }

    static Status render_content(const nlohmann::ordered_json& content, const std::string& path,
                                 FakePrompt* prompt) {
        if (content.is_string()) {
            prompt->text_ += content.get<std::string>();
            return {};
        }
        if (!content.is_array()) {
            return error(Code::invalid_argument, "{}: content should be a string or a list", path);
        }
        for (size_t i = 0; i < content.size(); ++i) {
            const std::string type = content[i].value("type", "");
            if (type == "text") {
                prompt->text_ += content[i].value("text", "");
            } else if (type == "image_url") {
                prompt->parts_.push_back(format("{}[{}]", path, i));
                prompt->images_.push_back({0, "data:", {}});
            } else {
                return error(Code::invalid_argument, "{}[{}].type: '{}' is not known", path, i,
                             type);
            }
        }
        return {};
    }

    static Status render_checked(StrView text, Prompt** out) {
        const auto request = nlohmann::ordered_json::parse(text.view());
        const auto messages = request.find("messages");
        if (messages == request.end() || !messages->is_array() || messages->empty()) {
            return error(Code::invalid_argument, "messages: a non-empty list is needed");
        }
        auto prompt = std::make_unique<FakePrompt>();
        for (size_t i = 0; i < messages->size(); ++i) {
            const auto& message = (*messages)[i];
            if (!message.is_object() || !message.contains("role")) {
                return error(Code::invalid_argument, "messages[{}].role: is missing", i);
            }
            if (message.contains("content") && !message["content"].is_null()) {
                TENON_TRY(render_content(message["content"], format("messages[{}].content", i),
                                         prompt.get()));
            }
        }
        for (size_t i = 0; i < prompt->parts_.size(); ++i) {
            prompt->images_[i].part = prompt->parts_[i];
        }
        if (request.contains("tools")) {
            prompt->tools_ = request["tools"].dump();
        }
        prompt->thinking_ = request.value("reasoning_effort", "none") != "none";
        prompt->ids_.push_back(kBos);
        append(prompt->text_, 0, &prompt->ids_);
        *out = prompt.release();
        return {};
    }

    char bytes_[256];
};

FakeEngine::FakeEngine() : codec_(std::make_unique<Codec>()) {
    make_ = [](const SubmittedRequest& request) {
        std::string text;
        for (const int32_t id : request.tokens) {
            if (id < 256) {
                text += static_cast<char>(id);
            }
        }
        Script script;
        for (int32_t i = 0; i < request.replies; ++i) {
            script.content(text, i).finish("stop", i);
        }
        return script;
    };
}

FakeEngine::~FakeEngine() = default;

void FakeEngine::answer_with(std::function<Script(const SubmittedRequest&)> make) {
    const std::lock_guard lock(mutex_);
    make_ = std::move(make);
}

void FakeEngine::answer_with(Script script) {
    answer_with([script = std::move(script)](const SubmittedRequest&) { return script; });
}

void FakeEngine::refuse_with(Code code, std::string message) {
    const std::lock_guard lock(mutex_);
    refusal_ = code;
    refusal_text_ = std::move(message);
}

void FakeEngine::accept_again() {
    const std::lock_guard lock(mutex_);
    refusal_ = Code::ok;
}

void FakeEngine::set_running(int64_t running, int64_t last_step_age_us) {
    const std::lock_guard lock(mutex_);
    running_ = running;
    last_step_age_us_ = last_step_age_us;
}

std::vector<SubmittedRequest> FakeEngine::requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
}

SubmittedRequest FakeEngine::last_request() const {
    const std::lock_guard lock(mutex_);
    return requests_.empty() ? SubmittedRequest() : requests_.back();
}

EngineInfo FakeEngine::info() noexcept {
    EngineInfo info;
    info.slots = 4;
    info.context_tokens = kContext;
    info.served_name = "fake";
    info.aliases = kAliases;
    info.profile_name = "fake";
    info.profile_digest = "0123456789abcdef";
    info.version = "0.0.1";
    info.created_unix = 1700000000;
    info.temperature = 0.5F;
    info.top_p = 0.9F;
    info.top_k = 20;
    info.max_tokens = 64;
    info.vocab = kVocab;
    info.max_queued = 8;
    return info;
}

TextCodec& FakeEngine::text() noexcept {
    return *codec_;
}

Status FakeEngine::submit(const RequestDesc& request, ReplySink** out) noexcept {
    return guard([&]() -> Status {
        SubmittedRequest copy;
        copy.tokens.assign(request.tokens.begin(), request.tokens.end());
        copy.sampling = request.sampling;
        for (const StrView stop : request.stops) {
            copy.stops.push_back(stop.str());
        }
        copy.stop_ids.assign(request.sampling.stop_ids.begin(), request.sampling.stop_ids.end());
        copy.bias.assign(request.sampling.bias.begin(), request.sampling.bias.end());
        copy.tools_json = request.parser.tools_json.str();
        copy.label = request.label.str();
        copy.start = request.parser.start;
        copy.priority = request.priority;
        copy.max_new_tokens = request.max_new_tokens;
        copy.replies = request.replies;
        copy.flags = request.flags;
        copy.thinking = request.thinking;
        copy.cache_salt = request.cache_salt;
        const std::lock_guard lock(mutex_);
        if (refusal_ != Code::ok) {
            return Status(refusal_, refusal_text_);
        }
        if (static_cast<int64_t>(copy.tokens.size()) + 1 > kContext) {
            return error(Code::does_not_fit, "prompt of {} tokens does not fit the context of {}",
                         copy.tokens.size(), kContext);
        }
        requests_.push_back(copy);
        *out = new FakeSink(*this, next_id_++, copy, make_(copy));
        return {};
    });
}

uint64_t FakeEngine::cache_salt(StrView key, StrView wish) noexcept {
    if (key.empty() && wish.empty()) {
        return 0;
    }
    const std::lock_guard lock(mutex_);
    const std::string caller = key.str() + '\n' + wish.str();
    const auto found = std::find(callers_.begin(), callers_.end(), caller);
    if (found == callers_.end()) {
        callers_.push_back(caller);
        return callers_.size();
    }
    return static_cast<uint64_t>(found - callers_.begin()) + 1;
}

Status FakeEngine::render(StrView request_json, uint64_t, Prompt** out) noexcept {
    return codec_->render(request_json, out);
}

void FakeEngine::stats(EngineStats* out) noexcept {
    const std::lock_guard lock(mutex_);
    *out = EngineStats();
    out->state = state_.load();
    out->running = running_;
    out->last_step_age_us = last_step_age_us_;
    out->requests_total = static_cast<int64_t>(requests_.size());
    out->slot_count = 2;
    out->slots[0].state = 2;
    out->slots[0].request = 11;
    out->slots[0].length = 100;
    out->slots[0].reply = 1;
    out->slots[0].priority = 1;
    out->slots[0].max_new = 64;
    out->slots[0].cached = 80;
    out->slots[0].queue_us = 250'000;
    out->slots[0].prefill_us = 500'000;
    out->slots[0].decode_us = 2'000'000;
    out->slots[0].rounds = 5;
    out->slots[0].drafted = 9;
    out->slots[0].accepted = 7;
    out->slots[1].slot = 1;
}

}  // namespace tenon::testing
