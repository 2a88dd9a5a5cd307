// SPDX-License-Identifier: MIT
// POST /tokenize and /detokenize, also under /v1.
#include <nlohmann/json.hpp>

#include "api.h"
#include "exchange.h"
#include "fields.h"
#include "json_text.h"
#include "reply_parts.h"

namespace tenon::http {

namespace {

void reply_ids(Api& api, Exchange& exchange, Span<const int32_t> ids) {
    std::string list;
    append_ids(list, ids);
    exchange.reply_json(format(R"({"count":{},"max_model_len":{},"tokens":[{}]})", ids.size,
                               api.engine.info().context_tokens, list));
}

// Text under any of the names in use.
Refusal read_text(const Json& body, std::string* text) {
    Fields fields(body);
    const char* found = nullptr;
    for (const char* key : {"text", "prompt", "content"}) {
        if (fields.find(key) == nullptr) {
            continue;
        }
        if (found != nullptr) {
            fields.fail(key, format("stands beside '{}'; give one of them", found));
        }
        found = key;
        fields.text(key, text);
    }
    if (found == nullptr) {
        fields.fail("text", "is missing; give text (or prompt), or messages");
    }
    return fields.take();
}

void tokenize(Api& api, Exchange& exchange) {
    Json body;
    Refusal refusal = parse_object(exchange.body(), &body);
    if (!refusal && body.contains("messages")) {
        Ref<Prompt> prompt;
        const Status status = api.engine.text().render(exchange.body(), prompt.out());
        return status.ok() ? reply_ids(api, exchange, prompt->ids())
                           : exchange.fail(from_status(status, api.retry_after_s()));
    }
    std::string text;
    bool parses_specials = false;
    if (!refusal) {
        Fields fields(body);
        fields.boolean("parse_special", &parses_specials);
        refusal = fields.take();
    }
    if (!refusal) {
        refusal = read_text(body, &text);
    }
    if (refusal) {
        return exchange.fail(*refusal);
    }
    Ref<TokenList> tokens;
    const Status status =
        api.engine.text().encode(text, parses_specials ? kParseSpecials : 0U, tokens.out());
    return status.ok() ? reply_ids(api, exchange, tokens->ids())
                       : exchange.fail(from_status(status, api.retry_after_s()));
}

void detokenize(Api& api, Exchange& exchange) {
    Json body;
    if (Refusal refusal = parse_object(exchange.body(), &body)) {
        return exchange.fail(*refusal);
    }
    Fields fields(body);
    bool skips_specials = false;
    std::vector<int32_t> ids;
    fields.boolean("skip_special_tokens", &skips_specials);
    fields.integers("tokens", 0, api.engine.info().vocab - 1, &ids);
    if (fields.find("tokens") == nullptr) {
        fields.fail("tokens", "is missing; give a list of token ids");
    }
    if (fields.failed()) {
        return exchange.fail(*fields.take());
    }
    Ref<Blob> text;
    const Status status =
        api.engine.text().decode(ids, skips_specials ? kSkipSpecials : 0U, text.out());
    if (!status.ok()) {
        return exchange.fail(from_status(status, api.retry_after_s()));
    }
    // `prompt` and `text`: both names are in use among clients.
    std::string quoted;
    append_json_string(quoted, text->view());
    exchange.reply_json(format(R"({"prompt":{},"text":{}})", quoted, quoted));
}

void guarded(Api& api, Exchange& exchange, void (*handler)(Api&, Exchange&)) {
    if (Refusal refusal = check_ready(api)) {
        return exchange.fail(*refusal);
    }
    handler(api, exchange);
}

}  // namespace

void add_text_routes(Router& router, Api& api) {
    for (const char* prefix : {"", "/v1"}) {
        router.add({"POST", std::string(prefix) + "/tokenize", "tokenize", Access::key, false,
                    [&api](Exchange& x) { guarded(api, x, tokenize); }});
        router.add({"POST", std::string(prefix) + "/detokenize", "detokenize", Access::key, false,
                    [&api](Exchange& x) { guarded(api, x, detokenize); }});
    }
}

}  // namespace tenon::http
