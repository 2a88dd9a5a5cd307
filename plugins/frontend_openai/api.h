// SPDX-License-Identifier: MIT
// What the API's handlers share, and the entry points by which their routes are added.
#pragma once

#include <string>

#include "api_error.h"
#include "json_in.h"
#include "server.h"
#include "tenon/engine.h"

namespace tenon::http {

struct Api {
    ServerContext& http;
    Engine& engine;

    int32_t retry_after_s() const { return engine.retry_after_s(); }
};

/// Parses the body and asks that it is an object.
Refusal parse_object(const std::string& body, Json* out);

/// 503 unless the engine takes requests.
Refusal check_ready(const Api& api);

/// The `model` member: absent, the served name or an alias, else 404; `out` is what replies name.
Refusal read_model(const Api& api, const Json& body, std::string* out);

/// The API object must outlive the router.
void add_generate_routes(Router& router,
                         Api& api);              ///< chat and text completions
void add_text_routes(Router& router, Api& api);  ///< tokenize, detokenize
void add_info_routes(Router& router,
                     Api& api);  ///< models, health, metrics, slots

}  // namespace tenon::http
