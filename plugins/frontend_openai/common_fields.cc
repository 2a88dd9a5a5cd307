// SPDX-License-Identifier: MIT
// Sampling parameters, stop conditions and switches of a generation request.
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "generate_request.h"

namespace tenon::http {

namespace {

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxStopIds = 16;
constexpr size_t kMaxBias = 4096;
constexpr size_t kMaxSaltBytes = 1024;
constexpr int64_t kMaxReplies = 8;
constexpr float kMaxTemperature = 100;  // flatter than any use; keeps logits / temperature finite

constexpr const char* kNoGrammar =
    "this version cannot constrain the reply (no structured output yet); leave "
    "the field out";

void read_sampling(Fields& fields, const EngineInfo& info, GenerateRequest* out) {
    SamplingParams& s = out->desc.sampling;
    s.temperature = info.temperature;
    s.top_p = info.top_p;
    s.min_p = info.min_p;
    s.top_k = info.top_k;
    fields.number("temperature", {0, kMaxTemperature}, &s.temperature);
    fields.number("top_p", {0, 1, true}, &s.top_p);
    fields.number("min_p", {0, 1, false, true}, &s.min_p);
    fields.number("presence_penalty", {-2, 2}, &s.presence);
    fields.number("frequency_penalty", {-2, 2}, &s.frequency);
    fields.number("repetition_penalty", {0, 2, true}, &s.repetition);
    int64_t top_k = s.top_k;
    fields.integer("top_k", std::numeric_limits<int32_t>::min(),
                   std::numeric_limits<int32_t>::max(), &top_k);
    s.top_k = top_k <= 0 ? 0 : static_cast<int32_t>(top_k);
}

// A seed is a bit pattern: OpenAI documents signed 64-bit values, others send unsigned ones.
void read_seed(Fields& fields, SamplingParams* sampling) {
    const Json* value = fields.failed() ? nullptr : fields.find("seed");
    if (value == nullptr) {
        return;
    }
    if (value->is_number_unsigned()) {
        sampling->seed = value->get<uint64_t>();
    } else if (value->is_number_integer()) {
        sampling->seed = static_cast<uint64_t>(value->get<int64_t>());
    } else {
        fields.fail("seed", format("expected a 64-bit integer, found {}", type_text(*value)));
        return;
    }
    sampling->seed_set = true;
}

void read_stops(Fields& fields, GenerateRequest* out) {
    const Json* value = fields.failed() ? nullptr : fields.find("stop");
    if (value == nullptr) {
        return;
    }
    const auto add = [&](const Json& item, const std::string& key) {
        if (!item.is_string()) {
            fields.fail(key, format("expected a string, found {}", type_text(item)));
            return;
        }
        const auto& text = item.get_ref<const std::string&>();
        if (text.empty() || text.size() > kMaxStopBytes) {
            fields.fail(key, format("a stop string has 1...{} bytes, this one {}", kMaxStopBytes,
                                    text.size()));
            return;
        }
        out->stops.push_back(text);
    };
    if (value->is_string()) {
        add(*value, "stop");
    } else if (!value->is_array()) {
        fields.fail("stop",
                    format("expected a string or a list of strings, found {}", type_text(*value)));
    } else if (value->size() > kMaxStops) {
        fields.fail("stop", format("{} stop strings, at most {}", value->size(), kMaxStops));
    } else {
        for (size_t i = 0; i < value->size() && !fields.failed(); ++i) {
            add((*value)[i], format("stop[{}]", i));
        }
    }
    for (const std::string& stop : out->stops) {
        out->stop_views.emplace_back(stop);
    }
    out->desc.stops = out->stop_views;
}

void read_stop_ids(Fields& fields, int32_t vocab, GenerateRequest* out) {
    fields.integers("stop_token_ids", 0, vocab - 1, &out->stop_ids);
    if (out->stop_ids.size() > kMaxStopIds) {
        fields.fail("stop_token_ids",
                    format("{} ids, at most {}", out->stop_ids.size(), kMaxStopIds));
    }
    out->desc.sampling.stop_ids = out->stop_ids;
}

bool parse_id(const std::string& text, int32_t vocab, int32_t* out) {
    if (text.empty() || text.size() > 9 ||
        text.find_first_not_of("0123456789") != std::string::npos) {
        return false;
    }
    const long id = std::strtol(text.c_str(), nullptr, 10);
    *out = static_cast<int32_t>(id);
    return id < vocab;
}

void read_bias(Fields& fields, int32_t vocab, GenerateRequest* out) {
    const Json* value = fields.failed() ? nullptr : fields.find("logit_bias");
    if (value == nullptr) {
        return;
    }
    if (!value->is_object() || value->size() > kMaxBias) {
        fields.fail("logit_bias", value->is_object()
                                      ? format("{} entries, at most {}", value->size(), kMaxBias)
                                      : format("expected an object of token id to bias, found {}",
                                               type_text(*value)));
        return;
    }
    Fields members(*value, "logit_bias.");
    for (const auto& [key, bias] : value->items()) {
        LogitBias entry;
        if (!parse_id(key, vocab, &entry.token)) {
            fields.fail("logit_bias",
                        format("key '{}' is not a token id 0...{}", key.substr(0, 40), vocab - 1));
            return;
        }
        if (bias.is_null()) {
            fields.fail(format("logit_bias.{}", key), "expected a number, found null");
            return;
        }
        members.number(key, {-100, 100}, &entry.add);
        if (members.failed()) {
            fields.fail(*members.take());
            return;
        }
        out->bias.push_back(entry);
    }
    out->desc.sampling.bias = out->bias;
}

void read_priority(Fields& fields, RequestDesc* desc) {
    std::string priority;
    fields.text("priority", &priority);
    if (priority == "background") {
        desc->priority = Priority::background;
    } else if (!priority.empty() && priority != "foreground") {
        fields.fail("priority",
                    format("'{}' is not 'foreground' or 'background'", priority.substr(0, 40)));
    }
}

void read_streaming(Fields& fields, GenerateRequest* out) {
    fields.boolean("stream", &out->streams);
    const Json* options = fields.failed() ? nullptr : fields.find("stream_options");
    if (options == nullptr) {
        return;
    }
    if (!options->is_object()) {
        fields.fail("stream_options", format("expected an object, found {}", type_text(*options)));
        return;
    }
    if (!out->streams) {
        fields.fail("stream_options", "needs \"stream\": true");
        return;
    }
    Fields members(*options, "stream_options.");
    members.boolean("include_usage", &out->includes_usage);
    if (members.failed()) {
        fields.fail(*members.take());
    }
}

// Fields with a meaning that this version lacks. Ignoring them would answer another question.
void refuse_unsupported(Fields& fields) {
    const Json* format_field = fields.failed() ? nullptr : fields.find("response_format");
    if (format_field != nullptr) {
        std::string type;
        if (!format_field->is_object()) {
            fields.fail("response_format",
                        format("expected an object, found {}", type_text(*format_field)));
            return;
        }
        Fields members(*format_field, "response_format.");
        members.text("type", &type);
        if (members.failed()) {
            fields.fail(*members.take());
        } else if (type != "text") {
            fields.fail(unsupported_field("response_format", kNoGrammar));
        }
    }
    for (const char* key : {"guided_json", "guided_regex", "guided_choice", "guided_grammar",
                            "guided_decoding_backend", "structured_outputs"}) {
        fields.refuse_if_set(key, kNoGrammar);
    }
    fields.refuse_if_set("thinking_budget",
                         "this version cannot cap the reasoning; use max_tokens "
                         "or reasoning_effort");
    fields.refuse_if_set("prompt_logprobs", "this version gives logprobs of the reply only");
    bool guards_loops = false;
    fields.boolean("loop_guard", &guards_loops);
    if (guards_loops) {
        fields.fail(unsupported_field("loop_guard", "this version has no loop guard"));
    }
}

// Whose kept prefixes the request may use: the caller's, and of those only the ones made under the
// same `cache_salt`.
void read_salt(Fields& fields, const Api& api, GenerateRequest* out) {
    std::string wish;
    fields.text("cache_salt", &wish);
    if (wish.size() > kMaxSaltBytes) {
        fields.fail("cache_salt", format("{} bytes, at most {}", wish.size(), kMaxSaltBytes));
        return;
    }
    out->desc.cache_salt = api.engine.cache_salt(out->caller_key, wish);
}

void read_flags(Fields& fields, GenerateRequest* out) {
    bool drafts = true, ignores_eos = false;
    fields.boolean("draft", &drafts);
    fields.boolean("ignore_eos", &ignores_eos);
    fields.boolean("return_token_ids", &out->returns_ids);
    out->desc.flags = (drafts ? kDraftsAllowed : 0U) | (ignores_eos ? kIgnoreEos : 0U) |
                      (out->returns_ids ? kReturnIds : 0U);
}

}  // namespace

void read_common_fields(Fields& fields, const Api& api, GenerateRequest* out) {
    const EngineInfo info = api.engine.info();
    refuse_unsupported(fields);
    read_sampling(fields, info, out);
    read_seed(fields, &out->desc.sampling);
    read_stops(fields, out);
    read_stop_ids(fields, info.vocab, out);
    read_bias(fields, info.vocab, out);
    read_priority(fields, &out->desc);
    read_streaming(fields, out);
    read_flags(fields, out);
    read_salt(fields, api, out);
    int64_t replies = 1;
    fields.integer("n", 1, kMaxReplies, &replies);
    out->desc.replies = static_cast<int32_t>(replies);
}

}  // namespace tenon::http
