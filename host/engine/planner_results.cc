// SPDX-License-Identifier: MIT
// What the step before gave: lengths, ends, drafts.
#include "host/engine/planner.h"

#include <algorithm>

namespace tenon::engine {

Planner::Slot* Planner::live_slot(uint32_t slot, uint32_t generation) {
    if (slot >= slots_.size()) {
        return nullptr;
    }
    Slot& s = slots_[slot];
    return s.spec != nullptr && s.generation == generation ? &s : nullptr;
}

void Planner::apply_results(const FinishInput& input) {
    for (Slot& s : slots_) {
        s.candidate_count = 0;
    }
    const auto failed = [](RowStatus status) {
        return status == RowStatus::io ? EndCause::storage : EndCause::numeric;
    };
    settle_cuts(input);
    // A slot that was closed since, or opened anew, has another generation: its results are
    // dropped.
    for (const SlotOutcome& o : input.outcomes) {
        Slot* s = live_slot(o.slot, o.generation);
        if (s == nullptr) {
            continue;
        }
        if (o.status != RowStatus::ok) {
            end(o.slot, failed(o.status));
            continue;
        }
        drafts_.observe(&s->draft, o.emitted - 1, o.ended);
        s->history.append(o.tokens);
        s->length += o.emitted;
        s->emitted += o.kept;
        s->pending = s->history.tokens()[s->history.tokens().size - 1];
        if (o.ended && !save_reply(o.slot)) {
            close(o.slot);
        }
    }
    for (const ChunkResult& c : input.chunks) {
        if (c.status != RowStatus::ok && live_slot(c.slot, c.generation) != nullptr) {
            end(c.slot, failed(c.status));
        }
    }
    for (const DraftResult& d : input.drafts) {
        Slot* s = live_slot(d.slot, d.generation);
        for (int32_t i = 0; s != nullptr && i < std::min(d.count, config_.draft_depth); ++i) {
            if (d.tokens[i] < 0 || d.tokens[i] >= config_.info.vocab) {
                break;  // the list ends at an id that cannot be looked up
            }
            s->candidates[i] = d.tokens[i];
            s->confidence[i] = d.confidence[i];
            s->candidate_count = i + 1;
        }
    }
}

}  // namespace tenon::engine
