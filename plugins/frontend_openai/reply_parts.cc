// SPDX-License-Identifier: MIT
// Writing of usage, timings and logprobs.
#include "reply_parts.h"

#include <algorithm>
#include <cmath>

#include "json_text.h"

namespace tenon::http {

namespace {

// JSON has no infinity; OpenAI writes this for a token that cannot be.
constexpr float kImpossible = -9999.0F;

void append_number(std::string& out, double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.9g", std::isfinite(value) ? value : 0.0);
    out += text;
}

void append_logprob(std::string& out, float value) {
    append_number(out, std::isfinite(value) ? std::max(value, kImpossible) : kImpossible);
}

double ms(int64_t us) {
    return static_cast<double>(us) * 1e-3;
}

double rate(int64_t tokens, int64_t us) {
    return us > 0 ? static_cast<double>(tokens) * 1e6 / static_cast<double>(us) : 0;
}

int64_t characters(std::string_view text) {
    return std::count_if(text.begin(), text.end(),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

void append_chat_entry(std::string& out, TextCodec& codec, const SinkLogprob& entry) {
    const StrView bytes = codec.token_bytes(entry.token);
    out += R"({"token":)";
    append_json_string(out, bytes);
    out += R"(,"logprob":)";
    append_logprob(out, entry.logprob);
    out += R"(,"bytes":[)";
    for (size_t i = 0; i < bytes.size; ++i) {
        out += i == 0 ? "" : ",";
        out += std::to_string(static_cast<unsigned char>(bytes.data[i]));
    }
    out += ']';
}

void separate(std::string& out) {
    if (!out.empty()) {
        out += ',';
    }
}

}  // namespace

void Usage::add(const ReplyTimings& t) {
    // All replies have the same prompt; its work is counted once.
    prompt = t.prompt_tokens;
    cached = std::max(cached, t.cached_tokens);
    completion += t.completion_tokens;
    reasoning += t.reasoning_tokens;
}

std::string Usage::json() const {
    return format(R"({"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                  R"("prompt_tokens_details":{"cached_tokens":{}},)"
                  R"("completion_tokens_details":{"reasoning_tokens":{}}})",
                  prompt, completion, prompt + completion, cached, reasoning);
}

std::string timings_json(const ReplyTimings& t) {
    std::string out;
    const auto add = [&out](const char* key, double value) {
        out += out.empty() ? "{\"" : ",\"";
        out += key;
        out += "\":";
        append_number(out, std::round(value * 1000) / 1000);
    };
    add("queue_ms", ms(t.queue));
    add("prefill_ms", ms(t.prefill));
    add("first_token_ms", ms(t.first_token));
    add("decode_ms", ms(t.decode));
    add("cached_tokens", static_cast<double>(t.cached_tokens));
    add("prefill_tokens_per_s", rate(t.prompt_tokens - t.cached_tokens, t.prefill));
    add("decode_tokens_per_s", rate(t.completion_tokens, t.decode));
    out += format(R"(,"rounds":{},"drafted":{},"accepted":{},"seed":{},"token_sha":")", t.rounds,
                  t.drafted, t.accepted, t.seed);
    constexpr char kHex[] = "0123456789abcdef";
    for (int i = 0; i < 6; ++i) {
        out += kHex[t.token_sha[i] >> 4];
        out += kHex[t.token_sha[i] & 15];
    }
    out += "\"}";
    return out;
}

void append_ids(std::string& out, Span<const int32_t> ids) {
    for (const int32_t id : ids) {
        separate(out);
        out += std::to_string(id);
    }
}

void LogprobText::add_chat(int32_t token, const SinkLogprob* entries, int32_t top) {
    separate(first_);
    append_chat_entry(first_, codec_, {token, entries[0].logprob});
    first_ += R"(,"top_logprobs":[)";
    for (int32_t i = 1; i <= top; ++i) {
        first_ += i == 1 ? "" : ",";
        append_chat_entry(first_, codec_, entries[i]);
        first_ += '}';
    }
    first_ += "]}";
}

void LogprobText::add_text(int32_t token, const SinkLogprob* entries, int32_t top) {
    const StrView bytes = codec_.token_bytes(token);
    separate(first_);
    append_json_string(first_, bytes);
    separate(second_);
    append_logprob(second_, entries[0].logprob);
    separate(third_);
    third_ += '{';
    for (int32_t i = 1; i <= top; ++i) {
        third_ += i == 1 ? "" : ",";
        append_json_string(third_, codec_.token_bytes(entries[i].token));
        third_ += ':';
        append_logprob(third_, entries[i].logprob);
    }
    third_ += '}';
    separate(fourth_);
    fourth_ += std::to_string(offset_);
    offset_ += characters(bytes);
}

void LogprobText::add(const SinkEvent& event) {
    const auto per_id = static_cast<uint64_t>(1 + std::max(event.top, 0));
    for (uint64_t i = 0; i < event.ids.size && (i + 1) * per_id <= event.logprobs.size; ++i) {
        const SinkLogprob* entries = event.logprobs.data + i * per_id;
        ++count_;
        if (form_ == Form::chat) {
            add_chat(event.ids[i], entries, event.top);
        } else {
            add_text(event.ids[i], entries, event.top);
        }
    }
}

std::string LogprobText::take() {
    if (count_ == 0) {
        return "null";
    }
    count_ = 0;
    std::string out =
        form_ == Form::chat
            ? format(R"({"content":[{}],"refusal":null})", first_)
            : format(
                  R"({"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]})",
                  first_, second_, third_, fourth_);
    first_.clear();
    second_.clear();
    third_.clear();
    fourth_.clear();
    return out;
}

}  // namespace tenon::http
