// SPDX-License-Identifier: MIT
// The three typed hooks of overlays: weights, scheduling, encoded media (architecture.md 8).
#pragma once

#include "tenon/weights.h"

namespace tenon {

/// Decorates the weight source. A listed tensor that the model never asks for is an error at
/// `finish`.
class WeightOverlay : public Object {
  public:
    static constexpr const char* kFacet = "overlay.weights/1";
    /// The decorated source; lives as long as the overlay, which borrows `inner`.
    virtual Status decorate(WeightSource& inner, WeightSource** out) noexcept = 0;
    /// After load: everything that was listed has been used.
    virtual Status finish() noexcept = 0;
    virtual Span<const uint8_t> digest() noexcept = 0;
};

/// One slot as the planner shows it; plain data, no tokens.
struct SlotView {
    uint32_t slot = 0;
    uint32_t state = 0;  ///< 0 free, 1 prefilling, 2 decoding, 3 paused
    uint64_t arrival_seq = 0;
    int64_t length = 0, prompt = 0;             ///< positions computed; tokens of the prompt
    int64_t age_us = 0;                         ///< since submit
    uint32_t background = 0, sink_blocked = 0;  ///< 0 or 1
};

struct WaitingView {
    uint64_t request = 0, arrival_seq = 0;
    int64_t remaining = 0;                 ///< prompt rows
    int64_t age_us = 0;                    ///< since submit
    uint32_t background = 0, overdue = 0;  ///< 0 or 1
};

struct SchedulerView {
    uint32_t struct_size = sizeof(SchedulerView);
    uint32_t memory_level = 0;  ///< 0 ok, 1 soft, 2 hard (engine.md 3.3)
    int64_t now_us = 0;
    Span<const SlotView> slots;
    Span<const WaitingView> waiting;
    int64_t pages_free = 0, pages_evictable = 0;
    int32_t row_cap = 0;     ///< most rows of all windows
    int32_t chunk_rows = 0;  ///< most rows of a slice
    int32_t stages = 1;      ///< of a chunk
    int32_t reserved = 0;
    Span<const int64_t> window_us;  ///< measured cost of a step with i rows, index i
    Span<const int64_t> stage_us;   ///< per stage, for a chunk of chunk_rows
};

/// What one step will do. An overlay chooses among what the view offers; the host validates.
struct StepOutline {
    static constexpr int kMaxSlots = 48;
    uint32_t struct_size = sizeof(StepOutline);
    int32_t decode_count = 0;
    uint32_t decode[kMaxSlots] = {};  ///< slots that get a window, in order
    int32_t row_cap = 0;
    int32_t slice_slot = -1;   ///< slot of the prompt slice, -1 = none
    int64_t slice_rows = 0;    ///< rows of the slice (whole chunk: chunk_rows)
    int32_t slice_stages = 0;  ///< stages to run; 0 = all
    int32_t reserved = 0;
};

/// The inner planner, for an overlay to call.
class Outliner {
  public:
    virtual Status outline(const SchedulerView& view, StepOutline* out) noexcept = 0;

  protected:
    ~Outliner() = default;
};

/// Decorates the planner; engine thread of rank 0.
class ScheduleOverlay : public Object {
  public:
    static constexpr const char* kFacet = "overlay.schedule/1";
    virtual Status outline(const SchedulerView& view, Outliner& inner,
                           StepOutline* out) noexcept = 0;
};

/// Encoded image rows by content key. Thread: the engine thread of rank 0.
class MediaCache : public Object {
  public:
    static constexpr const char* kFacet = "overlay.media/1";
    virtual bool get(const uint8_t key[32], Span<uint8_t> rows) noexcept = 0;  ///< false: a miss
    virtual void put(const uint8_t key[32], Span<const uint8_t> rows) noexcept = 0;
    /// Prefix cuts beyond an image may be kept.
    virtual bool keeps_states() noexcept = 0;
};

}  // namespace tenon
