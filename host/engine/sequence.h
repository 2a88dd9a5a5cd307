// SPDX-License-Identifier: MIT
// What goes into the planner and what comes out: plain values, so that recorded inputs give equal
// plans.
#pragma once

#include "host/engine/prefix_index.h"
#include "host/engine/spill_jobs.h"
#include "tenon/engine.h"
#include "tenon/plan.h"

namespace tenon::engine {

constexpr int32_t kMaxSlots = 48;
constexpr int32_t kMaxReplies = 8;

/// One reply as the planner sees it; immutable once submitted. Spans live as long as the sequence
/// does.
struct SequenceSpec {
    uint64_t request = 0;
    uint64_t arrival_seq = 0;  ///< strictly increasing in queue order; set when the engine takes it
    int64_t arrival_us = 0;
    int64_t deadline_us = 0;  ///< absolute; 0 = none
    int64_t max_new = 1;      ///< n + max_new <= context
    Span<const int32_t> prompt;
    plan::Sampler sampler;  ///< slot, generation and offsets are filled in by the planner
    Span<const plan::Pair> bias;
    Span<const plan::Pair> counts;  ///< only with penalties: ids of the prompt
    Span<const int32_t> stops;
    int32_t reply = 0;
    bool background = false;
    bool drafts_allowed = false;

    // Prefix reuse.
    Span<const Border> borders;    ///< ascending
    Span<const ImageSpan> images;  ///< ascending, inside [0, n - 1)
    uint64_t cache_salt = 0;
    bool keeps_reasoning = false;  ///< the next turn repeats the reply token for token
    bool no_prefix = false;        ///< neither uses nor leaves cuts
    bool strict_prefix = false;

    /// Rows of chunks: all prompt tokens but the last, which is the first decode row.
    int64_t prompt_rows() const { return static_cast<int64_t>(prompt.size) - 1; }
    /// Positions whose state a sequence can ever hold: the last emitted token is never computed.
    int64_t positions_needed() const { return prompt_rows() + max_new; }
};

/// flush: from now on every kept cut goes to disk, whether its room is needed or not.
enum class PlannerEventKind : uint32_t { submit, cancel, sink_blocked, sink_free, flush };

struct PlannerEvent {
    PlannerEventKind kind = PlannerEventKind::submit;
    CancelReason reason = CancelReason::none;
    uint64_t request = 0;
    const SequenceSpec* spec = nullptr;  ///< submit only
};

/// Everything that depends on time or on other threads, in the order in which it was noticed.
struct OutlineInput {
    int64_t now_us = 0;
    uint32_t memory_level = 0;
    bool may_decode = true;  ///< the delivery queue has room for one worst-case step
    Span<const PlannerEvent> events;
    Span<const SpillEvent> spill;  ///< answers of the spill threads
};

/// One window's outcome after the text rules (stop ids, stop strings, max tokens) were applied.
struct SlotOutcome {
    uint32_t slot = 0, generation = 0;
    int32_t emitted = 0;  ///< by the model: what the state advanced by
    int32_t kept = 0;     ///< of them part of the reply
    bool ended = false;   ///< the reply is complete
    RowStatus status = RowStatus::ok;
    Span<const int32_t> tokens;  ///< the emitted ones that were not known before
};

struct FinishInput {
    uint64_t chain_step = 0, chain = 0;  ///< newest collected step and its digest chain
    Span<const SlotOutcome> outcomes;
    Span<const DraftResult> drafts;
    Span<const ChunkResult> chunks;
    Span<const JobResult> jobs;
    StepTiming timing;
};

enum class EndCause : uint32_t {
    complete,  ///< the text rules ended it
    client_gone,
    slow_client,
    deadline,
    shutdown,
    memory,
    storage,  ///< a row had no valid table data
    numeric,  ///< non-finite logits
    device,   ///< from here on the whole engine failed
    peer_lost,
    stalled,
    internal,
};

enum class EffectKind : uint32_t { started, ended, parked };

/// What the planner decided about a sequence, for the reply side. `complete` ends are not reported;
/// a parked reply starts once.
struct PlannerEffect {
    EffectKind kind = EffectKind::started;
    EndCause cause = EndCause::complete;
    uint32_t slot = 0, generation = 0;
    const SequenceSpec* spec = nullptr;
    int64_t cached = 0;  ///< started: positions taken from a kept cut
};

/// saving: the reply has ended, its state is being kept; the slot closes with the next plan.
enum class SlotState : uint32_t { free = 0, prefilling = 1, decoding = 2, saving = 4 };
constexpr uint32_t kPausedState = 3;  ///< SlotView::state of a slot whose sink is blocked

/// Contents of the note section: inputs of the planner, for replay tools.
struct PlanNote {
    int64_t now_us = 0;
    uint32_t memory_level = 0;
    uint32_t events = 0;
};
static_assert(sizeof(PlanNote) == 16);

}  // namespace tenon::engine
