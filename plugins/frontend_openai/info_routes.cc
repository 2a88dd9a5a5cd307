// SPDX-License-Identifier: MIT
// GET /v1/models, /health, /metrics, /slots: figures that never wait for the engine's thread.
#include <algorithm>
#include <iterator>

#include "api.h"
#include "exchange.h"
#include "json_text.h"

namespace tenon::http {

namespace {

// A running engine beats with every step; the longest step is one slice of a prompt.
constexpr int64_t kStallUs = 60'000'000;

std::string quoted(std::string_view text) {
    std::string out;
    append_json_string(out, text);
    return out;
}

std::string model_entry(const EngineInfo& info, StrView id) {
    return format(R"({"id":{},"object":"model","created":{},"owned_by":"tenon","root":{},)"
                  R"("max_model_len":{}})",
                  quoted(id), info.created_unix, quoted(info.served_name), info.context_tokens);
}

void models(Api& api, Exchange& exchange) {
    if (Refusal refusal = check_ready(api)) {
        return exchange.fail(*refusal);
    }
    const EngineInfo info = api.engine.info();
    exchange.reply_json(
        format(R"({"object":"list","data":[{}]})", model_entry(info, info.served_name)));
}

void one_model(Api& api, Exchange& exchange) {
    if (Refusal refusal = check_ready(api)) {
        return exchange.fail(*refusal);
    }
    const EngineInfo info = api.engine.info();
    const StrView asked(exchange.rest());
    bool is_known = asked == info.served_name;
    for (const StrView alias : info.aliases) {
        is_known |= asked == alias;
    }
    if (!is_known) {
        ApiError e = bad_message(format("no model '{}' here; this server has '{}'",
                                        asked.str().substr(0, 200), info.served_name),
                                 404, "model_not_found");
        e.param = "model";
        return exchange.fail(e);
    }
    exchange.reply_json(model_entry(info, asked));
}

struct Health {
    int status;
    const char* text;
};

Health health_of(const EngineStats& stats, bool is_draining) {
    if (stats.state == EngineState::failed) {
        return {503, "failed"};
    }
    if (is_draining || stats.state == EngineState::draining) {
        return {503, "draining"};
    }
    if (stats.state == EngineState::loading) {
        return {503, "loading"};
    }
    if (stats.running + stats.waiting > 0 && stats.last_step_age_us > kStallUs) {
        return {503, "stalled"};
    }
    return {200, "ok"};
}

std::string seconds(int64_t us) {
    return format("{}", static_cast<double>(us) * 1e-6);
}

std::string details(const Api& api, const EngineStats& s) {
    const EngineInfo info = api.engine.info();
    std::string out =
        format(R"(,"model":{},"version":{},"context_length":{},"busy":{},"requests_running":{},)"
               R"("requests_waiting":{},"requests_total":{},"prompt_tokens_total":{},)"
               R"("completion_tokens_total":{},"cached_tokens_total":{},)",
               quoted(info.served_name), quoted(info.version), info.context_tokens,
               s.running + s.waiting > 0, s.running, s.waiting, s.requests_total,
               s.prompt_tokens_total, s.completion_tokens_total, s.cached_tokens_total);
    out += format(R"("prefill_seconds_total":{},"decode_seconds_total":{},"rounds_total":{},)"
                  R"("drafted_total":{},"accepted_total":{},"last_step_age_seconds":{},)",
                  seconds(s.prefill_us_total), seconds(s.decode_us_total), s.rounds_total,
                  s.drafted_total, s.accepted_total, seconds(s.last_step_age_us));
    out += format(
        R"("streams":{"decoding":{},"prefilling":{},"max":{}},"pages":{"total":{},"free":{}},)"
        R"("connections":{})",
        s.decoding, s.prefilling, info.slots, s.pages_total, s.pages_free, api.http.watch.live());
    return out;
}

void health(Api& api, Exchange& exchange) {
    EngineStats stats;
    api.engine.stats(&stats);
    const Health state = health_of(stats, api.http.is_draining.load());
    std::string body = format(R"({"status":"{}")", state.text);
    if (exchange.is_trusted() && stats.state != EngineState::loading) {
        body += details(api, stats);
    }
    body += "}";
    exchange.reply(state.status, "application/json", body);
}

void metrics(Api& api, Exchange& exchange) {
    std::string text;
    api.http.host.metrics_text(
        [](void* arg, StrView piece) noexcept {
            static_cast<std::string*>(arg)->append(piece.view());
        },
        &text);
    exchange.reply(200, "text/plain; version=0.0.4; charset=utf-8", text);
}

void slots(Api& api, Exchange& exchange) {
    static constexpr const char* kStates[] = {"free", "prefilling", "decoding", "paused"};
    EngineStats stats;
    api.engine.stats(&stats);
    std::string body = "[";
    constexpr int32_t kMaxSlots =
        static_cast<int32_t>(sizeof(stats.slots) / sizeof(stats.slots[0]));
    for (int32_t i = 0; i < std::min(stats.slot_count, kMaxSlots); ++i) {
        const SlotStats& s = stats.slots[i];
        const char* state = s.state < std::size(kStates) ? kStates[s.state] : "unknown";
        body += i == 0 ? "" : ",";
        body += format(R"({"id":{},"state":"{}","request":{},"length":{},"prompt_tokens":{},)"
                       R"("completion_tokens":{},"age_seconds":{},)",
                       s.slot, state, s.request, s.length, s.prompt, s.emitted, seconds(s.age_us));
        body += format(R"("reply":{},"priority":"{}","max_tokens":{},"cached_tokens":{},)"
                       R"("queue_seconds":{},"prefill_seconds":{},"decode_seconds":{},)"
                       R"("rounds":{},"drafted":{},"accepted":{}})",
                       s.reply, s.priority == 0 ? "foreground" : "background", s.max_new, s.cached,
                       seconds(s.queue_us), seconds(s.prefill_us), seconds(s.decode_us), s.rounds,
                       s.drafted, s.accepted);
    }
    exchange.reply_json(body + "]");
}

}  // namespace

void add_info_routes(Router& router, Api& api) {
    router.add({"GET", "/v1/models", "models", Access::key, false,
                [&api](Exchange& x) { models(api, x); }});
    router.add({"GET", "/v1/models/*", "models", Access::key, false,
                [&api](Exchange& x) { one_model(api, x); }});
    router.add(
        {"GET", "/health", "health", Access::open, true, [&api](Exchange& x) { health(api, x); }});
    for (const char* path : {"/metrics", "/v1/metrics"}) {
        router.add({"GET", path, "metrics", Access::metrics, true,
                    [&api](Exchange& x) { metrics(api, x); }});
    }
    router.add(
        {"GET", "/slots", "slots", Access::key, true, [&api](Exchange& x) { slots(api, x); }});
}

}  // namespace tenon::http
