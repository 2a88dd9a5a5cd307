// SPDX-License-Identifier: MIT
// Which path does what, and what may be asked without a key.
#pragma once

#include "keys.h"
#include "message.h"
#include "tenon/engine.h"

namespace tenon::http {

/// What a connection needs to answer. Borrowed; outlives all connections.
struct Service {
    Host& host;
    Engine& engine;
    const Settings& settings;
    Keys& keys;
};

/// True for the paths that are answered beyond max_connections too.
bool is_vital(const std::string& path);

/// Answers one request; its body has been read. Never throws what a client sent.
void route(Service& service, const Request& request, Answer& answer);

}  // namespace tenon::http
