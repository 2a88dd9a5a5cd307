// SPDX-License-Identifier: MIT
// Chunk by chunk, written as text: the fixed parts of a chunk are most of it.
#include "stream_writer.h"

#include <ctime>

#include "exchange.h"
#include "json_text.h"

namespace tenon::http {

StreamWriter::StreamWriter(const GenerateRequest& request, TextCodec& codec)
    : is_chat_(request.is_chat),
      returns_ids_(request.returns_ids),
      includes_usage_(request.includes_usage) {
    if (returns_ids_) {
        append_ids(prompt_ids_, request.prompt_ids());
    }
    head_ = format(R"(data: {"id":"{}","object":"{}","created":{},"model":)",
                   (is_chat_ ? "chatcmpl-" : "cmpl-") + random_text(24),
                   is_chat_ ? "chat.completion.chunk" : "text_completion",
                   static_cast<int64_t>(std::time(nullptr)));
    append_json_string(head_, request.model);
    head_ += R"(,"choices":[)";
    const auto form = is_chat_ ? LogprobText::Form::chat : LogprobText::Form::text;
    for (int32_t i = 0; i < request.desc.replies; ++i) {
        replies_.emplace_back(codec, form);
    }
}

StreamWriter::Reply& StreamWriter::reply_of(int32_t index) {
    const auto i = static_cast<size_t>(index < 0 ? 0 : index);
    return replies_[i < replies_.size() ? i : replies_.size() - 1];
}

void StreamWriter::begin_chunk(int32_t reply) {
    out_ += head_;
    out_ += R"({"index":)";
    out_ += std::to_string(reply);
    out_ += is_chat_ ? R"(,"delta":{)" : R"(,"text":)";
}

void StreamWriter::end_chunk(int32_t reply, Carries carries, const char* finish_reason,
                             std::string_view timings) {
    Reply& r = reply_of(reply);
    out_ += is_chat_ ? "}" : "";
    out_ += R"(,"logprobs":)";
    // Ids and logprobs go out with the chunk whose text they are.
    const bool has_tokens = carries == Carries::tokens;
    out_ += has_tokens ? r.logprobs.take() : "null";
    out_ += R"(,"finish_reason":)";
    if (finish_reason == nullptr) {
        out_ += "null";
    } else {
        append_json_string(out_, finish_reason);
    }
    if (returns_ids_ && has_tokens) {
        out_ += R"(,"token_ids":[)";
        out_ += r.ids;
        out_ += ']';
        r.ids.clear();
    }
    if (!prompt_ids_.empty() && !is_chat_) {
        out_ += format(R"(,"prompt_token_ids":[{}])", prompt_ids_);
    }
    out_ += "}]";
    if (!prompt_ids_.empty() && is_chat_) {
        out_ += format(R"(,"prompt_token_ids":[{}])", prompt_ids_);
    }
    prompt_ids_.clear();
    if (!timings.empty()) {
        out_ += R"(,"timings":)";
        out_ += timings;
    }
    out_ += includes_usage_ ? ",\"usage\":null}\n\n" : "}\n\n";
}

void StreamWriter::add_role(int32_t reply) {
    Reply& r = reply_of(reply);
    if (!is_chat_ || r.has_role) {
        return;
    }
    r.has_role = true;
    begin_chunk(reply);
    out_ += R"("role":"assistant","content":"")";
    end_chunk(reply, Carries::text_only, nullptr, {});
}

void StreamWriter::flush() {
    if (!pending_.is_set) {
        return;
    }
    pending_.is_set = false;
    const int32_t reply = pending_.reply;
    add_role(reply);
    begin_chunk(reply);
    if (!is_chat_) {
        append_json_string(out_, pending_.text);
    } else if (pending_.kind == SinkEventKind::arguments) {
        out_ += format(R"("tool_calls":[{"index":{},"function":{"arguments":)", pending_.index);
        append_json_string(out_, pending_.text);
        out_ += "}}]";
    } else if (!pending_.text.empty()) {
        out_ +=
            pending_.kind == SinkEventKind::reasoning ? R"("reasoning_content":)" : R"("content":)";
        append_json_string(out_, pending_.text);
    }
    end_chunk(reply, Carries::tokens, nullptr, {});
    pending_.text.clear();
}

void StreamWriter::add_piece(const SinkEvent& event) {
    const bool is_tokens = event.kind == SinkEventKind::tokens;
    const bool joins = pending_.is_set && pending_.reply == event.reply &&
                       (is_tokens || pending_.text.empty() ||
                        (pending_.kind == event.kind && pending_.index == event.index));
    if (!joins) {
        flush();
        pending_.is_set = true;
        pending_.reply = event.reply;
        pending_.kind = SinkEventKind::content;
    }
    if (is_tokens) {
        Reply& r = reply_of(event.reply);
        if (returns_ids_) {
            append_ids(r.ids, event.ids);
        }
        r.logprobs.add(event);
        return;
    }
    pending_.kind = event.kind;
    pending_.index = event.index;
    pending_.text += event.text.view();
}

void StreamWriter::add_call(const SinkEvent& event) {
    flush();
    if (!is_chat_) {
        return;
    }
    add_role(event.reply);
    begin_chunk(event.reply);
    out_ += format(R"("tool_calls":[{"index":{},"id":)", event.index);
    append_json_string(out_, event.id);
    out_ += R"(,"type":"function","function":{"name":)";
    append_json_string(out_, event.text);
    out_ += R"(,"arguments":""}}])";
    end_chunk(event.reply, Carries::tokens, nullptr, {});
}

void StreamWriter::add_finish(const SinkEvent& event) {
    flush();
    add_role(event.reply);
    begin_chunk(event.reply);
    if (!is_chat_) {
        out_ += "\"\"";
    }
    std::string timings;
    if (event.timings != nullptr) {
        usage_.add(*event.timings);
        timings = timings_json(*event.timings);
    }
    end_chunk(event.reply, Carries::tokens, event.text.str().c_str(), timings);
}

void StreamWriter::take(const SinkEvent& event) {
    switch (event.kind) {
        case SinkEventKind::started:
        case SinkEventKind::error:
            break;
        case SinkEventKind::reasoning:
        case SinkEventKind::content:
        case SinkEventKind::arguments:
        case SinkEventKind::tokens:
            add_piece(event);
            break;
        case SinkEventKind::call:
            add_call(event);
            break;
        case SinkEventKind::finish:
            add_finish(event);
            break;
    }
}

void StreamWriter::add_error(const ApiError& error) {
    flush();
    out_ += "data: ";
    out_ += error_body(error);
    out_ += "\n\n";
    out_ += "data: [DONE]\n\n";
}

void StreamWriter::add_end() {
    flush();
    if (includes_usage_) {
        out_ += head_;
        out_ += R"(],"usage":)";
        out_ += usage_.json();
        out_ += "}\n\n";
    }
    out_ += "data: [DONE]\n\n";
}

}  // namespace tenon::http
