// SPDX-License-Identifier: MIT
// The engine's Prometheus series (serving.md 7.5), looked up once.
#pragma once

#include "host/engine/end_cause.h"
#include "tenon/host.h"

namespace tenon::engine {

/// Series live in the host. `outcome` is called by the delivery thread, gauges and counters by the
/// engine.
struct EngineMetrics {
    explicit EngineMetrics(Host& host);

    Metric* outcome(EndCause cause) const;

    Metric *requests_running, *requests_waiting, *cache_usage;
    Metric *prompt_tokens, *cached_tokens, *generated_tokens;
    Metric *decode_rounds, *drafted, *accepted;
    Metric *spill_hits, *spill_misses;
    Metric *preemptions, *disconnections, *slot_failures, *replayed_turns;
    Metric *latency, *first_token, *decode_time, *prefill_time, *queue_time;

  private:
    Metric* outcomes_[static_cast<size_t>(EndCause::internal) + 1];
};

}  // namespace tenon::engine
