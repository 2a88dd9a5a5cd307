// SPDX-License-Identifier: MIT
// The front end `openai`: a listener with the OpenAI routes on it.
#pragma once

#include "settings.h"
#include "tenon/engine.h"

namespace tenon::http {

/// The front end over an engine; host and engine outlive it. Nothing listens before `start`.
Result<Ref<Frontend>> make_frontend(Host& host, Engine& engine, Settings settings);

}  // namespace tenon::http
