// SPDX-License-Identifier: MIT
// Greedy by marginal gain: for a fixed number of rows it is optimal, as survival never rises along
// a draft, so the best over all totals is the best of all.
#include "host/engine/allotment.h"

#include <algorithm>

#include "host/engine/sequence.h"

namespace tenon::engine {

Allotment allot(Span<const Offer> offers, const StepCosts& costs, int32_t row_cap, double other_us,
                int32_t* rows) {
    const auto count = static_cast<int32_t>(offers.size);
    int32_t given[kMaxSlots] = {};
    int32_t order[plan::kMaxRows];
    int32_t extra = 0, best_extra = 0;
    double expected = count;
    const auto cost = [&](int32_t total) {
        // Without a measured table every step costs the same, so every draft is worth its row.
        return costs.measured() ? costs.window_us(total) + other_us : 1.0;
    };
    Allotment best{count, expected, cost(count)};
    while (count + extra < row_cap && extra < static_cast<int32_t>(plan::kMaxRows)) {
        int32_t next = -1;
        double gain = 0;
        for (int32_t i = 0; i < count; ++i) {
            const Offer& o = offers[static_cast<uint64_t>(i)];
            if (given[i] < o.count && o.survive[given[i]] > gain) {
                gain = o.survive[given[i]];
                next = i;
            }
        }
        if (next < 0) {
            break;
        }
        ++given[next];
        order[extra++] = next;
        expected += gain;
        const double us = cost(count + extra);
        if (expected * best.us > best.expected * us) {
            best = {count + extra, expected, us};
            best_extra = extra;
        }
    }
    std::fill(rows, rows + count, 1);
    for (int32_t i = 0; i < best_extra; ++i) {
        ++rows[order[i]];
    }
    return best;
}

}  // namespace tenon::engine
