// SPDX-License-Identifier: MIT
// The engine behind the front ends: one engine thread that plans and executes steps, one delivery
// thread that turns tokens into reply events. The lifecycle constructs it around a loaded model.
#pragma once

#include <memory>

#include "host/engine/engine_settings.h"
#include "tenon/engine.h"

namespace tenon {

/// Life: create -> start -> [begin_drain | drain] -> stop -> release. Main thread, unless said
/// otherwise. `submit`, `info`, `stats`, `text`, `retry_after_s`, `state`, `set_memory_level`: any
/// thread, any time.
///
/// Publish it as service "engine.engine/1" as soon as it exists: until `start` has returned,
/// `submit` answers unavailable "loading".
class EngineLoop final : public Engine {
  public:
    /// What `create` refuses of these settings for a model with these facts.
    /// errors  invalid_argument: names the field, found, expected
    static Status check(const ModelInfo& info, const EngineSettings& settings);

    /// Borrows model, host and overlays; all must outlive the loop. Everything that the engine
    /// thread needs is allocated here. `overlays` in profile order: the first is nearest to the
    /// planner.
    ///
    /// errors  invalid_argument: settings that contradict the model (names both), a spill folder
    /// that cannot be used; unavailable: a model without staging for the spill tier
    static Result<Ref<EngineLoop>> create(Model& model, EngineSettings settings, Host& host,
                                          Span<ScheduleOverlay* const> overlays);

    /// Starts both threads, warms the model up on the engine thread and returns when the engine is
    /// ready.
    ///
    /// errors  the model's warm-up error; deadline: it did not end within `warm_up_us`, and the
    ///         engine thread is still in it. The loop is then in state failed
    Status start();

    /// From now on `submit` answers unavailable "draining"; running and waiting requests go on. Any
    /// thread.
    void begin_drain() noexcept;

    /// begin_drain, then waits until every request has ended. At `deadline_us` (Host::now_us clock)
    /// what still runs ends with the error event `shutdown`.
    ///
    /// errors  deadline: requests had to be ended; the engine is idle all the same
    Status drain(int64_t deadline_us);

    /// Kept prefixes go to disk, if the settings say so. True: all that can are there. The first
    /// call starts it; call again until true, or until there is no more time. Between `drain` and
    /// `stop`.
    bool flush_spill() noexcept;

    /// Ends all requests (`shutdown`) and both threads. Idempotent; also called by release().
    void stop() noexcept;
    /// After `stop`: a thread of the disk tier waits for a disk that does not answer and may still
    /// use staging memory. The process should end without giving memory back.
    bool left_behind() const noexcept;

    EngineState state() const noexcept;

    /// Set by the memory watchdog: 0 ok, 1 soft (no admission), 2 hard (newest stream ends),
    /// 3 last (drains, and every stream ends with `memory`; final), engine.md 3.3.
    void set_memory_level(uint32_t level) noexcept;

    EngineInfo info() noexcept override;
    TextCodec& text() noexcept override;
    Status submit(const RequestDesc& request, ReplySink** out) noexcept override;
    void stats(EngineStats* out) noexcept override;
    uint64_t cache_salt(StrView key, StrView wish) noexcept override;
    Status render(StrView request_json, uint64_t cache_salt, Prompt** out) noexcept override;
    int32_t retry_after_s() noexcept override;

    void* query(StrView facet) noexcept override;
    void release() noexcept override;

  private:
    struct Impl;
    explicit EngineLoop(std::unique_ptr<Impl> impl);
    ~EngineLoop();

    std::unique_ptr<Impl> impl_;
};

}  // namespace tenon
