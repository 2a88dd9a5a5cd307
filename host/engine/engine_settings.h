// SPDX-License-Identifier: MIT
// What the host tells the engine at construction: limits, defaults and names from the resolved
// profile.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tenon/model.h"

namespace tenon {

namespace engine {
class PlannerRecorder;
}

/// Values used where a request is silent ([sampling] of the profile).
struct SamplingDefaults {
    float temperature = 1.0f;
    float top_p = 0.95f;
    float min_p = 0.0f;
    int32_t top_k = 0;
    int64_t max_tokens = 32768;  ///< capped to the room
    std::string seed_salt;       ///< goes into default seeds
};

/// Why the engine ended; the process must exit with `exit_code` (engine.md 7).
struct EngineFailure {
    Code code = Code::internal;
    int exit_code = 70;
    std::string event;  ///< what streams were told: "device", "peer_lost", "stalled", "internal", …
    std::string message;  ///< cause, for the log
};

/// Plain values; the host fills it from the profile and from the ModelRequest that it loaded with.
struct EngineSettings {
    // Geometry. Must be what the model was loaded with: the model allocated for exactly this.
    int32_t slots = 4;
    int64_t context_tokens = 0;  ///< 0 = the model's limit
    int64_t pool_pages = 0;      ///< tenon::pool_pages; 0 = that rule for slots * context
    int32_t step_rows = 16;
    int32_t window_rows = 16;
    int32_t chunk_rows = 2048;
    int32_t world = 1;

    // Prefix reuse. The model was loaded with as many cells.
    int32_t snapshot_cells = 0;   ///< 0 = nothing is kept
    bool prefix_strict = false;   ///< reuse prompt-class cuts only
    bool bounded_replay = false;  ///< prompt tails are approximate (dsv41.md 3.11)
    bool image_states = false;    ///< the media cache keeps cuts beyond an image
    int64_t join_wait_us = 60'000'000;
    bool prefetch = true;      ///< rows of the next chunk are read while one computes
    bool salt_by_key = false;  ///< callers with different API keys share no prefixes
    int64_t replay_bytes = 0;  ///< replay memory; 0 = none

    // Disk tier of kept prefixes. The model was loaded with staging.
    std::string spill_dir;  ///< empty = none
    int64_t spill_budget = int64_t{64} << 30;
    bool spill_on_exit = true;
    std::string spill_identity;  ///< of weights, overlays, kernels: what decides the bits of state

    // Scheduling.
    int32_t draft_depth = 0;   ///< most drafts of the model a window; 0 = none; at most the model's
    bool copy_drafts = false;  ///< drafts looked up in the stream's own text
    int32_t max_queued = 64;   ///< waiting replies; beyond: unavailable "queue full"
    bool clamp_max_tokens = false;
    int64_t fairness_us = 60'000'000;
    int64_t fairness_background_us = 600'000'000;
    int64_t slow_client_limit_us = 30'000'000;
    int64_t warm_up_us = 1'800'000'000;  ///< for the model's first passes

    SamplingDefaults sampling;

    // Names, for EngineInfo.
    std::string served_name;
    std::vector<std::string> aliases;
    std::string profile_name, profile_digest, version;
    int64_t created_unix = 0;

    /// Sees every step; borrowed, null = none. Must outlive the engine.
    engine::PlannerRecorder* recorder = nullptr;

    /// Called once, on the engine thread, after the error event of every stream was queued. Must
    /// not block and must not call the engine; typically it wakes the main thread, which then
    /// exits.
    std::function<void(const EngineFailure&)> on_failure;
};

/// Host memory that the engine itself takes (tags plan, queues, sinks), for the memory plan.
/// `tag` and `note` of the entries are string literals.
std::vector<MemoryEntry> engine_memory(const EngineSettings& settings, const ModelInfo& info);

}  // namespace tenon
