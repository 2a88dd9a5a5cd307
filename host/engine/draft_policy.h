// SPDX-License-Identifier: MIT
// How far drafts are believed, and whether a draft pass is worth its time.
#pragma once

#include "host/engine/allotment.h"

namespace tenon::engine {

enum class DraftSource : uint8_t { none, model, copy };

/// What one slot's drafts have done. Plain data, reset when the slot opens.
struct DraftRecord {
    // The window in flight.
    DraftSource source = DraftSource::none;
    int32_t offered = 0;               ///< drafts in the window
    float raw[plan::kMaxDrafts] = {};  ///< drafter's own probability of each (model)
    int64_t match = 0;                 ///< length of the match (copy)
    bool sampled = false;              ///< temperature > 0

    double gain = 0, rows = 0;   ///< expected drafts accepted and rows used, a round
    bool known = false;          ///< gain and rows were seen at least once
    int32_t rounds_without = 0;  ///< rounds since the last draft pass
    int32_t probe_after = 16;    ///< rounds without after which one is tried again
    double copy_hits = 0, copy_tests = 0;
    int32_t copy_run = 0;  ///< drafts of the last window, if a copy and all taken
};

/// Engine thread. A pure function of what it was told, in order.
class DraftPolicy {
  public:
    /// Probability that a draft is accepted if all before it were, from the drafter's logit, as
    /// past drafts of similar logits fared.
    double believe(float logit, bool sampled, float* raw) const;
    /// The same for each draft of a copy with this match length.
    double believe_copy(const DraftRecord& record, int64_t match) const;

    /// The window that `record` describes gave `accepted` drafts; `cut`: the reply ended, so the
    /// next draft was not tested.
    void observe(DraftRecord* record, int32_t accepted, bool cut);
    /// What the slot's drafts were expected to bring in the step now planned.
    void note_gain(DraftRecord* record, double gain, int32_t rows);

    /// Sets `wanted[i]` for the records whose draft pass pays: tokens per µs of the next round,
    /// with the likeliest drafts first. Each record that gets none is tried again now and then.
    ///
    /// streams   windows of the step; records is the part of them that may draft
    void choose(Span<DraftRecord* const> records, int32_t streams, const StepCosts& costs,
                int32_t row_cap, bool* wanted);

  private:
    static constexpr int kBins = 20;
    struct Bin {
        double tested = 0, accepted = 0;
    };
    static void count(Bin* bin, bool accepted);

    Bin model_[2][kBins];                   // by sampled, raw probability
    Bin copy_[4];                           // by match length
    double mean_gain_ = 2, mean_rows_ = 3;  // of all slots; a new slot starts from these
};

}  // namespace tenon::engine
