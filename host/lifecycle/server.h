// SPDX-License-Identifier: MIT
// Serving: engine, front ends, signals and the memory watchdog around a loaded deployment.
#pragma once

#include "host/lifecycle/deployment.h"

namespace tenon {

/// Blocks SIGTERM, SIGINT, SIGHUP and SIGPIPE in this thread and all later ones; call before any
/// thread starts.
void block_signals();

/// Warms up, starts front ends, serves until a signal or a failure, drains. Main thread. Returns
/// the exit code.
int serve(Deployment& deployment);

}  // namespace tenon
