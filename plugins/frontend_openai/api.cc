// SPDX-License-Identifier: MIT
// Checks that several routes share.
#include "api.h"

#include <nlohmann/json.hpp>

#include "fields.h"

namespace tenon::http {

Refusal parse_object(const std::string& body, Json* out) {
    if (body.empty()) {
        return bad_field("", "the request has no body; send a JSON object", "invalid_json");
    }
    if (Refusal refusal = parse_json(body, out)) {
        return refusal;
    }
    if (!out->is_object()) {
        return bad_field("", format("the body is {}, expected a JSON object", type_text(*out)),
                         "invalid_type");
    }
    return {};
}

Refusal check_ready(const Api& api) {
    EngineStats stats;
    api.engine.stats(&stats);
    switch (stats.state) {
        case EngineState::ready:
            return {};
        case EngineState::loading:
            return unavailable("loading", "the model is still loading", api.retry_after_s());
        case EngineState::draining:
            return unavailable("draining", "the server is shutting down", api.retry_after_s());
        case EngineState::failed:
            break;
    }
    return unavailable("engine_failed", "the engine has failed and the server is about to end",
                       api.retry_after_s());
}

Refusal read_model(const Api& api, const Json& body, std::string* out) {
    Fields fields(body);
    const EngineInfo info = api.engine.info();
    *out = info.served_name.str();
    std::string asked;
    fields.text("model", &asked);
    if (fields.failed()) {
        return fields.take();
    }
    if (asked.empty() || StrView(asked) == info.served_name) {
        return {};
    }
    bool is_known = api.http.settings.accept_any_model;
    for (const StrView alias : info.aliases) {
        is_known |= alias == StrView(asked);
    }
    if (!is_known) {
        ApiError e = bad_message(format("model '{}' is not served here; this server has '{}'",
                                        asked.substr(0, 200), info.served_name),
                                 404, "model_not_found");
        e.param = "model";
        return e;
    }
    *out = asked;
    return {};
}

}  // namespace tenon::http
