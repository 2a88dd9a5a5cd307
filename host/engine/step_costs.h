// SPDX-License-Identifier: MIT
// What a step costs: the table measured at warm-up, and what serving showed since.
#pragma once

#include <vector>

#include "tenon/model.h"

namespace tenon::engine {

/// Engine thread. A pure function of the table and of the observations, in order, so that recorded
/// inputs replay.
///
/// Contexts, clocks and neighbours change what a row costs, but not how rows compare: each table
/// has one factor that follows the observed times within ±50 % (engine.md 3.1).
class StepCosts {
  public:
    /// Copies the spans. Empty tables: every size costs the same.
    void set(const CostTable& table);

    /// µs of all windows of a step with `rows` rows; beyond the table by its last slope.
    double window_us(int64_t rows) const;
    /// µs of one draft pass for `streams` slots.
    double draft_us(int64_t streams) const;
    /// µs of a chunk of `rows` of at most `chunk_rows` rows.
    double chunk_us(int64_t rows, int64_t chunk_rows) const;
    bool measured() const { return !window_us_.empty(); }

    /// A step that took `timing` with these rows, streams and chunk rows; zeros are ignored.
    void observe(int64_t rows, int64_t streams, int64_t chunk, int64_t chunk_rows,
                 const StepTiming& timing);

    /// The tables as overlays see them: factors applied, refreshed by `publish`.
    Span<const int64_t> window_table() const { return shown_windows_; }
    Span<const int64_t> stage_table() const { return shown_stages_; }
    void publish();

  private:
    std::vector<int64_t> window_us_, draft_us_, stage_us_;
    std::vector<int64_t> shown_windows_, shown_stages_;
    int64_t whole_chunk_us_ = 0;
    double window_factor_ = 1, draft_factor_ = 1, chunk_factor_ = 1;
};

}  // namespace tenon::engine
