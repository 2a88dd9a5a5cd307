// SPDX-License-Identifier: MIT
// POST /v1/chat/completions and /v1/completions: request fields, submit, and the reply streamed or
// whole.
#pragma once

#include "json_in.h"
#include "message.h"
#include "tenon/engine.h"

namespace tenon::http {

enum class Api { chat, completion };

/// Handles one request whose body has been read. Thread: the connection's.
void generate(Api api, Engine& engine, Host& host, const Settings& settings, const Request& request,
              Answer& answer);

}  // namespace tenon::http
