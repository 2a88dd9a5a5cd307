// SPDX-License-Identifier: MIT
// Names, help texts and buckets of the engine's series.
#include "host/engine/engine_metrics.h"

namespace tenon::engine {
namespace {

constexpr double kSeconds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                               2.5,   5,    10,    30,   60,  300,  1200};

Metric* make(Host& host, MetricKind kind, StrView name, StrView help, StrView labels = {}) {
    MetricDesc desc;
    desc.kind = kind;
    desc.name = name;
    desc.help = help;
    desc.labels = labels;
    if (kind == MetricKind::histogram) {
        desc.buckets = Span<const double>(kSeconds);
    }
    return host.metric(desc);
}

}  // namespace

EngineMetrics::EngineMetrics(Host& host) {
    constexpr MetricKind kGauge = MetricKind::gauge, kCounter = MetricKind::counter;
    constexpr MetricKind kHistogram = MetricKind::histogram;
    requests_running = make(host, kGauge, "requests_running", "Replies in a slot");
    requests_waiting = make(host, kGauge, "requests_waiting", "Replies waiting for a slot");
    cache_usage = make(host, kGauge, "kv_cache_usage_ratio", "Used part of the page pool, 0 to 1");
    prompt_tokens =
        make(host, kCounter, "prompt_tokens_total", "Prompt tokens of admitted replies");
    cached_tokens =
        make(host, kCounter, "prompt_tokens_cached_total", "Prompt tokens taken from kept state");
    generated_tokens = make(host, kCounter, "generation_tokens_total", "Tokens of replies");
    decode_rounds = make(host, kCounter, "decode_rounds_total", "Steps with at least one window");
    drafted = make(host, kCounter, "mtp_drafted_total", "Drafted tokens that were verified");
    accepted = make(host, kCounter, "mtp_accepted_total", "Drafted tokens that were accepted");
    spill_hits = make(host, kCounter, "kv_spill_hits_total", "Kept prefixes read back from disk");
    spill_misses = make(host, kCounter, "kv_spill_misses_total",
                        "Kept prefixes that were on disk and could not be used");
    preemptions = make(host, kCounter, "preemptions_total", "Running replies put aside for others");
    disconnections =
        make(host, kCounter, "client_disconnections_total", "Replies whose client went away");
    slot_failures =
        make(host, kCounter, "slot_failures_total", "Replies ended by a storage or numeric error");
    replayed_turns = make(host, kCounter, "replayed_turns_total",
                          "Assistant turns of prompts written as the ids they were sampled as");
    latency = make(host, kHistogram, "request_latency_seconds", "From submit to the last token");
    first_token =
        make(host, kHistogram, "time_to_first_token_seconds", "From submit to the first token");
    decode_time =
        make(host, kHistogram, "request_decode_seconds", "From the first to the last token");
    prefill_time =
        make(host, kHistogram, "request_prefill_seconds", "From the slot to the first token");
    queue_time = make(host, kHistogram, "request_queue_seconds", "From submit to the slot");
    for (size_t i = 0; i < sizeof outcomes_ / sizeof outcomes_[0]; ++i) {
        const std::string label = format("outcome={}", end_text(static_cast<EndCause>(i)).outcome);
        outcomes_[i] = make(host, kCounter, "requests_total", "Replies by outcome", label);
    }
}

Metric* EngineMetrics::outcome(EndCause cause) const {
    return outcomes_[static_cast<size_t>(cause)];
}

}  // namespace tenon::engine
