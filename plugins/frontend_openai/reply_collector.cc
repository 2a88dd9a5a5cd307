// SPDX-License-Identifier: MIT
// The response of a request without "stream".
#include "reply_collector.h"

#include <ctime>

#include "exchange.h"
#include "json_text.h"

namespace tenon::http {

namespace {
constexpr size_t kMaxCalls = 4096;  // an index beyond is a fault of the parser, not a reply
}

ReplyCollector::ReplyCollector(const GenerateRequest& request, Engine& engine)
    : request_(request), engine_(engine) {
    const auto form = request.is_chat ? LogprobText::Form::chat : LogprobText::Form::text;
    for (int32_t i = 0; i < request.desc.replies; ++i) {
        replies_.emplace_back(engine.text(), form);
    }
}

void ReplyCollector::take(const SinkEvent& event) {
    if (event.reply < 0 || static_cast<size_t>(event.reply) >= replies_.size()) {
        return;
    }
    Reply& reply = replies_[static_cast<size_t>(event.reply)];
    const auto call_at = [&]() -> Call& {
        const size_t i = std::min(static_cast<size_t>(std::max(event.index, 0)), kMaxCalls);
        if (i >= reply.calls.size()) {
            reply.calls.resize(i + 1);
        }
        return reply.calls[i];
    };
    switch (event.kind) {
        case SinkEventKind::started:
        case SinkEventKind::error:
            break;
        case SinkEventKind::reasoning:
            reply.reasoning += event.text.view();
            break;
        case SinkEventKind::content:
            reply.content += event.text.view();
            break;
        case SinkEventKind::call:
            call_at().id = event.id.str();
            call_at().name = event.text.str();
            break;
        case SinkEventKind::arguments:
            call_at().arguments += event.text.view();
            break;
        case SinkEventKind::tokens:
            if (request_.returns_ids) {
                append_ids(reply.ids, event.ids);
            }
            reply.logprobs.add(event);
            break;
        case SinkEventKind::finish:
            reply.finish_reason = event.text.str();
            if (event.timings != nullptr) {
                usage_.add(*event.timings);
                reply.timings = timings_json(*event.timings);
            }
            break;
    }
}

void ReplyCollector::append_message(std::string& out, const Reply& reply) const {
    out += R"("message":{"role":"assistant","content":)";
    if (reply.content.empty() && !reply.calls.empty()) {
        out += "null";
    } else {
        append_json_string(out, reply.content);
    }
    out += R"(,"refusal":null)";
    if (!reply.reasoning.empty()) {
        out += R"(,"reasoning_content":)";
        append_json_string(out, reply.reasoning);
    }
    if (!reply.calls.empty()) {
        out += R"(,"tool_calls":[)";
        for (size_t i = 0; i < reply.calls.size(); ++i) {
            const Call& call = reply.calls[i];
            out += i == 0 ? R"({"id":)" : R"(,{"id":)";
            append_json_string(out, call.id);
            out += R"(,"type":"function","function":{"name":)";
            append_json_string(out, call.name);
            out += R"(,"arguments":)";
            append_json_string(out, call.arguments);
            out += "}}";
        }
        out += ']';
    }
    out += '}';
}

void ReplyCollector::append_choice(std::string& out, size_t index) {
    Reply& reply = replies_[index];
    out += index == 0 ? "{" : ",{";
    out += format(R"("index":{},)", index);
    if (request_.is_chat) {
        append_message(out, reply);
    } else {
        out += R"("text":)";
        append_json_string(out, reply.content);
    }
    out += R"(,"logprobs":)";
    out += reply.logprobs.take();
    out += R"(,"finish_reason":)";
    append_json_string(out, reply.finish_reason);
    if (request_.returns_ids) {
        out += format(R"(,"token_ids":[{}])", reply.ids);
        if (!request_.is_chat) {
            out += R"(,"prompt_token_ids":[)";
            std::string ids;
            append_ids(ids, request_.prompt_ids());
            out += ids + "]";
        }
    }
    if (replies_.size() > 1 && !reply.timings.empty()) {
        out += R"(,"timings":)" + reply.timings;
    }
    out += '}';
}

std::string ReplyCollector::json() {
    const EngineInfo info = engine_.info();
    std::string out = format(R"({"id":"{}","object":"{}","created":{},"model":)",
                             (request_.is_chat ? "chatcmpl-" : "cmpl-") + random_text(24),
                             request_.is_chat ? "chat.completion" : "text_completion",
                             static_cast<int64_t>(std::time(nullptr)));
    append_json_string(out, request_.model);
    out += R"(,"system_fingerprint":)";
    append_json_string(out, "tenon-" + info.profile_digest.str().substr(0, 12));
    out += R"(,"choices":[)";
    for (size_t i = 0; i < replies_.size(); ++i) {
        append_choice(out, i);
    }
    out += R"(],"usage":)";
    out += usage_.json();
    if (request_.returns_ids && request_.is_chat) {
        std::string ids;
        append_ids(ids, request_.prompt_ids());
        out += R"(,"prompt_token_ids":[)" + ids + "]";
    }
    if (replies_.size() == 1 && !replies_[0].timings.empty()) {
        out += R"(,"timings":)" + replies_[0].timings;
    }
    out += '}';
    return out;
}

}  // namespace tenon::http
