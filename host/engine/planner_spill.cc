// SPDX-License-Identifier: MIT
// When cuts go to disk and when they come back (engine.md 4.5, 4.6), and the state of parked
// replies (3.3).
#include "host/engine/planner.h"

#include <algorithm>

namespace tenon::engine {
namespace {

constexpr int32_t kAhead = 4;       // cuts that are on disk before their room is needed
constexpr int32_t kSpareCells = 8;  // fewer free ones are a shortage

SymbolRun symbols_of(const SequenceSpec& spec) {
    SymbolRun run;
    run.salt = spec.cache_salt;
    run.tokens = spec.prompt;
    run.images = spec.images;
    return run;
}

/// A parked reply finds its own state and nobody else does.
SymbolRun symbols_of_parked(const SequenceSpec& spec, Span<const int32_t> tokens) {
    SymbolRun run;
    run.salt = spec.cache_salt;
    run.owner = spec.arrival_seq;
    run.tokens = tokens;
    return run;
}

}  // namespace

/// Brings a cut back that lies deeper than what is kept in memory. True: the request waits for it.
bool Planner::load_deeper(Waiting& w, const PrefixCache::Hit& hit, int64_t now_us) {
    w.wants_load = false;
    if (!spill_.enabled() || w.spill_tried || w.spec->no_prefix) {
        return false;
    }
    const bool strict =
        config_.info.numeric_classes > 1 && (config_.prefix_strict || w.spec->strict_prefix);
    const SymbolRun run = symbols_of(*w.spec);
    const SpillRef ref = spill_.deeper(run, w.spec->prompt_rows(), hit.at, strict);
    if (ref.id < 0) {
        w.spill_tried = true;
        return false;
    }
    w.wants_load = spill_.can_load() || spill_.is_active();
    w.spill_tried = !w.wants_load;  // a disk that does not answer
    if (!spill_.can_load()) {
        return w.wants_load;
    }
    cache_.pin_hard(hit.cut, 1);
    const int64_t pages = config_.pages_of(spill_.position_of(ref)) - spill_.shared_pages(ref, hit);
    const int64_t live = live_slots();
    if (!make_room(pages + live, hit)) {
        // With nobody to give pages back it would wait for ever beside the part that is in memory.
        w.spill_tried = live == 0 && !spill_.is_exporting();
        w.wants_load = !w.spill_tried;
    } else {
        w.spill_tried =
            spill_.start_load(ref, run, hit, w.spec->arrival_seq, step_ + 1, now_us, builder_);
        w.wants_load = w.spill_tried;
        if (!w.spill_tried) {
            w.spill_tried = true;  // no cell can be had; the prompt is computed
        }
    }
    cache_.pin_hard(hit.cut, -1);
    return w.wants_load;
}

/// Gives up the least valuable cut. One that is not on disk yet goes there first; its room comes in
/// a later step.
bool Planner::give_up_for_room() {
    if (!spill_.enabled()) {
        return cache_.evict(builder_);
    }
    CutRef next;
    // A loaded cut whose request cannot start yet must not keep others from going on.
    if (cache_.victims(&next, 1) == 0 && (!spill_.let_go() || cache_.victims(&next, 1) == 0)) {
        return false;
    }
    if (spill_.wants_export(next)) {
        if (spill_.is_exporting() || (spill_.can_export() && spill_.start_export(next, now_us_))) {
            return false;
        }
    }
    return cache_.evict(builder_);
}

/// Keeps the state of a reply that is about to lose its slot. False: it will be computed anew.
bool Planner::save_parked(size_t index) {
    Slot& s = slots_[index];
    const SequenceSpec& spec = *s.spec;
    // Counts of penalties are rebuilt by running the tokens again.
    if (!spill_.enabled() || !cache_.enabled() || s.state != SlotState::decoding || s.length < 1 ||
        s.has_penalties() || !spec.images.empty()) {
        return false;
    }
    PrefixCache::NewCut cut;
    cut.at = cut.min_target = s.length;
    cut.prompt_class = config_.info.numeric_classes == 1;
    cut.slot = static_cast<uint32_t>(index);
    cut.generation = s.generation;
    cut.by_chunk = false;
    const SymbolRun run =
        symbols_of_parked(spec, s.history.tokens().subspan(0, static_cast<uint64_t>(s.length)));
    plan::SnapOp op;
    op.op = plan::SnapOpKind::save;
    op.snapshot = cache_.begin(cut, s.pages, run, s.pass.symbols_to, step_ + 1, builder_);
    if (op.snapshot == 0) {
        return false;
    }
    op.slot = cut.slot;
    op.generation = s.generation;
    op.at = s.length;
    builder_.snap_out.push_back(op);
    return true;
}

/// The state that a parked reply goes on from. False: it waits for what lies on disk.
bool Planner::find_parked(const Parked& p, PrefixCache::Hit* hit) {
    const Span<const int32_t> tokens = p.history.tokens();
    const SymbolRun run = symbols_of_parked(*p.spec, tokens);
    const auto last = static_cast<int64_t>(tokens.size) - 1;
    if (p.has_state) {
        *hit = cache_.best(run, last, false);
        if (hit->at > 0) {
            return true;
        }
        if (cache_.comes_deeper(run, last, false, *hit) ||  // the step in flight saves it
            spill_.is_loading_for(p.spec->arrival_seq) ||
            spill_.is_writing_for(p.spec->arrival_seq)) {
            return false;
        }
    }
    *hit = look_up(*p.spec);
    const SpillRef ref = p.has_state ? spill_.deeper(run, last, 0, false) : SpillRef();
    if (ref.id < 0) {
        return true;
    }
    if (spill_.can_load()) {
        cache_.pin_hard(hit->cut, 1);
        const int64_t pages =
            config_.pages_of(spill_.position_of(ref)) - spill_.shared_pages(ref, *hit);
        const int64_t live = live_slots();
        const bool fits = make_room(pages + live, *hit);
        if (fits) {
            spill_.start_load(ref, run, *hit, p.spec->arrival_seq, step_ + 1, now_us_, builder_);
        }
        cache_.pin_hard(hit->cut, -1);
        return !fits && live == 0 && !spill_.is_exporting();  // as in load_deeper
    }
    return !spill_.is_active();  // a disk that does not answer is not waited for
}

/// Nobody can use the state of this reply any more.
void Planner::forget_parked(const SequenceSpec& spec, Span<const int32_t> tokens) {
    const SymbolRun run = symbols_of_parked(spec, tokens);
    const auto last = static_cast<int64_t>(tokens.size);
    forget_own(cache_.best(run, last, false).cut);
    spill_.forget(spill_.deeper(run, last, 0, false));
    spill_.forget_moving(spec.arrival_seq);
}

/// Gives up a cut and its file, if it is the state of a parked reply.
void Planner::forget_own(const CutRef& ref) {
    const Cut* cut = cache_.find(ref);
    if (cut != nullptr && cut->owner != 0) {
        spill_.forget(cut->spill);
        spill_.forget_moving(cut->owner);
        cache_.give_up(ref, builder_);
    }
}

bool Planner::has_parked(uint64_t owner) const {
    return std::any_of(parked_.begin(), parked_.end(), [owner](const Parked& p) {
        return p.spec != nullptr && p.spec->arrival_seq == owner;
    });
}

/// Cuts of parked replies that were restored by the step before.
void Planner::forget_spent() {
    for (Slot& s : slots_) {
        forget_own(std::exchange(s.spent, CutRef()));
    }
}

/// Starts the next export, if one is due, and writes pieces into the plan.
void Planner::write_spill() {
    if (!spill_.enabled()) {
        return;
    }
    const auto start_first = [this](const CutRef* refs, int32_t count) {
        for (int32_t i = 0; i < count; ++i) {
            if (spill_.wants_export(refs[i]) && spill_.start_export(refs[i], now_us_)) {
                return;
            }
        }
    };
    const int64_t cells = cache_.cells().total();
    const bool is_short =
        cells - cache_.cells().used() < std::min<int64_t>(kSpareCells, cells / 2) ||
        4 * pages_.free() < pages_.total();
    if (flush_) {
        // The most valuable first: the deadline may come before all are written.
        CutRef best;
        bool any = false;
        while (spill_.can_export()) {
            best = CutRef();
            any = false;
            cache_.each_live([&](const CutRef& ref) {
                const Cut* cut = cache_.find(ref);
                const Cut* other = cache_.find(best);
                if (cut->owner == 0 && spill_.wants_export(ref) &&
                    (other == nullptr || std::tie(other->origin, other->use_step) <
                                             std::tie(cut->origin, cut->use_step))) {
                    best = ref;
                    any = true;
                }
            });
            // One that has a file already, or can have none, is passed over at once.
            if (!any || (!spill_.start_export(best, now_us_) && spill_.wants_export(best))) {
                break;
            }
        }
        flushed_ = !spill_.is_exporting() && (!any || !spill_.can_export());
    } else if (is_short && spill_.can_export()) {
        CutRef next[kAhead];
        start_first(next, cache_.victims(next, kAhead));
    }
    spill_.write(builder_);
}

}  // namespace tenon::engine
