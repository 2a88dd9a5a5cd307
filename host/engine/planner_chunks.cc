// SPDX-License-Identifier: MIT
// The prompt chunk of a step.
#include "host/engine/planner.h"

#include <algorithm>
#include <limits>

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
    write_prefetch(s);
}

/// The chunk that the next step will probably run: the same prompt goes on with as many rows, or
/// else the one with the least left. After everything else, as its tokens are the last of the pool.
void Planner::write_prefetch(const Slot& done) {
    if (!config_.prefetch) {
        return;
    }
    const Slot* next = &done;
    if (done.state != SlotState::prefilling) {
        const auto left = [](const Slot& s) {
            return s.state == SlotState::prefilling ? s.prefill_end() - s.length
                                                    : std::numeric_limits<int64_t>::max();
        };
        next = &*std::min_element(slots_.begin(), slots_.end(),
                                  [&](const Slot& a, const Slot& b) { return left(a) < left(b); });
        if (next->state != SlotState::prefilling) {
            return;
        }
    }
    plan::Prefetch p;
    p.slot = static_cast<uint32_t>(next - slots_.data());
    p.generation = next->generation;
    p.begin = next->length;
    p.end = std::min(p.begin + outline_.slice_rows, next_target(*next));
    builder_.add_tokens(next->spec->prompt.subspan(static_cast<uint64_t>(p.begin),
                                                   static_cast<uint64_t>(p.end - p.begin)));
    builder_.prefetches.push_back(p);
}

}  // namespace tenon::engine
