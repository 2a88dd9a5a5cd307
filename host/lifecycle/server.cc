// SPDX-License-Identifier: MIT
// The main thread of `tenon serve`: waits for signals, reads memory, acts on failures.
#include "host/lifecycle/server.h"

#include <atomic>
#include <cstdlib>
#include <utility>

#include "host/engine/engine_loop.h"
#include "host/lifecycle/heap_trim.h"
#include "host/lifecycle/memory_watch.h"
#include "host/log/log.h"
#include "host/profile/units.h"
#include "tenon/engine.h"

namespace tenon {
namespace {

constexpr int64_t kTickUs = 250'000;
constexpr int64_t kIdlePollUs = 50'000;
// After the engine is idle, front ends get this long to send what is left and close.
constexpr int64_t kCloseUs = 1'000'000;
// A round that takes longer is no slow step but a stuck one: a prompt chunk of a large model on a
// slow CPU takes under a minute.
constexpr int64_t kStallUs = 180'000'000;

MemoryLevels levels_of(const OptionBag& bag) {
    return {bag.integer("soft"), bag.integer("hard"), bag.integer("last")};
}

/// Everything of one run of `serve`; ends in the right order.
class Server {
  public:
    Server(Deployment& d, SignalThread& signals, engine::PlannerRecorder* recorder)
        : d_(d),
          signals_(signals),
          recorder_(recorder),
          watch_(levels_of(d.profile().bag("memory"))) {}

    Status run(int* exit_code) {
        Status status = start();
        if (status.ok()) {
            signals_.take_over();
            loop();
        } else if (warm_up_hangs_) {
            end_as_it_stands(status.message(), code_);  // its thread cannot be joined
        } else {
            stop(0);
        }
        log_line(LogLevel::info, "serve", format("ended exit_code={}", code_));
        log_flush();
        *exit_code = code_;
        return status;
    }

  private:
    /// As TENON_TRY, keeping the exit code that belongs to the error.
    Status keep_code(Status status) {
        if (!status.ok()) {
            code_ = exit_code_of(status.code(), kExitUsage);
        }
        return status;
    }

    Status start() {
        HostServices& host = d_.host();
        if (d_.profile().all("frontend").empty()) {
            return keep_code(
                error(Code::invalid_argument,
                      "{}: serving needs a front end: [[frontend]] plugin = \"openai\"",
                      d_.profile().shown));
        }
        EngineSettings settings = d_.engine_settings();
        settings.recorder = recorder_;
        settings.on_failure = [this](const EngineFailure& failure) {
            failure_code_.store(failure.exit_code, std::memory_order_release);
            signals_.wake();
        };
        auto made =
            EngineLoop::create(*d_.model(), std::move(settings), host, d_.schedule_overlays());
        if (!made.ok()) {
            return keep_code(made.status().with_context(d_.profile().shown));
        }
        engine_ = std::move(*made);
        host.publish(Engine::kFacet, engine_.get());
        TENON_TRY(start_frontends());
        // Listening begins before the warm-up: until it ends, requests get 503 and /health says so.
        Status warmed = engine_->start();
        warm_up_hangs_ = warmed.code() == Code::deadline;
        TENON_TRY(keep_code(warmed.with_context("warm-up")));
        for (Frontend* f : frontends_) {
            if (!f->url().empty()) {
                log_line(LogLevel::info, "serve",
                         format("ready url={} model={}", f->url(), engine_->info().served_name));
            }
        }
        return {};
    }

    Status start_frontends() {
        for (const ProfileSection* s : d_.profile().all("frontend")) {
            Object* object = nullptr;
            Status status = d_.create_component(*s, &object);
            if (!status.ok()) {
                code_ = d_.exit_code();
                return status;
            }
            ++created_;
            auto* frontend = facet_of<Frontend>(object);
            if (frontend == nullptr) {
                return keep_code(error(Code::unavailable, "{}: {}: does not offer the facet {}",
                                       d_.profile().shown, s->bag.section(), Frontend::kFacet));
            }
            frontends_.push_back(frontend);
        }
        for (Frontend* f : frontends_) {
            TENON_TRY(keep_code(f->start()));
        }
        return {};
    }

    void loop() {
        uint32_t level = 0;
        watch_.ready(memory_resident());
        while (true) {
            const SignalThread::Event event = signals_.wait(kTickUs);
            if (const int failed = failure_code_.load(std::memory_order_acquire)) {
                code_ = failed;
                // Every stream has an error event queued; front ends get a moment to send it.
                stop(kCloseUs);
                return;
            }
            if (event.reopen) {
                log_reopen();
                log_line(LogLevel::info, "log", "reopened");
            }
            if (event.ending > 0) {
                stop(d_.profile().bag("engine").integer("drain"));
                return;
            }
            check_stall();
            if (const int64_t free_bytes = trim_.tick(); free_bytes > 0) {
                log_line(LogLevel::debug, "memory",
                         format("trimmed the heap, free={}", size_text(free_bytes)));
            }
            if (!check_memory(&level)) {
                return;
            }
        }
    }

    /// False: memory is below the last level, and everything has been ended.
    bool check_memory(uint32_t* level) {
        const int64_t available = memory_available();
        const MemoryWatch::Reading reading = watch_.read(available, memory_resident());
        if (reading.level == 3) {
            log_line(LogLevel::error, "memory",
                     format("available={} is below memory.last; ending; others: {}",
                            size_text(available), largest_others(3)));
            code_ = kExitInternal;
            engine_->set_memory_level(reading.level);  // streams are told why
            stop(0);
            return false;
        }
        if (reading.foreign && !std::exchange(named_others_, true)) {
            log_line(LogLevel::warn, "memory",
                     format("available={} is below memory.hard, but this process has not grown; no "
                            "stream ends for it; others: {}",
                            size_text(available), largest_others(3)));
        }
        named_others_ = named_others_ && reading.foreign;
        if (reading.level != *level) {
            log_line(reading.level > *level ? LogLevel::warn : LogLevel::info, "memory",
                     format("level={} available={}", reading.level, size_text(available)));
            engine_->set_memory_level(reading.level);
            *level = reading.level;
        }
        return true;
    }

    /// A stuck engine thread cannot be joined, so the process ends as it stands.
    void check_stall() const {
        EngineStats stats;
        engine_->stats(&stats);
        if (stats.running + stats.waiting == 0 || stats.last_step_age_us < kStallUs) {
            return;
        }
        end_as_it_stands(
            format("stalled: no step ended for {} s", stats.last_step_age_us / 1'000'000),
            kExitInternal);
    }

    /// Where a thread cannot be joined, and may still use memory.
    [[noreturn]] static void end_as_it_stands(StrView why, int exit_code) {
        log_line(LogLevel::error, "serve", format("{}; ending exit_code={}", why, exit_code));
        log_flush();
        std::_Exit(exit_code);
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
            flush_spill(deadline);
        }
        host.begin_stopping();
        for (Frontend* f : frontends_) {
            const Status status = f->drain(host.now_us() + kCloseUs);
            if (!status.ok()) {
                log_line(LogLevel::warn, "serve", status.message());
            }
        }
        if (engine_) {
            engine_->stop();
        }
        host.publish(Engine::kFacet, nullptr);
        if (const int failed = failure_code_.load(std::memory_order_acquire)) {
            code_ = failed;  // also when it failed while draining
        }
        if (engine_ && engine_->left_behind()) {
            end_as_it_stands("the disk of kv_spill.dir does not answer", code_);
        }
        frontends_.clear();
        d_.release_last(created_);
        engine_.reset();
    }

    /// Kept prefixes go to disk, until the deadline or a second signal.
    void flush_spill(int64_t deadline) {
        while (d_.host().now_us() < deadline && !engine_->flush_spill()) {
            if (signals_.wait(kIdlePollUs).ending >= 2) {
                return;
            }
        }
    }

    /// Until no request is left, the deadline, or a second signal.
    void wait_idle(int64_t deadline) {
        while (d_.host().now_us() < deadline) {
            EngineStats stats;
            engine_->stats(&stats);
            if ((stats.running == 0 && stats.waiting == 0) ||
                signals_.wait(kIdlePollUs).ending >= 2) {
                return;
            }
        }
    }

    Deployment& d_;
    SignalThread& signals_;
    engine::PlannerRecorder* recorder_;
    MemoryWatch watch_;
    HeapTrim trim_;
    bool named_others_ = false;
    bool warm_up_hangs_ = false;
    Ref<EngineLoop> engine_;
    std::vector<Frontend*> frontends_;
    size_t created_ = 0;
    std::atomic<int> failure_code_{0};
    int code_ = kExitOk;
};

}  // namespace

Status serve(Deployment& deployment, SignalThread& signals, engine::PlannerRecorder* recorder,
             int* exit_code) {
    return Server(deployment, signals, recorder).run(exit_code);
}

}  // namespace tenon
