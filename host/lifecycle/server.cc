// SPDX-License-Identifier: MIT
// The main thread of `tenon serve`: waits for signals, reads memory, acts on failures.
#include "host/lifecycle/server.h"

#include <signal.h>
#include <time.h>

#include <atomic>

#include "host/engine/engine_loop.h"
#include "host/log/log.h"
#include "host/profile/units.h"
#include "tenon/engine.h"

namespace tenon {
namespace {

constexpr int64_t kTick_us = 250'000;

sigset_t our_signals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    return set;
}

/// The next signal within `timeout_us`, or 0.
int next_signal(int64_t timeout_us) {
    const sigset_t set = our_signals();
    timespec ts{timeout_us / 1'000'000, (timeout_us % 1'000'000) * 1000};
    const int signal = ::sigtimedwait(&set, nullptr, &ts);
    return signal > 0 ? signal : 0;
}

/// Levels of MemAvailable (engine.md 3.3): 0 ok, 1 soft, 2 hard twice in a row, 3 last.
class MemoryWatch {
  public:
    explicit MemoryWatch(const OptionBag& bag)
        : soft_(bag.integer("soft")), hard_(bag.integer("hard")), last_(bag.integer("last")) {}
    uint32_t read() {
        const int64_t available = memory_available();
        available_ = available;
        if (available == 0) {
            return 0;
        }
        if (available < last_) {
            return 3;
        }
        hard_readings_ = available < hard_ ? hard_readings_ + 1 : 0;
        return hard_readings_ >= 2 ? 2 : available < soft_ ? 1 : 0;
    }
    int64_t available() const { return available_; }

  private:
    int64_t soft_, hard_, last_;
    int64_t available_ = 0;
    int hard_readings_ = 0;
};

/// Everything of one run of `serve`; drains in the right order.
class Server {
  public:
    explicit Server(Deployment& d) : d_(d), watch_(d.profile().bag("memory")) {}

    int run() {
        const Status status = start();
        if (!status.ok()) {
            log_line(LogLevel::error, "serve", status.message());
            stop(0);
            return code_;
        }
        loop();
        return code_;
    }

  private:
    Status start() {
        HostServices& host = d_.host();
        EngineSettings settings = d_.engine_settings();
        settings.on_failure = [this](const EngineFailure& failure) {
            failure_code_.store(failure.exit_code, std::memory_order_release);
        };
        code_ = kExitInternal;
        auto made =
            EngineLoop::create(*d_.model(), std::move(settings), host, d_.schedule_overlays());
        if (!made.ok()) {
            return made.take_status();
        }
        engine_ = std::move(*made);
        host.publish(Engine::kFacet, engine_.get());
        code_ = kExitPlugin;
        for (const ProfileSection* s : d_.profile().all("frontend")) {
            Object* object = nullptr;
            TENON_TRY(d_.create_component(*s, &object));
            auto* frontend = facet_of<Frontend>(object);
            if (frontend == nullptr) {
                return error(Code::unavailable, "{}: does not offer the facet {}", s->bag.section(),
                             Frontend::kFacet);
            }
            frontends_.push_back(frontend);
        }
        code_ = kExitUsage;
        for (Frontend* f : frontends_) {
            TENON_TRY(f->start());
        }
        code_ = kExitData;
        TENON_TRY_CTX(engine_->start(), "warm-up");
        code_ = kExitOk;
        for (Frontend* f : frontends_) {
            if (!f->url().empty()) {
                log_line(LogLevel::info, "serve",
                         format("ready url={} model={}", f->url(), engine_->info().served_name));
            }
        }
        return {};
    }

    void loop() {
        uint32_t level = 0;
        while (true) {
            const int signal = next_signal(kTick_us);
            if (const int failed = failure_code_.load(std::memory_order_acquire)) {
                code_ = failed;
                // The engine has queued an error event to every stream; give front ends a moment to
                // send it.
                stop(1'000'000);
                return;
            }
            if (signal == SIGHUP) {
                log_reopen();
            } else if (signal != 0) {
                stop(d_.profile().bag("engine").integer("drain"));
                return;
            }
            const uint32_t now = watch_.read();
            if (now == 3) {
                log_line(LogLevel::error, "memory",
                         format("available={} is below memory.last; ending",
                                size_text(watch_.available())));
                code_ = kExitInternal;
                stop(0);
                return;
            }
            if (now != level) {
                log_line(now > level ? LogLevel::warn : LogLevel::info, "memory",
                         format("level={} available={}", now, size_text(watch_.available())));
                engine_->set_memory_level(now);
                level = now;
            }
        }
    }

    void stop(int64_t drain_us) {
        HostServices& host = d_.host();
        const int64_t deadline = host.now_us() + drain_us;
        if (engine_) {
            engine_->begin_drain();
            if (drain_us > 0) {
                log_line(LogLevel::info, "serve",
                         format("draining seconds={}", drain_us / 1'000'000));
                wait_idle(deadline);
            }
            const Status drained = engine_->drain(host.now_us());
            if (!drained.ok()) {
                log_line(LogLevel::warn, "serve", drained.message());
            }
        }
        host.begin_stopping();
        for (Frontend* f : frontends_) {
            const Status status = f->drain(host.now_us() + 1'000'000);
            if (!status.ok()) {
                log_line(LogLevel::warn, "serve", status.message());
            }
        }
        if (engine_) {
            engine_->stop();
        }
        host.publish(Engine::kFacet, nullptr);
        d_.release_last(frontends_.size());
        frontends_.clear();
        engine_.reset();
        log_line(LogLevel::info, "serve", format("ended exit_code={}", code_));
        log_flush();
    }

    /// Until no request is left, the deadline, or a second signal.
    void wait_idle(int64_t deadline) {
        while (d_.host().now_us() < deadline) {
            EngineStats stats;
            engine_->stats(&stats);
            if (stats.running == 0 && stats.waiting == 0) {
                return;
            }
            const int signal = next_signal(50'000);
            if (signal == SIGTERM || signal == SIGINT) {
                return;
            }
        }
    }

    Deployment& d_;
    MemoryWatch watch_;
    Ref<EngineLoop> engine_;
    std::vector<Frontend*> frontends_;
    std::atomic<int> failure_code_{0};
    int code_ = kExitOk;
};

}  // namespace

void block_signals() {
    sigset_t set = our_signals();
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
}

int serve(Deployment& deployment) {
    return Server(deployment).run();
}

}  // namespace tenon
