// SPDX-License-Identifier: MIT
// A deployment with a running engine and no front end, for chat and bench.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "host/engine/engine_loop.h"
#include "host/lifecycle/deployment.h"
#include "host/log/log.h"

namespace tenon::cli {

/// Thread: main. The engine ends before the deployment.
class LocalEngine {
  public:
    LocalEngine() : deployment_(host_) {}
    ~LocalEngine() {
        if (warm_up_hangs_) {  // its thread cannot be joined
            log_flush();
            static_cast<void>(std::fflush(nullptr));
            std::_Exit(exit_code_of(Code::deadline, kExitUsage));
        }
        if (engine_) {
            engine_->stop();
        }
    }
    LocalEngine(const LocalEngine&) = delete;
    LocalEngine& operator=(const LocalEngine&) = delete;

    Status open(const std::string& profile, const std::vector<std::string>& overrides) {
        Deployment& d = deployment_;
        TENON_TRY(d.open(profile, overrides));
        TENON_TRY(d.require_plugins());
        TENON_TRY(d.create());
        TENON_TRY(d.plan());
        TENON_TRY(d.check_fit());
        TENON_TRY(d.load());
        loaded_ = true;
        Status status = start(d.engine_settings(), d.schedule_overlays());
        code_ = exit_code_of(status.code(), kExitUsage);
        return status;
    }
    /// Ends the engine and starts another one around the same model.
    Status restart(EngineSettings settings, Span<ScheduleOverlay* const> overlays) {
        engine_->stop();
        engine_.reset();
        return start(std::move(settings), overlays);
    }
    /// Of the failed `open`.
    int exit_code() const { return loaded_ ? code_ : deployment_.exit_code(); }
    Deployment& deployment() { return deployment_; }
    EngineLoop& engine() { return *engine_; }
    HostServices& host() { return host_; }

  private:
    Status start(EngineSettings settings, Span<ScheduleOverlay* const> overlays) {
        auto made = EngineLoop::create(*deployment_.model(), std::move(settings), host_, overlays);
        if (!made.ok()) {
            return made.take_status();
        }
        engine_ = std::move(*made);
        Status status = engine_->start();
        warm_up_hangs_ = status.code() == Code::deadline;
        return status;
    }

    HostServices host_;
    Deployment deployment_;
    Ref<EngineLoop> engine_;
    bool loaded_ = false;
    bool warm_up_hangs_ = false;
    int code_ = kExitOk;
};

}  // namespace tenon::cli
