// SPDX-License-Identifier: MIT
// One round of the engine: gather inputs, outline, collect, finish, submit. No thread of its own.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "host/engine/delivery.h"
#include "host/engine/plan_log.h"
#include "host/engine/plan_mirror.h"
#include "host/engine/planner.h"
#include "host/engine/seq_lock.h"
#include "host/engine/spill_tier.h"
#include "host/engine/submit_queue.h"
#include "tenon/plan_codec.h"

namespace tenon::engine {

/// Sees what a replay needs, in order: outline inputs, finish inputs, encoded plans, and between a
/// plan and the next one its result. Engine thread.
class PlannerRecorder {
  public:
    virtual ~PlannerRecorder() = default;
    virtual void on_outline(const OutlineInput& input) = 0;
    virtual void on_finish(const FinishInput& input) = 0;
    virtual void on_plan(Span<const uint8_t> message) = 0;
    virtual void on_result(const StepResult&) {}
    /// Before the plan that takes it: what an import finds in the staging area of its job.
    virtual void on_import(uint64_t, Span<const uint8_t>) {}
};

struct CoreParts {
    Model& model;
    Host& host;
    Delivery& delivery;
    EngineMetrics& metrics;
    SubmitQueue& queue;
    PlannerRecorder* recorder = nullptr;
    SpillTier* spill = nullptr;  ///< null: nothing goes to disk
};

enum class Round {
    worked,   ///< a step was submitted or collected
    idle,     ///< nothing to do until an event or next_due_us
    starved,  ///< the delivery queue is full; it signals when it has room
};

/// Engine thread (or a test, with a fake clock). Allocates nothing after construction unless it
/// fails.
class EngineCore {
  public:
    EngineCore(const CoreParts& parts, const PlannerConfig& planner,
               Span<ScheduleOverlay* const> overlays);
    ~EngineCore();

    /// Copies the measured costs; before the first round.
    void set_costs(const CostTable& costs) { planner_.set_costs(costs); }

    /// errors  engine-fatal; the caller then calls `fail` and runs no further round
    Status round(Round* out);

    /// Ends every reply with this cause, queued ones too. The queue must be closed.
    void fail(EndCause cause);

    /// Collects the step in flight and drops its results. The model is at rest afterwards.
    void settle() noexcept;

    /// From the next round on everything is cancelled; the first reason stays. Any thread.
    void cancel_all(CancelReason why) noexcept {
        CancelReason none = CancelReason::none;
        cancel_all_.compare_exchange_strong(none, why, std::memory_order_acq_rel);
    }
    /// From the next round on kept cuts go to disk, until `flushed`. Any thread.
    void flush() noexcept { flush_.store(true, std::memory_order_release); }
    bool flushed() const noexcept { return flushed_.load(std::memory_order_acquire); }
    void set_memory_level(uint32_t level) noexcept {
        memory_level_.store(level, std::memory_order_release);
    }
    uint32_t memory_level() const noexcept { return memory_level_.load(std::memory_order_acquire); }

    int64_t next_due_us() const { return planner_.next_due_us(); }
    bool idle() const { return planner_.idle() && !in_flight_ && queue_.empty(); }
    /// Replies that were submitted and have not ended; counted up by `submit`, down by the engine.
    std::atomic<int64_t>& active() { return active_; }
    /// Mean time that a reply holds its slot, µs; 0 = none ended yet. Any thread.
    int64_t mean_service_us() const { return mean_service_us_.load(std::memory_order_relaxed); }
    EngineStats stats() const { return stats_.read(); }
    const Planner& planner() const { return planner_; }
    const PlanMirror& mirror() const { return mirror_; }
    uint64_t steps() const { return step_; }
    const PlanLog& plans() const { return plans_; }
    /// Cause of the error that `round` returned.
    static EndCause cause_of(const Status& status, int32_t world);

  private:
    struct Flight {  // what the step in flight does for a slot
        Reply* reply = nullptr;
        uint32_t generation = 0;
        int32_t rows = 0, accept_max = 0, drafted = 0;
        int32_t top = -1;  // logprobs wanted
        int32_t skip = 0;  // leading emitted tokens that the reply has already
    };

    void gather(OutlineInput* input);
    void take_effects();
    void end_reply(Reply& reply, EndCause cause, ReplyEnd how);
    void drop_ended();
    Status collect();
    Status read_window(const WindowResult& window, const StepResult& result);
    Status read_drafts(const StepResult& result);
    Status check_failures(int64_t now_us);
    void take_tokens(Reply& reply, const Flight& flight, const WindowResult& window,
                     const StepResult& result, SlotOutcome* outcome);
    Status submit(const StepPlan& plan);
    void record_imports(const StepPlan& plan);
    void push_spill();
    void publish();

    Model& model_;
    Host& host_;
    Delivery& delivery_;
    EngineMetrics& metrics_;
    SubmitQueue& queue_;
    PlannerRecorder* recorder_;
    ModelStaging* staging_;  // null: nothing is imported or exported
    SpillTier* spill_;
    const ModelInfo info_;
    const PlannerConfig config_;
    Planner planner_;
    PlanMirror mirror_;
    plan::Decoder decoder_;
    PlanLog plans_;

    std::vector<Request*> requests_;  // with a reply that has not ended; by arrival
    std::vector<PlannerEvent> events_;
    std::vector<Flight> flights_;  // by slot
    std::vector<SlotOutcome> outcomes_;
    std::vector<Reply*> ended_;  // in this round; planner and flights may still name them

    // Own copy of the step's result: the model's spans live only until its next collect.
    std::vector<WindowResult> windows_;
    std::vector<DraftResult> drafts_;
    std::vector<ChunkResult> chunks_;
    std::vector<JobResult> jobs_;
    std::vector<SpillEvent> spill_events_;
    std::vector<int32_t> tokens_;
    StepResult result_;
    StepPlan plan_;  // the decoded copy that the model executes

    static constexpr size_t kBuffers = 4;
    std::vector<uint64_t> buffers_[kBuffers];
    bool in_flight_ = false;
    uint64_t step_ = 0, digest_ = 0;
    uint64_t chain_ = 0, chain_step_ = 0;
    uint64_t next_arrival_ = 1;
    int32_t widest_top_ = -1;  // most logprobs that any reply has asked for

    static constexpr size_t kFailureWindow = 8;
    int64_t failures_us_[kFailureWindow] = {};  // times of the last slot failures, as a ring
    uint64_t failures_ = 0;
    bool failed_now_ = false;
    EndCause last_failure_ = EndCause::storage;

    std::atomic<CancelReason> cancel_all_{CancelReason::none};
    std::atomic<bool> flush_{false}, flushed_{false};
    bool flush_seen_ = false;
    int64_t spill_hits_ = 0, spill_misses_ = 0;
    std::atomic<uint32_t> memory_level_{0};
    std::atomic<int64_t> active_{0};
    std::atomic<int64_t> mean_service_us_{0};
    EngineStats totals_;
    SeqLock<EngineStats> stats_;
};

}  // namespace tenon::engine
