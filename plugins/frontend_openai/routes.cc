// SPDX-License-Identifier: MIT
// The route table and its small handlers.
#include "routes.h"

#include <nlohmann/json.hpp>

#include "fields.h"
#include "generate.h"

namespace tenon::http {
namespace {

std::string dump(const Json& j) {
    return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const char* state_name(EngineState s) {
    constexpr const char* kNames[] = {"loading", "ok", "draining", "failed"};
    return kNames[static_cast<int>(s)];
}

void health(Service& s, const Request&, Answer& answer) {
    EngineStats e;
    s.engine.stats(&e);
    Json j = Json::object();
    j["status"] = state_name(e.state);
    if (!s.keys.required()) {
        j["streams"] = {
            {"decoding", e.decoding}, {"prefilling", e.prefilling}, {"max", e.slot_count}};
        j["requests_running"] = e.running;
        j["requests_waiting"] = e.waiting;
        j["requests_total"] = e.requests_total;
        j["prompt_tokens_total"] = e.prompt_tokens_total;
        j["completion_tokens_total"] = e.completion_tokens_total;
        j["rounds_total"] = e.rounds_total;
        j["last_step_age_ms"] = static_cast<double>(e.last_step_age_us) / 1000.0;
        j["pages_free"] = e.pages_free;
        j["context_length"] = s.engine.info().context_tokens;
    }
    answer.json(e.state == EngineState::ready ? 200 : 503, dump(j));
}

void metrics(Service& s, const Request&, Answer& answer) {
    std::string text;
    s.host.metrics_text(
        [](void* arg, StrView piece) noexcept {
            static_cast<std::string*>(arg)->append(piece.view());
        },
        &text);
    answer.send(200, "text/plain; version=0.0.4; charset=utf-8", text);
}

void models(Service& s, const Request& r, Answer& answer) {
    const EngineInfo info = s.engine.info();
    const auto entry = [&](StrView id) {
        Json m = Json::object();
        m["id"] = id.str();
        m["object"] = "model";
        m["created"] = info.created_unix;
        m["owned_by"] = "tenon";
        m["max_model_len"] = info.context_tokens;
        return m;
    };
    const std::string prefix = "/v1/models/";
    if (r.path.size() > prefix.size()) {
        const std::string id = r.path.substr(prefix.size());
        bool known = id == info.served_name.view();
        for (const StrView& a : info.aliases) {
            known = known || id == a.view();
        }
        if (!known) {
            ApiError e;
            e.status = 404;
            e.type = "invalid_request_error";
            e.code = "model_not_found";
            e.message = format("model '{}' is not served here; this is '{}'", id, info.served_name);
            return answer.error(e);
        }
        return answer.json(200, dump(entry(id)));
    }
    Json j = {{"object", "list"}, {"data", Json::array()}};
    j["data"].push_back(entry(info.served_name));
    for (const StrView& a : info.aliases) {
        j["data"].push_back(entry(a));
    }
    answer.json(200, dump(j));
}

void slots(Service& s, const Request&, Answer& answer) {
    EngineStats e;
    s.engine.stats(&e);
    constexpr const char* kStates[] = {"free", "prefilling", "decoding", "paused"};
    Json j = Json::array();
    for (int i = 0; i < e.slot_count; ++i) {
        const SlotStats& t = e.slots[i];
        j.push_back({{"slot", t.slot},
                     {"state", kStates[t.state & 3]},
                     {"request", t.request},
                     {"prompt_tokens", t.prompt},
                     {"length", t.length},
                     {"emitted", t.emitted},
                     {"age_ms", static_cast<double>(t.age_us) / 1000.0}});
    }
    answer.json(200, dump(j));
}

void tokenize(Service& s, const Request& r, Answer& answer) {
    Json body;
    if (Refusal refusal = parse_json(r.body, &body)) {
        return answer.error(*refusal);
    }
    if (!body.is_object()) {
        return answer.error(bad_message("the body must be a JSON object"));
    }
    Json j = Json::object();
    std::vector<int32_t> ids;
    if (body.contains("messages")) {
        Ref<Prompt> prompt;
        const Status status = s.engine.text().render(r.body, prompt.out());
        if (!status.ok()) {
            return answer.error(from_status(status, 1));
        }
        ids.assign(prompt->ids().begin(), prompt->ids().end());
    } else {
        Fields f(body);
        std::string text;
        f.text(body.contains("prompt") ? "prompt" : "text", &text);
        if (f.failed()) {
            return answer.error(*f.take());
        }
        Ref<TokenList> list;
        const Status status = s.engine.text().encode(text, 0, list.out());
        if (!status.ok()) {
            return answer.error(from_status(status, 1));
        }
        ids.assign(list->ids().begin(), list->ids().end());
    }
    j["tokens"] = ids;
    j["count"] = ids.size();
    j["max_model_len"] = s.engine.info().context_tokens;
    answer.json(200, dump(j));
}

void detokenize(Service& s, const Request& r, Answer& answer) {
    Json body;
    if (Refusal refusal = parse_json(r.body, &body)) {
        return answer.error(*refusal);
    }
    if (!body.is_object() || !body.contains("tokens")) {
        return answer.error(bad_field("tokens", "is required"));
    }
    std::vector<int32_t> ids;
    if (Refusal refusal = read_ids(body["tokens"], "tokens", s.engine.text().info().vocab, &ids)) {
        return answer.error(*refusal);
    }
    Ref<Blob> text;
    const Status status = s.engine.text().decode(ids, 0, text.out());
    if (!status.ok()) {
        return answer.error(from_status(status, 1));
    }
    answer.json(200, dump({{"prompt", text->view().str()}}));
}

void chat(Service& s, const Request& r, Answer& a) {
    generate(Api::chat, s.engine, s.host, s.settings, r, a);
}
void completion(Service& s, const Request& r, Answer& a) {
    generate(Api::completion, s.engine, s.host, s.settings, r, a);
}

struct Route {
    const char* path;
    const char* method;
    void (*run)(Service&, const Request&, Answer&);
    bool open = false;  ///< no key needed
};

constexpr Route kRoutes[] = {
    {"/health", "GET", &health, true},
    {"/metrics", "GET", &metrics},
    {"/v1/metrics", "GET", &metrics},
    {"/v1/models", "GET", &models},
    {"/slots", "GET", &slots},
    {"/v1/chat/completions", "POST", &chat},
    {"/v1/completions", "POST", &completion},
    {"/tokenize", "POST", &tokenize},
    {"/v1/tokenize", "POST", &tokenize},
    {"/detokenize", "POST", &detokenize},
    {"/v1/detokenize", "POST", &detokenize},
};

std::string key_of(const Request& r) {
    if (const std::string* bearer = r.field("authorization")) {
        if (bearer->rfind("Bearer ", 0) == 0) {
            return bearer->substr(7);
        }
    }
    const std::string* key = r.field("x-api-key");
    return key == nullptr ? "" : *key;
}

}  // namespace

bool is_vital(const std::string& path) {
    return path == "/health" || path == "/metrics" || path == "/v1/metrics";
}

void route(Service& s, const Request& r, Answer& answer) {
    if (r.method == "OPTIONS") {
        return answer.send(204, "", "", "Access-Control-Max-Age: 600\r\n");
    }
    const std::string path = r.path.rfind("/v1/models/", 0) == 0 ? "/v1/models" : r.path;
    std::string allow;
    for (const Route& route : kRoutes) {
        if (path != route.path) {
            continue;
        }
        if (r.method != route.method) {
            allow = route.method;
            continue;
        }
        const bool open = route.open || (route.run == &metrics && s.settings.metrics_open);
        if (!open && !s.keys.allows(key_of(r))) {
            ApiError e;
            e.status = 401;
            e.type = "authentication_error";
            e.code = "invalid_api_key";
            e.message = "a valid API key is needed: Authorization: Bearer KEY";
            return answer.error(e);
        }
        const Status status = guard([&] { route.run(s, r, answer); });
        if (!status.ok()) {
            s.host.log(LogLevel::error, "openai",
                       format("{} {}: {}", r.method, r.path, status.message()));
            if (!answer.begun()) {
                answer.error(from_status(status, 1));
            }
            answer.close_after();
        }
        return;
    }
    ApiError e;
    e.type = "invalid_request_error";
    e.status = allow.empty() ? 404 : 405;
    e.code = allow.empty() ? "not_found" : "method_not_allowed";
    e.message =
        allow.empty() ? format("no route {}", r.path) : format("{} takes {}", r.path, allow);
    e.allow = allow;
    answer.error(e);
}

}  // namespace tenon::http
