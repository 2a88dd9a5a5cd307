// SPDX-License-Identifier: MIT
// Decode windows of a step and the draft passes behind them.
#include "host/engine/planner.h"

#include <algorithm>

namespace tenon::engine {

void Planner::write_windows() {
    // Rows beyond one per slot go round by round, so that every slot gets its first draft before
    // any gets a second.
    int32_t rows[StepOutline::kMaxSlots] = {};
    int32_t count = 0;
    uint32_t order[StepOutline::kMaxSlots];
    for (int32_t i = 0; i < outline_.decode_count; ++i) {
        if (slots_[outline_.decode[i]].state == SlotState::decoding) {
            order[count++] = outline_.decode[i];
        }
    }
    int32_t left = std::min(outline_.row_cap, config_.step_rows) - count;
    std::fill(rows, rows + count, 1);
    for (bool given = true; given && left > 0;) {
        given = false;
        for (int32_t i = 0; i < count && left > 0; ++i) {
            const Slot& s = slots_[order[i]];
            const int64_t most =
                std::min<int64_t>({s.candidate_count + 1, s.remaining(), config_.window_rows});
            if (rows[i] < most) {
                ++rows[i];
                --left;
                given = true;
            }
        }
    }
    for (int32_t i = 0; i < count; ++i) {
        const Slot& s = slots_[order[i]];
        plan::Window w;
        w.slot = order[i];
        w.generation = s.generation;
        w.position = s.length;
        w.rows = rows[i];
        w.accept_max = rows[i];
        w.tokens_off = builder_.add_tokens({&s.pending, 1});
        if (rows[i] > 1) {
            w.flags |= plan::kDrafted;
            builder_.add_tokens({s.candidates, static_cast<uint64_t>(rows[i] - 1)});
        }
        if (s.spec->sampler.logprobs >= 0) {
            w.flags |= plan::kWantLogprobs;
            w.top = s.spec->sampler.logprobs;
        }
        builder_.windows.push_back(w);

        const int32_t depth = std::min(config_.draft_depth, config_.info.draft_max);
        // After this window one token at least is gone; drafts pay only if two more may follow.
        if (depth > 0 && s.spec->drafts_allowed && config_.step_rows > count && s.remaining() > 2) {
            plan::Draft d;
            d.slot = order[i];
            d.generation = s.generation;
            d.rows = depth;
            builder_.drafts.push_back(d);
        }
    }
}

}  // namespace tenon::engine
