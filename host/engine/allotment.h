// SPDX-License-Identifier: MIT
// How many rows each decode window gets: marginal expected gain against measured cost
// (engine.md 3.2).
#pragma once

#include "host/engine/step_costs.h"
#include "tenon/plan_check.h"

namespace tenon::engine {

/// Drafts that one slot could verify. `survive[i]` is the probability that drafts 0…i are all
/// accepted; it never rises with i.
struct Offer {
    int32_t count = 0;
    double survive[plan::kMaxDrafts] = {};
};

struct Allotment {
    int32_t rows = 0;     ///< of all windows, one a slot included
    double expected = 0;  ///< tokens of the step
    double us = 0;        ///< its cost
};

/// Gives every offer one row and then hands out drafts, always the likeliest next, up to the number
/// of rows at which tokens per µs is largest over all totals ≤ row_cap (the table need not be
/// convex; of equal rates the fewest rows win). O(row_cap · offers), no allocation.
///
/// rows      out, by offer
/// other_us  cost of the step beside its windows: the draft pass behind them and the prompt slice
Allotment allot(Span<const Offer> offers, const StepCosts& costs, int32_t row_cap, double other_us,
                int32_t* rows);

}  // namespace tenon::engine
