// SPDX-License-Identifier: MIT
// The listener: one thread a connection, limits, drain.
#pragma once

#include "settings.h"
#include "tenon/engine.h"

namespace tenon::http {

/// The front end over an engine; both outlive it.
Status make_frontend(Host& host, Engine& engine, Settings settings, Frontend** out);

}  // namespace tenon::http
