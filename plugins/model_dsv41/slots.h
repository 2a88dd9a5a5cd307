// SPDX-License-Identifier: MIT
// What the host keeps per slot: length, the classes of recent tokens, sampling settings.
#pragma once

#include <algorithm>

#include "engram_hash.h"
#include "tenon/ops/sample.h"
#include "tenon/plan.h"

namespace tenon::dsv41 {

constexpr int64_t kMaxBias = 4096;
constexpr int32_t kMaxStops = 16;

/// Sampling of one slot, as the last sampler record said.
struct SlotSampling {
    SampleParams params;
    int32_t stops[kMaxStops];
    std::vector<int32_t> bias_ids;  ///< reserved to kMaxBias at load
    std::vector<float> bias_add;

    SlotSampling() {
        bias_ids.reserve(kMaxBias);
        bias_add.reserve(kMaxBias);
        reset();
    }
    void reset() {
        params = SampleParams();
        std::fill(std::begin(stops), std::end(stops), -1);
        bias_ids.clear();
        bias_add.clear();
    }
    bool has_penalties() const {
        return params.repetition != 1 || params.presence != 0 || params.frequency != 0;
    }
};

/// Engine thread. `generation` 0 = closed.
struct Slot {
    /// Positions whose token classes are remembered: more than a rewind and a look-back ever reach.
    static constexpr int64_t kHistory = 256;

    uint32_t generation = 0;
    int64_t length = 0;
    int64_t whole_from = 0;  ///< smallest length at which every layer's state can be exact
    SlotSampling sampling;
    int32_t classes[kHistory];
    int32_t uncounted[plan::kMaxWindowRows];  ///< emitted tokens that the penalty counts lack
    int32_t uncounted_count = 0;

    void open(uint32_t new_generation) {
        generation = new_generation;
        length = 0;
        whole_from = 0;
        uncounted_count = 0;
        sampling.reset();
        std::fill(std::begin(classes), std::end(classes), EngramHash::kDead);
    }
    /// Class of the token at a position; kDead before the start.
    int32_t class_at(int64_t position) const {
        return position < 0 ? EngramHash::kDead : classes[position % kHistory];
    }
    void remember(int64_t position, int32_t token_class) {
        classes[position % kHistory] = token_class;
    }
};

}  // namespace tenon::dsv41
