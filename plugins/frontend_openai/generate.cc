// SPDX-License-Identifier: MIT
// Submits a request and writes its events as OpenAI objects.
#include "generate.h"

#include <time.h>

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>

#include "generate_fields.h"

namespace tenon::http {
namespace {

std::string dump(const Json& j) {
    return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string hex(const uint8_t* bytes, size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) {
        constexpr char kDigits[] = "0123456789abcdef";
        out += kDigits[bytes[i] >> 4];
        out += kDigits[bytes[i] & 15];
    }
    return out;
}

/// One choice of a whole (not streamed) reply.
struct Choice {
    std::string reasoning, content, finish;
    Json calls = Json::array();
    Json ids = Json::array();
    Json logprobs = Json::array();
    ReplyTimings timings;
};

class Reply {
  public:
    Reply(Api api, Engine& engine, Host& host, const Settings& settings,
          const GenerateFields& fields, Answer& answer)
        : api_(api),
          engine_(engine),
          host_(host),
          settings_(settings),
          fields_(fields),
          answer_(answer) {
        model_ = engine.info().served_name.str();
        created_ = static_cast<int64_t>(::time(nullptr));
    }

    void run(ReplySink& sink) {
        id_ = format("{}-{}-{}", api_ == Api::chat ? "chatcmpl" : "cmpl", created_,
                     sink.request_id());
        choices_.resize(static_cast<size_t>(fields_.replies));
        fields_.stream ? stream(sink) : whole(sink);
    }

  private:
    // ---- shared ---------------------------------------------------------------------------------

    Json base(bool chunk) const {
        Json j = Json::object();
        j["id"] = id_;
        j["object"] = api_ == Api::completion ? "text_completion"
                      : chunk                 ? "chat.completion.chunk"
                                              : "chat.completion";
        j["created"] = created_;
        j["model"] = model_;
        return j;
    }

    Json usage() const {
        int64_t prompt = 0, completion = 0, cached = 0, reasoning = 0;
        for (const Choice& c : choices_) {
            prompt = std::max(prompt, c.timings.prompt_tokens);
            cached = std::max(cached, c.timings.cached_tokens);
            completion += c.timings.completion_tokens;
            reasoning += c.timings.reasoning_tokens;
        }
        Json u = Json::object();
        u["prompt_tokens"] = prompt;
        u["completion_tokens"] = completion;
        u["total_tokens"] = prompt + completion;
        u["prompt_tokens_details"] = {{"cached_tokens", cached}};
        u["completion_tokens_details"] = {{"reasoning_tokens", reasoning}};
        return u;
    }

    Json timings() const {
        const ReplyTimings& t = choices_[0].timings;
        const auto ms = [](int64_t us) { return static_cast<double>(us) / 1000.0; };
        const auto rate = [](int64_t tokens, int64_t us) {
            return us > 0 ? static_cast<double>(tokens) * 1e6 / static_cast<double>(us) : 0.0;
        };
        Json j = Json::object();
        j["queue_ms"] = ms(t.queue);
        j["prefill_ms"] = ms(t.prefill);
        j["decode_ms"] = ms(t.decode);
        j["first_token_ms"] = ms(t.first_token);
        j["prefill_tokens_per_s"] = rate(t.prompt_tokens - t.cached_tokens, t.prefill);
        j["decode_tokens_per_s"] = rate(t.completion_tokens - 1, t.decode);
        j["rounds"] = t.rounds;
        j["drafted"] = t.drafted;
        j["accepted"] = t.accepted;
        j["seed"] = t.seed;
        j["token_sha"] = hex(t.token_sha, sizeof t.token_sha);
        return j;
    }

    Json token_entry(int32_t id, float logprob) const {
        const std::string text = engine_.text().token_bytes(id).str();
        Json j = Json::object();
        j["token"] = text;
        j["logprob"] = logprob;
        j["bytes"] = std::vector<uint8_t>(text.begin(), text.end());
        return j;
    }

    Json logprob_entries(const SinkEvent& e) const {
        Json list = Json::array();
        const uint64_t stride = 1 + static_cast<uint64_t>(e.top);
        for (uint64_t i = 0; i < e.ids.size && (i + 1) * stride <= e.logprobs.size; ++i) {
            const Span<const SinkLogprob> row = e.logprobs.subspan(i * stride, stride);
            Json entry = token_entry(e.ids[i], row[0].logprob);
            Json top = Json::array();
            for (uint64_t k = 1; k < row.size; ++k) {
                if (row[k].token >= 0) {
                    top.push_back(token_entry(row[k].token, row[k].logprob));
                }
            }
            entry["top_logprobs"] = std::move(top);
            list.push_back(std::move(entry));
        }
        return list;
    }

    // Completions use the older shape of logprobs.
    Json logprobs_of(const Json& entries) const {
        if (api_ == Api::chat) {
            return {{"content", entries}};
        }
        Json j = {{"tokens", Json::array()},
                  {"token_logprobs", Json::array()},
                  {"top_logprobs", Json::array()}};
        for (const Json& e : entries) {
            j["tokens"].push_back(e["token"]);
            j["token_logprobs"].push_back(e["logprob"]);
            Json top = Json::object();
            for (const Json& t : e["top_logprobs"]) {
                top[t["token"].get<std::string>()] = t["logprob"];
            }
            j["top_logprobs"].push_back(std::move(top));
        }
        return j;
    }

    static ApiError stream_error(const SinkEvent& e) {
        ApiError error = from_status(Status(e.code, e.text.view()), 1);
        if (e.code == Code::cancelled) {
            error.status = 503;
            error.type = "server_error";
        }
        const std::string text = e.text.str();
        error.code = text.substr(0, text.find(':'));
        return error;
    }

    // ---- whole ----------------------------------------------------------------------------------

    void whole(ReplySink& sink) {
        SinkEvent e;
        ApiError failed;
        bool has_failed = false;
        while (!sink.finished()) {
            if (!sink.next(settings_.timing.poll_us, &e)) {
                if (answer_.wire().gone()) {
                    sink.cancel(CancelReason::client_gone);
                    answer_.close_after();
                    return;
                }
                continue;
            }
            Choice& c = choices_[static_cast<size_t>(e.reply)];
            switch (e.kind) {
                case SinkEventKind::started:
                    break;
                case SinkEventKind::reasoning:
                    c.reasoning += e.text.view();
                    break;
                case SinkEventKind::content:
                    c.content += e.text.view();
                    break;
                case SinkEventKind::call:
                    c.calls.push_back({{"id", e.id.str()},
                                       {"type", "function"},
                                       {"function", {{"name", e.text.str()}, {"arguments", ""}}}});
                    break;
                case SinkEventKind::arguments:
                    if (static_cast<size_t>(e.index) < c.calls.size()) {
                        c.calls[static_cast<size_t>(e.index)]["function"]["arguments"]
                            .get_ref<std::string&>() += e.text.view();
                    }
                    break;
                case SinkEventKind::tokens:
                    for (const int32_t id : e.ids) {
                        c.ids.push_back(id);
                    }
                    for (Json& entry : logprob_entries(e)) {
                        c.logprobs.push_back(std::move(entry));
                    }
                    break;
                case SinkEventKind::finish:
                    c.finish = e.text.str();
                    c.timings = *e.timings;
                    break;
                case SinkEventKind::error:
                    failed = stream_error(e);
                    has_failed = true;
                    break;
            }
        }
        if (has_failed) {
            answer_.error(failed);
            return;
        }
        Json j = base(false);
        j["choices"] = Json::array();
        for (size_t i = 0; i < choices_.size(); ++i) {
            const Choice& c = choices_[i];
            Json choice = Json::object();
            choice["index"] = i;
            if (api_ == Api::chat) {
                Json message = {{"role", "assistant"}, {"content", nullptr}};
                if (!c.content.empty() || c.calls.empty()) {
                    message["content"] = c.content;
                }
                if (!c.reasoning.empty()) {
                    message["reasoning_content"] = c.reasoning;
                }
                if (!c.calls.empty()) {
                    message["tool_calls"] = c.calls;
                }
                choice["message"] = std::move(message);
            } else {
                choice["text"] = c.content;
            }
            choice["logprobs"] = fields_.wants_logprobs ? logprobs_of(c.logprobs) : Json(nullptr);
            choice["finish_reason"] = c.finish;
            if (fields_.return_ids) {
                choice["token_ids"] = c.ids;
            }
            j["choices"].push_back(std::move(choice));
        }
        j["usage"] = usage();
        j["timings"] = timings();
        answer_.json(200, dump(j));
    }

    // ---- streamed -------------------------------------------------------------------------------

    bool event(const Json& j) { return answer_.piece("data: " + dump(j) + "\n\n"); }

    bool delta(int32_t reply, Json delta, const Json& finish = nullptr,
               const Json* logprobs = nullptr, const Json* ids = nullptr) {
        Json j = base(true);
        Json choice = {{"index", reply}};
        if (api_ == Api::chat) {
            choice["delta"] = std::move(delta);
        } else {
            choice["text"] = delta.value("content", "");
        }
        choice["logprobs"] = logprobs != nullptr ? logprobs_of(*logprobs) : Json(nullptr);
        choice["finish_reason"] = finish;
        if (ids != nullptr) {
            choice["token_ids"] = *ids;
        }
        j["choices"] = Json::array({std::move(choice)});
        return event(j);
    }

    bool first(int32_t reply) {
        bool& sent = role_sent_[static_cast<size_t>(reply)];
        if (sent || api_ != Api::chat) {
            return true;
        }
        sent = true;
        return delta(reply, {{"role", "assistant"}, {"content", ""}});
    }

    bool one(const SinkEvent& e) {
        Choice& c = choices_[static_cast<size_t>(e.reply)];
        switch (e.kind) {
            case SinkEventKind::started:
                return true;
            case SinkEventKind::reasoning:
                return first(e.reply) && delta(e.reply, {{"reasoning_content", e.text.str()}});
            case SinkEventKind::content:
                return first(e.reply) && delta(e.reply, {{"content", e.text.str()}});
            case SinkEventKind::call:
                return first(e.reply) &&
                       delta(e.reply,
                             {{"tool_calls",
                               Json::array({{{"index", e.index},
                                             {"id", e.id.str()},
                                             {"type", "function"},
                                             {"function",
                                              {{"name", e.text.str()}, {"arguments", ""}}}}})}});
            case SinkEventKind::arguments:
                return delta(
                    e.reply,
                    {{"tool_calls", Json::array({{{"index", e.index},
                                                  {"function", {{"arguments", e.text.str()}}}}})}});
            case SinkEventKind::tokens: {
                const Json entries = logprob_entries(e);
                const Json ids = std::vector<int32_t>(e.ids.begin(), e.ids.end());
                return first(e.reply) && delta(e.reply, Json::object(), nullptr,
                                               fields_.wants_logprobs ? &entries : nullptr,
                                               fields_.return_ids ? &ids : nullptr);
            }
            case SinkEventKind::finish:
                c.timings = *e.timings;
                return first(e.reply) && delta(e.reply, Json::object(), e.text.str());
            case SinkEventKind::error: {
                const ApiError error = stream_error(e);
                return answer_.piece("data: " + error_body(error) + "\n\n");
            }
        }
        return true;
    }

    void stream(ReplySink& sink) {
        role_sent_.assign(static_cast<size_t>(fields_.replies), false);
        if (!answer_.begin_events()) {
            sink.cancel(CancelReason::client_gone);
            return;
        }
        SinkEvent e;
        int64_t quiet_since = host_.now_us();
        int64_t looked = quiet_since;
        bool alive = true;
        while (alive && !sink.finished()) {
            const int64_t now = host_.now_us();
            if (sink.next(settings_.timing.poll_us, &e)) {
                alive = one(e);
                quiet_since = now;
            } else if (now - quiet_since > settings_.keepalive_us) {
                alive = answer_.piece(": keepalive\n\n");
                quiet_since = now;
            }
            if (now - looked > settings_.timing.poll_us) {
                looked = now;
                alive = alive && !answer_.wire().gone();
            }
        }
        if (!alive) {
            sink.cancel(CancelReason::client_gone);
            answer_.close_after();
            return;
        }
        Json last = base(true);
        last["choices"] = Json::array();
        if (fields_.include_usage) {
            last["usage"] = usage();
        }
        last["timings"] = timings();
        if (fields_.include_usage) {
            event(last);
        }
        answer_.piece("data: [DONE]\n\n");
        answer_.end_events();
    }

    const Api api_;
    Engine& engine_;
    Host& host_;
    const Settings& settings_;
    const GenerateFields& fields_;
    Answer& answer_;
    std::string model_, id_;
    int64_t created_ = 0;
    std::vector<Choice> choices_;
    std::deque<bool> role_sent_;
};

}  // namespace

void generate(Api api, Engine& engine, Host& host, const Settings& settings, const Request& request,
              Answer& answer) {
    EngineStats stats;
    engine.stats(&stats);
    if (stats.state != EngineState::ready) {
        const char* code = stats.state == EngineState::loading    ? "loading"
                           : stats.state == EngineState::draining ? "draining"
                                                                  : "failed";
        return answer.error(
            unavailable(code, format("the engine is {}", code), engine.retry_after_s()));
    }
    Json body;
    if (Refusal r = parse_json(request.body, &body)) {
        return answer.error(*r);
    }
    if (!body.is_object()) {
        return answer.error(bad_message("the body must be a JSON object"));
    }
    GenerateFields fields;
    const EngineInfo info = engine.info();
    if (Refusal r =
            read_generate_fields(api, body, info, settings, engine.text().info().vocab, &fields)) {
        return answer.error(*r);
    }
    Ref<Prompt> prompt;
    Ref<TokenList> list;
    RequestDesc desc;
    if (api == Api::chat) {
        const Status status = engine.text().render(request.body, prompt.out());
        if (!status.ok()) {
            return answer.error(from_status(status, 1));
        }
        if (!prompt->images().empty()) {
            return answer.error(
                unsupported_field("messages", "image input is not supported by this version"));
        }
        desc.tokens = prompt->ids();
        desc.borders = prompt->borders();
        desc.parser.start = prompt->start();
        desc.parser.tools_json = prompt->tools_json();
        desc.parser.parallel_tool_calls = prompt->parallel_tool_calls();
        desc.keeps_reasoning = prompt->keeps_reasoning();
        desc.thinking = prompt->thinking();
        desc.label = "openai chat";
    } else {
        if (fields.has_ids) {
            desc.tokens = fields.prompt_ids;
        } else {
            const Status status = engine.text().encode(fields.prompt_text, 0, list.out());
            if (!status.ok()) {
                return answer.error(from_status(status, 1));
            }
            desc.tokens = list->ids();
        }
        desc.flags |= kRawText;
        desc.label = "openai completion";
    }
    desc.sampling = fields.sampling;
    desc.sampling.bias = fields.bias;
    desc.sampling.stop_ids = fields.stop_ids;
    const std::vector<StrView> stops(fields.stops.begin(), fields.stops.end());
    desc.stops = stops;
    desc.max_new_tokens = fields.max_tokens;
    desc.replies = static_cast<int32_t>(fields.replies);
    desc.priority = fields.background ? Priority::background : Priority::foreground;
    desc.flags |= (fields.ignore_eos ? kIgnoreEos : 0u) | (fields.return_ids ? kReturnIds : 0u);
    desc.flags = fields.drafts ? desc.flags : desc.flags & ~uint32_t{kDraftsAllowed};
    Ref<ReplySink> sink;
    const Status status = engine.submit(desc, sink.out());
    if (!status.ok()) {
        return answer.error(from_status(status, engine.retry_after_s()));
    }
    Reply(api, engine, host, settings, fields, answer).run(*sink);
}

}  // namespace tenon::http
