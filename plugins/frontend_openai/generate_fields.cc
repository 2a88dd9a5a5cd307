// SPDX-License-Identifier: MIT
// Types, ranges, and fields that this version refuses by name.
#include "generate_fields.h"

#include <nlohmann/json.hpp>

#include "fields.h"

namespace tenon::http {
namespace {

void read_stop(Fields& f, std::vector<std::string>* out) {
    const Json* stop = f.find("stop");
    if (stop == nullptr) {
        return;
    }
    const Json list = stop->is_array() ? *stop : Json::array({*stop});
    if (list.size() > 16) {
        return f.fail("stop", "at most 16 strings");
    }
    for (const Json& s : list) {
        if (!s.is_string() || s.get_ref<const std::string&>().empty()) {
            return f.fail("stop", "must be a non-empty string or a list of them");
        }
        out->push_back(s.get<std::string>());
    }
}

void read_bias(Fields& f, int32_t vocab, std::vector<LogitBias>* out) {
    const Json* bias = f.find("logit_bias");
    if (bias == nullptr) {
        return;
    }
    if (!bias->is_object() || bias->size() > 4096) {
        return f.fail("logit_bias", "must be an object of at most 4096 ids");
    }
    for (const auto& [key, value] : bias->items()) {
        const bool digits = !key.empty() && key.size() < 10 &&
                            key.find_first_not_of("0123456789") == std::string::npos;
        if (!digits || std::stoll(key) >= vocab || !value.is_number() ||
            value.get<double>() < -100 || value.get<double>() > 100) {
            return f.fail(
                "logit_bias",
                format("'{}' must be an id below {} with a bias between -100 and 100", key, vocab));
        }
        out->push_back({static_cast<int32_t>(std::stoll(key)), value.get<float>()});
    }
}

void read_prompt(Fields& f, int32_t known_ids, GenerateFields* out) {
    const Json* prompt = f.find("prompt");
    if (prompt == nullptr) {
        return f.fail("prompt", "is required");
    }
    if (prompt->is_array() && prompt->size() == 1 &&
        ((*prompt)[0].is_string() || (*prompt)[0].is_array())) {
        prompt = &(*prompt)[0];  // a batch of one
    }
    if (prompt->is_string()) {
        out->prompt_text = prompt->get<std::string>();
        return;
    }
    if (!prompt->is_array()) {
        return f.fail("prompt", "must be a string or a list of token ids");
    }
    if (prompt->empty() || !(*prompt)[0].is_number()) {
        return f.fail("prompt", "one prompt a request: a string or a non-empty list of token ids");
    }
    out->has_ids = true;
    if (Refusal r = read_ids(*prompt, "prompt", known_ids, &out->prompt_ids)) {
        f.fail(std::move(*r));
    }
}

}  // namespace

Refusal read_generate_fields(Api api, const Json& body, const EngineInfo& info,
                             const Settings& settings, int32_t known_ids, GenerateFields* out) {
    Fields f(body);
    f.text("model", &out->model);
    if (!out->model.empty() && !settings.accept_any_model && !f.failed()) {
        bool known = out->model == info.served_name.view();
        for (const StrView& alias : info.aliases) {
            known = known || out->model == alias.view();
        }
        if (!known) {
            ApiError e;
            e.status = 404;
            e.type = "invalid_request_error";
            e.code = "model_not_found";
            e.param = "model";
            e.message =
                format("model '{}' is not served here; this is '{}'", out->model, info.served_name);
            return e;
        }
    }
    SamplingParams& s = out->sampling;
    s.temperature = info.temperature;
    s.top_p = info.top_p;
    s.min_p = info.min_p;
    int64_t top_k = info.top_k;
    f.boolean("stream", &out->stream);
    f.number("temperature", {0, 100}, &s.temperature);
    f.number("top_p", {0, 1, true}, &s.top_p);
    f.number("min_p", {0, 1, false, true}, &s.min_p);
    f.integer("top_k", -1, 1 << 30, &top_k);
    s.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
    f.number("presence_penalty", {-2, 2}, &s.presence);
    f.number("frequency_penalty", {-2, 2}, &s.frequency);
    f.number("repetition_penalty", {0, 2, true}, &s.repetition);
    if (f.find("seed") != nullptr) {
        int64_t seed = 0;
        f.integer("seed", INT64_MIN, INT64_MAX, &seed);
        s.seed = static_cast<uint64_t>(seed);
        s.seed_set = true;
    }
    f.integer("max_tokens", 1, 1 << 24, &out->max_tokens);
    f.integer("max_completion_tokens", 1, 1 << 24, &out->max_tokens);
    f.integer("n", 1, 8, &out->replies);
    read_stop(f, &out->stops);
    read_bias(f, info.vocab, &out->bias);
    f.integers("stop_token_ids", 0, info.vocab - 1, &out->stop_ids);
    f.boolean("ignore_eos", &out->ignore_eos);
    f.boolean("return_token_ids", &out->return_ids);
    f.boolean("draft", &out->drafts);
    std::string priority;
    if (f.find("priority") != nullptr && f.find("priority")->is_string()) {
        f.text("priority", &priority);
        if (priority != "foreground" && priority != "background") {
            f.fail("priority", "must be foreground or background");
        }
        out->background = priority == "background";
    }
    if (const Json* options = f.find("stream_options")) {
        if (!options->is_object()) {
            f.fail("stream_options", "must be an object");
        } else {
            Fields inner(*options, "stream_options.");
            inner.boolean("include_usage", &out->include_usage);
            if (inner.failed()) {
                return inner.take();
            }
        }
    }
    int64_t top = -1;
    if (api == Api::chat) {
        bool on = false;
        f.boolean("logprobs", &on);
        f.integer("top_logprobs", 0, 20, &top);
        if (top >= 0 && !on) {
            f.fail("top_logprobs", "needs logprobs = true");
        }
        s.logprobs = on ? static_cast<int32_t>(std::max<int64_t>(top, 0)) : -1;
    } else {
        f.integer("logprobs", 0, 20, &top);
        s.logprobs = static_cast<int32_t>(top);
        f.refuse_if_set("suffix", "is not supported");
        bool echo = false;
        f.boolean("echo", &echo);
        if (echo) {
            f.fail(unsupported_field("echo", "echo is not supported"));
        }
        read_prompt(f, known_ids, out);
    }
    out->wants_logprobs = s.logprobs >= 0;
    for (const char* key : {"guided_json", "guided_regex", "guided_choice", "guided_grammar",
                            "structured_outputs", "thinking_budget"}) {
        f.refuse_if_set(key, "is not supported by this version");
    }
    if (const Json* rf = f.find("response_format")) {
        if (!rf->is_object() || rf->value("type", "") != "text") {
            f.fail(unsupported_field("response_format",
                                     "only {\"type\": \"text\"} is supported by this version"));
        }
    }
    if (const Json* choice = f.find("tool_choice")) {
        if (!choice->is_string() || (*choice != "auto" && *choice != "none")) {
            f.fail(unsupported_field("tool_choice",
                                     "only auto and none are supported by this version"));
        }
    }
    return f.take();
}

}  // namespace tenon::http
