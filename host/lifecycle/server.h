// SPDX-License-Identifier: MIT
// Serving: engine, front ends, signals and the memory watchdog around a loaded deployment.
#pragma once

#include "host/lifecycle/deployment.h"
#include "host/lifecycle/signals.h"

namespace tenon {

/// Warms up, starts front ends, serves until a signal or a failure, drains. Main thread.
///
/// recorder   sees every step; null = none
/// exit_code  what the process ends with, also when the Status is ok (an engine failure is logged)
/// errors     what kept the server from becoming ready; everything has been undone
Status serve(Deployment& deployment, SignalThread& signals, engine::PlannerRecorder* recorder,
             int* exit_code);

}  // namespace tenon
