// SPDX-License-Identifier: MIT
// What a slot's prompt pass keeps on its way (engine.md 4.3).
#pragma once

#include <algorithm>

#include "host/engine/prefix_cache.h"
#include "tenon/plan_check.h"

namespace tenon::engine {

constexpr int32_t kMaxPassTargets = 8;

/// A position at which a cut is made.
struct PassTarget {
    int64_t at = 0;
    plan::CutKind kind = plan::CutKind::full;
    CutOrigin origin = CutOrigin::message;
};

/// Engine thread, part of a slot.
struct PassState {
    bool keeps = false;        ///< cuts are made
    bool prompt_class = true;  ///< no generated row below
    CutRef source;             ///< deepest kept cut below the slot's length; pinned softly
    CutRef newest;           ///< cut at the end of the last chunk, given up when the next one lives
    int64_t symbols_to = 0;  ///< symbols of the slot's pages are written below it
    int64_t settled = 0;     ///< positions whose step has ended
    int64_t min_full = 0;    ///< smallest full target that may be added: what the rows so far allow
    int64_t grid = 0;        ///< multiples of the grid that kept cuts have passed
    PassTarget targets[kMaxPassTargets];  ///< ascending; the header last
    int32_t target_count = 0;

    /// Inserts in order; false: there is no room, or the position has a target (which may become
    /// full).
    bool add(const PassTarget& t) {
        int32_t i = 0;
        while (i < target_count && targets[i].at < t.at) {
            ++i;
        }
        if (i < target_count && targets[i].at == t.at) {
            targets[i].kind = t.kind == plan::CutKind::full ? t.kind : targets[i].kind;
            return true;
        }
        const bool full = t.kind == plan::CutKind::full;
        const auto fulls = std::count_if(
            targets, targets + target_count,
            [](const PassTarget& other) { return other.kind == plan::CutKind::full; });
        // A chunk may have to list all full targets of the pass.
        if (target_count == kMaxPassTargets || (full && fulls == plan::kMaxChunkTargets)) {
            return false;
        }
        std::copy_backward(targets + i, targets + target_count, targets + target_count + 1);
        targets[i] = t;
        ++target_count;
        return true;
    }
};

}  // namespace tenon::engine
