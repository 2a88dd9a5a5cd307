// SPDX-License-Identifier: MIT
// What reference and SIMD version of draft.step share.
#pragma once

#include "common/check.h"
#include "common/rows.h"
#include "sample/draw.h"

namespace tenon::cpu {

/// What one segment needs to judge its ids.
struct StepRow {
    bool live = false;
    int32_t prev = -1;
    double temperature = 0;
    uint64_t seed = 0;
    int32_t pos = 0;

    NoiseSource noise() const { return {seed, pos}; }
};
StepRow step_row(Context& c, const DraftStep& p, int64_t s);

inline bool forbidden(const DraftStep& p, int64_t v) {
    return !p.forbid.null() && (p.forbid.as<const uint32_t>()[v / 32] >> (v % 32) & 1u) != 0;
}

/// Judges local id v with logit L. The value is rounded to f32 before it is compared, so that
/// ranks, which exchange f32, and one rank alone agree. NaN never wins.
inline void step_offer(const DraftStep& p, const StepRow& row, NoiseSource& noise, int64_t v,
                       float L, DraftBest& best) {
    const auto id = static_cast<int32_t>(p.vocab_at + v);
    float value = L;
    if (row.temperature > 0) {
        const double x = static_cast<double>(L) / row.temperature;
        if (x + kGumbelLargest < static_cast<double>(best.value)) {
            return;
        }
        const uint32_t word = noise.word(id);
        if (x + gumbel_bound(word) < static_cast<double>(best.value)) {
            return;
        }
        value = static_cast<float>(x + gumbel_of_word(word));
    }
    if ((value > best.value || (value == best.value && (best.id < 0 || id < best.id))) &&
        !forbidden(p, v)) {
        best = {value, id};
    }
}

/// The better of two: larger value, ties to the lower id.
inline bool better(const DraftBest& a, const DraftBest& b) {
    return a.id >= 0 && (b.id < 0 || a.value > b.value || (a.value == b.value && a.id < b.id));
}

/// The SIMD version for this CPU, or null: f32 fma in 16 fixed lanes; L within (r / 16 + 5) 2^-24
/// times the sum of absolute products of the reference.
OpCall<DraftStep> draft_step_simd();
int64_t draft_step_simd_scratch(void* self, const DraftStep& p) noexcept;

}  // namespace tenon::cpu
