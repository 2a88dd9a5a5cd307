// SPDX-License-Identifier: MIT
// POST /v1/chat/completions: the body goes whole to the codec; here is what the engine needs of it.
#include <nlohmann/json.hpp>

#include "generate_request.h"

namespace tenon::http {

namespace {

constexpr const char* kNoForcing =
    "this version cannot force a tool call; use \"auto\" or \"none\" and say "
    "it in the prompt";

void read_tool_choice(Fields& fields) {
    const Json* value = fields.failed() ? nullptr : fields.find("tool_choice");
    if (value == nullptr) {
        return;
    }
    if (value->is_object()) {
        fields.fail(unsupported_field("tool_choice", kNoForcing));
        return;
    }
    if (!value->is_string()) {
        fields.fail("tool_choice",
                    format("expected a string or an object, found {}", type_text(*value)));
        return;
    }
    const auto& choice = value->get_ref<const std::string&>();
    if (choice == "required") {
        fields.fail(unsupported_field("tool_choice", kNoForcing));
    } else if (choice != "auto" && choice != "none") {
        fields.fail("tool_choice",
                    format("'{}' is not 'auto', 'none' or 'required'", choice.substr(0, 40)));
    }
}

void read_logprobs(Fields& fields, GenerateRequest* out) {
    bool wants = false;
    int64_t top = 0;
    fields.boolean("logprobs", &wants);
    fields.integer("top_logprobs", 0, 20, &top);
    if (!wants && top > 0) {
        fields.fail("top_logprobs", "needs \"logprobs\": true");
    }
    out->top_logprobs = wants ? static_cast<int>(top) : -1;
}

void read_max_tokens(Fields& fields, GenerateRequest* out) {
    int64_t older = 0, newer = 0;
    fields.integer("max_tokens", 1, kMaxTokensBound, &older);
    fields.integer("max_completion_tokens", 1, kMaxTokensBound, &newer);
    out->desc.max_new_tokens = newer > 0 ? newer : older;
}

void refuse_other_modalities(Fields& fields) {
    const Json* modalities = fields.failed() ? nullptr : fields.find("modalities");
    if (modalities != nullptr &&
        !(modalities->is_array() && modalities->size() == 1 && (*modalities)[0] == "text")) {
        fields.fail(unsupported_field("modalities", "this server writes text only"));
    }
    fields.refuse_if_set("audio", "this server writes text only");
    fields.refuse_if_set("function_call", "use tools and tool_choice");
    fields.refuse_if_set("functions", "use tools and tool_choice");
}

Refusal render(const Api& api, const std::string& text, GenerateRequest* out) {
    const Status status = api.engine.render(text, out->desc.cache_salt, out->prompt.out());
    if (!status.ok()) {
        return from_status(status, api.retry_after_s());
    }
    Prompt& prompt = *out->prompt;
    if (!prompt.images().empty()) {
        const std::string part = prompt.images()[0].part.str();
        return unsupported_field(part.empty() ? "messages" : part,
                                 "this version reads text only, no images");
    }
    RequestDesc& desc = out->desc;
    desc.tokens = prompt.ids();
    desc.borders = prompt.borders();
    desc.parser.start = prompt.start();
    desc.parser.tools_json = prompt.tools_json();
    desc.parser.parallel_tool_calls = prompt.parallel_tool_calls();
    desc.parser.stops = desc.stops;
    desc.keeps_reasoning = prompt.keeps_reasoning();
    desc.thinking = prompt.thinking();
    desc.label = "openai chat";
    return {};
}

}  // namespace

Refusal read_chat_request(const Api& api, const Json& body, const std::string& text,
                          GenerateRequest* out) {
    out->is_chat = true;
    if (Refusal refusal = read_model(api, body, &out->model)) {
        return refusal;
    }
    Fields fields(body);
    read_tool_choice(fields);
    refuse_other_modalities(fields);
    read_common_fields(fields, api, out);
    read_logprobs(fields, out);
    read_max_tokens(fields, out);
    if (fields.failed()) {
        return fields.take();
    }
    out->desc.sampling.logprobs = out->top_logprobs;
    return render(api, text, out);
}

}  // namespace tenon::http
