// SPDX-License-Identifier: MIT
// POST /v1/completions: a prompt as text or token ids, without any chat encoding.
#include <nlohmann/json.hpp>

#include "generate_request.h"

namespace tenon::http {

namespace {

bool is_id_list(const Json& value) {
    return value.is_array() && !value.empty() && value[0].is_number();
}

// A list with one prompt in it is that prompt.
Refusal single_prompt(const Json& value, const Json** out) {
    *out = &value;
    if (!value.is_array() || is_id_list(value)) {
        return {};
    }
    if (value.empty()) {
        return bad_field("prompt", "the list is empty");
    }
    if (value.size() > 1) {
        return unsupported_field(
            "prompt", format("{} prompts in one request; send one request each", value.size()));
    }
    *out = &value[0];
    return {};
}

Refusal encode(const Api& api, const std::string& text, GenerateRequest* out) {
    // The caller writes the whole prompt here, so control tokens that it spells are meant.
    Ref<TokenList> tokens;
    const Status status = api.engine.text().encode(text, kParseSpecials, tokens.out());
    if (!status.ok()) {
        return from_status(status.with_context("prompt"), api.retry_after_s());
    }
    const Span<const int32_t> ids = tokens->ids();
    out->ids.assign(ids.begin(), ids.end());
    return {};
}

Refusal read_prompt(const Api& api, const Json& body, int32_t vocab, GenerateRequest* out) {
    const auto found = body.find("prompt");
    if (found == body.end() || found->is_null()) {
        return bad_field("prompt", "is missing; give a string or a list of token ids");
    }
    const Json* prompt = nullptr;
    if (Refusal refusal = single_prompt(*found, &prompt)) {
        return refusal;
    }
    if (prompt->is_string()) {
        if (Refusal refusal = encode(api, prompt->get_ref<const std::string&>(), out)) {
            return refusal;
        }
    } else if (is_id_list(*prompt)) {
        if (Refusal refusal = read_ids(*prompt, "prompt", vocab, &out->ids)) {
            return refusal;
        }
    } else {
        return bad_field(
            "prompt",
            format("expected a string or a list of token ids, found {}", type_text(*prompt)),
            "invalid_type");
    }
    if (out->ids.empty()) {
        return bad_field("prompt", "is empty; the model needs at least one token");
    }
    return {};
}

void read_fields(Fields& fields, const Api& api, GenerateRequest* out) {
    read_common_fields(fields, api, out);
    int64_t logprobs = -1, best_of = out->desc.replies;
    fields.integer("logprobs", 0, 20, &logprobs);
    fields.integer("max_tokens", 1, kMaxTokensBound, &out->desc.max_new_tokens);
    fields.integer("best_of", 1, 8, &best_of);
    if (best_of != out->desc.replies) {
        fields.fail(unsupported_field("best_of", "replies are not ranked here; leave it out"));
    }
    fields.refuse_if_set("suffix", "the model fills no gaps");
    bool echoes = false;
    fields.boolean("echo", &echoes);
    if (echoes) {
        fields.fail(unsupported_field("echo", "the prompt is not repeated in the reply"));
    }
    out->top_logprobs = static_cast<int>(logprobs);
}

}  // namespace

Refusal read_completion_request(const Api& api, const Json& body, GenerateRequest* out) {
    if (Refusal refusal = read_model(api, body, &out->model)) {
        return refusal;
    }
    const EngineInfo info = api.engine.info();
    Fields fields(body);
    read_fields(fields, api, out);
    if (fields.failed()) {
        return fields.take();
    }
    if (Refusal refusal = read_prompt(api, body, info.vocab, out)) {
        return refusal;
    }
    RequestDesc& desc = out->desc;
    desc.tokens = out->ids;
    desc.sampling.logprobs = out->top_logprobs;
    desc.flags |= kRawText;
    desc.label = "openai completion";
    return {};
}

}  // namespace tenon::http
