// SPDX-License-Identifier: MIT
// Prefix reuse in the planner: look-up and join at admission, cuts of a pass, cuts of replies
// (engine.md 4).
#include "host/engine/planner.h"

#include <algorithm>

namespace tenon::engine {
namespace {

constexpr int64_t kNear = 512;       // a full border this near to another target costs little
constexpr int64_t kGrid = 16'384;    // pass cuts this far apart stay
constexpr int32_t kMostBorders = 3;  // beside the header: four targets a pass

SymbolRun symbols_of(const SequenceSpec& spec) {
    return {spec.cache_salt, spec.prompt, spec.images, 0};
}

int64_t common_prefix(const SequenceSpec& a, const SequenceSpec& b) {
    const uint64_t n = std::min(a.prompt.size, b.prompt.size);
    auto at = static_cast<int64_t>(
        std::mismatch(a.prompt.begin(), a.prompt.begin() + n, b.prompt.begin()).first -
        a.prompt.begin());
    // Image rows have equal placeholder ids; what counts is their content.
    const auto bound = [&at](const SequenceSpec& x, const SequenceSpec& y) {
        for (const ImageSpan& image : x.images) {
            const bool same =
                std::any_of(y.images.begin(), y.images.end(), [&](const ImageSpan& other) {
                    return other.position == image.position && other.key == image.key;
                });
            if (!same) {
                at = std::min(at, image.position);
            }
        }
    };
    bound(a, b);
    bound(b, a);
    return at;
}

}  // namespace

PrefixCache::Hit Planner::look_up(const SequenceSpec& spec) {
    if (spec.no_prefix) {
        return {};
    }
    const bool strict =
        config_.info.numeric_classes > 1 && (config_.prefix_strict || spec.strict_prefix);
    return cache_.best(symbols_of(spec), spec.prompt_rows(), strict);
}

/// The next turn of a reply whose state the step in flight saves: one step later it finds it.
bool Planner::awaits_reply(const SequenceSpec& spec, const PrefixCache::Hit& hit) {
    const bool strict =
        config_.info.numeric_classes > 1 && (config_.prefix_strict || spec.strict_prefix);
    return !spec.no_prefix &&
           cache_.comes_deeper(symbols_of(spec), spec.prompt_rows(), strict, hit);
}

/// The borders worth a cut, nearest to the end first, the end of the system part always.
void Planner::plan_pass(Slot& s, const PrefixCache::Hit& hit) {
    const SequenceSpec& spec = *s.spec;
    s.pass = PassState();
    s.pass.keeps = cache_.enabled() && !spec.no_prefix;
    s.pass.source = hit.cut;
    s.pass.symbols_to = s.pass.settled = hit.at;
    s.pass.grid = hit.at / kGrid;
    if (const Cut* cut = cache_.find(hit.cut)) {
        s.pass.prompt_class = cut->prompt_class;
        s.pass.min_full = cut->min_target;
    }
    cache_.pin_soft(hit.cut, 1);
    const int64_t end = s.prefill_end();
    if (end > s.length) {
        s.pass.add({end, plan::CutKind::full, CutOrigin::header});
    }
    if (!s.pass.keeps) {
        return;
    }
    const auto useful = [&](const Border& b, bool system) {
        return (b.kind == BorderKind::system_end) == system && b.kind != BorderKind::last_header &&
               b.position > s.length && b.position < end;
    };
    int32_t left = kMostBorders;
    const auto take = [&](const Border& b, CutOrigin origin) {
        // A full cut apart from other targets runs its own tail through the upper layers; a
        // partial one is free, but short prompts cannot use it.
        const int64_t distance = config_.info.partial_distance;
        const int64_t next = s.pass.targets[0].at;
        const bool worth = next - b.position <= kNear || hit.matched >= b.position;
        const bool full = distance == 0 || (worth && b.position >= s.pass.min_full);
        const plan::CutKind kind = full ? plan::CutKind::full : plan::CutKind::partial;
        left -= s.pass.add({b.position, kind, origin}) ? 1 : 0;
    };
    for (const Border& b : spec.borders) {
        if (useful(b, true)) {
            --left;  // its place is kept; it is judged after its neighbours
            break;
        }
    }
    for (size_t i = spec.borders.size; i > 0 && left > 0; --i) {
        if (useful(spec.borders[i - 1], false)) {
            take(spec.borders[i - 1], CutOrigin::message);
        }
    }
    left = 1;
    for (size_t i = 0; i < spec.borders.size && left > 0; ++i) {
        if (useful(spec.borders[i], true)) {
            take(spec.borders[i], CutOrigin::system);
        }
    }
}

/// Where a chunk from the slot's length ends at the latest: cuts lie at chunk ends.
int64_t Planner::next_target(const Slot& s) const {
    for (int32_t i = 0; i < s.pass.target_count; ++i) {
        if (s.pass.targets[i].at > s.length) {
            return s.pass.targets[i].at;
        }
    }
    return s.prefill_end();
}

/// Beyond the first image only if the bound media cache keeps states.
bool Planner::may_keep(const SequenceSpec& spec, int64_t at) const {
    return config_.image_states || spec.images.empty() || at <= spec.images[0].position;
}

uint32_t Planner::begin_cut(size_t index, const PassTarget& t, int64_t min_target) {
    Slot& s = slots_[index];
    if (!may_keep(*s.spec, t.at)) {
        return 0;
    }
    PrefixCache::NewCut cut;
    cut.kind = t.kind;
    cut.origin = t.origin;
    cut.at = t.at;
    cut.min_target = min_target;
    cut.prompt_class = s.pass.prompt_class;
    cut.slot = static_cast<uint32_t>(index);
    cut.generation = s.generation;
    const uint32_t snapshot =
        cache_.begin(cut, s.pages, symbols_of(*s.spec), s.pass.symbols_to, step_ + 1, builder_);
    s.pass.symbols_to = snapshot != 0 ? t.at : s.pass.symbols_to;
    return snapshot;
}

/// Full targets that the chunk's rows work for, and what is saved at its end.
void Planner::add_targets(size_t index, plan::Chunk* c) {
    Slot& s = slots_[index];
    const int64_t distance = config_.info.partial_distance;
    c->target_off = static_cast<uint32_t>(builder_.targets.size());
    const auto add = [&](int64_t at, plan::CutKind kind, uint32_t snapshot) {
        plan::Target t;
        t.at = at;
        t.kind = kind;
        t.snapshot = snapshot;
        builder_.targets.push_back(t);
        ++c->target_count;
    };
    int64_t next_full = 0;
    bool at_end = false;
    for (int32_t i = 0; i < s.pass.target_count; ++i) {
        const PassTarget& t = s.pass.targets[i];
        const bool ends_here = t.at == c->end;
        if (t.at <= c->begin) {
            continue;
        }
        uint32_t snapshot = 0;
        if (ends_here && s.pass.keeps) {
            at_end = true;
            snapshot =
                begin_cut(index, t, t.kind == plan::CutKind::partial ? t.at + distance : t.at);
        }
        const bool full = t.kind == plan::CutKind::full;
        const bool in_reach =
            distance == 0 ? t.at == s.prefill_end() || ends_here : t.at - distance < c->end;
        if (full && in_reach) {
            next_full = next_full == 0 ? t.at : next_full;
            add(t.at, t.kind, snapshot);
        } else if (snapshot != 0) {
            add(t.at, t.kind, snapshot);
        }
    }
    // Rows behind this chunk's end went through the upper layers only as far as the next full
    // target needs: a target that is added later must not lie before it, nor nearer than the
    // distance.
    s.pass.min_full = next_full != 0 ? next_full : c->end + distance;
    if (at_end || !s.pass.keeps || c->end == s.prefill_end() ||
        c->target_count == plan::kMaxChunkTargets) {
        return;
    }
    // A chunk's end without a target of its own still makes a cancelled prompt resumable.
    PassTarget pass;
    pass.at = c->end;
    pass.origin = CutOrigin::pass;
    int64_t min_target = c->end;
    if (distance > 0) {
        pass.kind = next_full != 0 ? plan::CutKind::tail : plan::CutKind::partial;
        min_target = next_full != 0 ? next_full : c->end + distance;
    }
    const uint32_t snapshot = begin_cut(index, pass, min_target);
    if (snapshot != 0) {
        add(pass.at, pass.kind, snapshot);
    }
}

void Planner::settle_cuts(const FinishInput& input) {
    const auto good = [&](uint32_t slot, uint32_t generation) {
        return std::any_of(input.chunks.begin(), input.chunks.end(), [&](const ChunkResult& c) {
            return c.slot == slot && c.generation == generation && c.status == RowStatus::ok;
        });
    };
    cache_.settle(builder_, good, [&](const CutRef& ref, uint32_t slot, uint32_t generation) {
        Slot* s = live_slot(slot, generation);
        const Cut* cut = cache_.find(ref);
        if (cut != nullptr && cut->owner != 0 && !has_parked(cut->owner)) {
            forget_own(ref);  // its reply was cancelled meanwhile
            return;
        }
        if (s == nullptr || s->spec == nullptr || cut == nullptr) {
            return;
        }
        cache_.pin_soft(s->pass.source, -1);
        s->pass.source = ref;
        cache_.pin_soft(ref, 1);
        const bool ends_pass = cut->at == s->prefill_end();
        if (cut->origin != CutOrigin::pass && !ends_pass) {
            return;
        }
        const CutRef before = s->pass.newest;
        s->pass.newest = CutRef{};
        if (!ends_pass && cut->at / kGrid > s->pass.grid) {
            s->pass.grid = cut->at / kGrid;
        } else if (!ends_pass) {
            s->pass.newest = ref;
        }
        const Cut* old = cache_.find(before);
        if (old != nullptr && old->origin == CutOrigin::pass && old->soft_pins == 0) {
            cache_.give_up(before, builder_);
        }
    });
    for (const ChunkResult& c : input.chunks) {
        Slot* s = live_slot(c.slot, c.generation);
        if (s != nullptr && s->spec != nullptr) {
            s->pass.settled = std::min(s->length, s->prefill_end());
        }
    }
}

/// Keeps what the reply has computed, if the next turn repeats it. The slot stays open for the step
/// that saves it. False: nothing is saved, the slot may close now.
bool Planner::save_reply(size_t index) {
    Slot& s = slots_[index];
    const SequenceSpec& spec = *s.spec;
    const auto prompt = static_cast<int64_t>(spec.prompt.size);
    // A stop string may end the reply inside a window; what lies behind it was never said.
    const int64_t at = std::min(s.length, prompt + s.emitted);
    const bool reaches = config_.info.ring_slack >= config_.window_rows || s.length == at;
    if (!cache_.enabled() || spec.no_prefix || !spec.keeps_reasoning || at < prompt || !reaches ||
        !may_keep(spec, at)) {
        return false;
    }
    PrefixCache::NewCut cut;
    cut.origin = CutOrigin::reply;
    cut.at = cut.min_target = at;
    cut.prompt_class = config_.info.numeric_classes == 1;
    cut.slot = static_cast<uint32_t>(index);
    cut.generation = s.generation;
    cut.by_chunk = false;
    const SymbolRun run{spec.cache_salt, s.history.tokens().subspan(0, static_cast<uint64_t>(at)),
                        spec.images};
    plan::SnapOp op;
    op.op = plan::SnapOpKind::save;
    op.snapshot = cache_.begin(cut, s.pages, run, s.pass.symbols_to, step_ + 1, builder_);
    if (op.snapshot == 0) {
        return false;
    }
    op.slot = cut.slot;
    op.generation = s.generation;
    op.at = at;
    builder_.snap_out.push_back(op);
    s.closing_request = spec.request;
    s.spec = nullptr;  // it may be gone before the next step
    s.parking = s.starved = false;
    s.state = SlotState::saving;
    return true;
}

/// A waiting request whose prefix a running pass is computing waits for the cut there.
bool Planner::join(Waiting& w, const PrefixCache::Hit& hit, int64_t now_us) {
    if (!cache_.enabled() || w.spec->no_prefix || w.joined || config_.join_wait_us == 0) {
        return false;
    }
    for (size_t i = 0; i < slots_.size(); ++i) {
        Slot& q = slots_[i];
        if (q.state != SlotState::prefilling || !q.pass.keeps ||
            q.spec->cache_salt != w.spec->cache_salt) {
            continue;
        }
        const int64_t at = std::min(
            {common_prefix(*w.spec, *q.spec), w.spec->prompt_rows(), q.spec->prompt_rows()});
        const bool same_request = q.spec->request == w.spec->request;
        if (at <= q.length || !may_keep(*q.spec, at) ||
            at - hit.at < (same_request ? 1 : config_.join_min_rows)) {
            continue;
        }
        // The joiner's own pass ends at its prompt; a partial cut serves it only from afar.
        const int64_t distance = config_.info.partial_distance;
        const bool far = distance > 0 && w.spec->prompt_rows() - at >= distance &&
                         q.spec->prompt_rows() - at >= distance;
        if (!far && at < q.pass.min_full) {
            continue;
        }
        if (!q.pass.add(
                {at, far ? plan::CutKind::partial : plan::CutKind::full, CutOrigin::message})) {
            continue;
        }
        w.joined = true;
        w.join_slot = static_cast<int32_t>(i);
        w.join_generation = q.generation;
        w.join_at = at;
        w.join_until_us = now_us + config_.join_wait_us;
        return true;
    }
    return false;
}

/// Still waiting for the pass that it joined.
bool Planner::is_joining(const Waiting& w, int64_t now_us) const {
    if (w.join_slot < 0 || now_us >= w.join_until_us) {
        return false;
    }
    const Slot& q = slots_[static_cast<size_t>(w.join_slot)];
    return q.spec != nullptr && q.generation == w.join_generation && q.pass.settled < w.join_at;
}

/// Pages for this reply, others' cuts given up for them. False: not now.
bool Planner::make_room(int64_t pages, const PrefixCache::Hit& hit) {
    if (pages_.free() >= pages) {
        return true;
    }
    const auto enough = [&] { return pages_.free() + cache_.evictable_pages(hit.cut) >= pages; };
    // A loaded cut whose request cannot start yet must not keep others from going on.
    if (!enough() && (!spill_.let_go() || !enough())) {
        return false;
    }
    while (pages_.free() < pages) {
        if (!give_up_for_room()) {
            return false;
        }
    }
    return true;
}

/// Table, copies and state of a slot that goes on from a kept cut.
void Planner::restore(size_t index, const PrefixCache::Hit& hit) {
    Slot& s = slots_[index];
    const Cut* cut = cache_.find(hit.cut);
    if (cut == nullptr) {
        return;
    }
    const int64_t tokens = config_.info.page_tokens;
    if (hit.at % tokens != 0) {
        plan::PageCopy copy;
        copy.src = cut->pages[static_cast<size_t>(hit.at / tokens)];
        copy.dst = s.pages[static_cast<size_t>(hit.at / tokens)];
        copy.tokens = static_cast<int32_t>(hit.at % tokens);
        builder_.page_copies.push_back(copy);
    }
    plan::SnapOp op;
    op.op = plan::SnapOpKind::restore;
    op.kind = cut->kind;
    op.snapshot = cut->snapshot;
    op.slot = static_cast<uint32_t>(index);
    op.generation = s.generation;
    op.at = hit.at;
    builder_.snap_in.push_back(op);
    cache_.touch(hit.cut, step_ + 1);
    restored_.push_back(hit.cut);  // keeps its hard pin until the plan is written
}

void Planner::release_restored() {
    for (const CutRef& ref : restored_) {
        cache_.pin_hard(ref, -1);
    }
    restored_.clear();
}

/// Slots whose reply was saved by the step in flight; stream order keeps the save before whatever
/// comes next.
void Planner::close_saved() {
    for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].state == SlotState::saving) {
            close(i);
        }
    }
}

}  // namespace tenon::engine
