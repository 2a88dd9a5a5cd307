// SPDX-License-Identifier: MIT
// The prompt chunk of a step.
#include "host/engine/planner.h"

#include <algorithm>

namespace tenon::engine {

void Planner::write_chunk() {
    if (outline_.slice_slot < 0) {
        return;
    }
    Slot& s = slots_[static_cast<size_t>(outline_.slice_slot)];
    if (s.state != SlotState::prefilling) {
        return;
    }
    plan::Chunk c;
    c.slot = static_cast<uint32_t>(outline_.slice_slot);
    c.generation = s.generation;
    c.begin = s.length;
    c.end = std::min(s.length + outline_.slice_rows, next_target(s));
    c.stage_end = config_.info.prefill_stages;
    c.tokens_off = builder_.add_tokens(s.spec->prompt.subspan(
        static_cast<uint64_t>(c.begin), static_cast<uint64_t>(c.end - c.begin)));
    c.flags = config_.bounded_replay ? uint32_t{plan::kBoundedReplay} : 0;
    add_targets(static_cast<size_t>(outline_.slice_slot), &c);
    builder_.chunks.push_back(c);
    step_chunk_ = c.end - c.begin;
    s.history.index_some(2 * step_chunk_);  // a hit of the prefix may have left some behind
    s.length = c.end;
    if (s.length == s.prefill_end()) {
        s.state = SlotState::decoding;
    }
}

}  // namespace tenon::engine
