// SPDX-License-Identifier: MIT
// Accounts of kept cuts and the order in which they go.
#include "host/engine/prefix_cache.h"

#include <algorithm>
#include <tuple>

namespace tenon::engine {

int32_t PrefixCache::cut_capacity(const Config& config) {
    return config.cells > 1 ? config.cells : 0;  // a cut takes at least one cell
}

PrefixCache::PrefixCache(const Config& config, PageAllocator& pages)
    : config_(config),
      pages_(pages),
      index_(config.pool_pages, config.info.page_tokens, config.pages_per_slot,
             cut_capacity(config)),
      cells_(config.cells > 1 ? config.cells : 0),
      kept_(static_cast<size_t>(cut_capacity(config)), 0) {
    pending_.reserve(static_cast<size_t>(config.slots) + plan::kMaxChunks);
}

const Cut* PrefixCache::find(const CutRef& ref) const {
    if (ref.id < 0) {
        return nullptr;
    }
    const Cut& c = index_.cut(ref.id);
    return c.used && c.stamp == ref.stamp ? &c : nullptr;
}

PrefixCache::Hit PrefixCache::best(const SymbolRun& run, int64_t last, bool prompt_class_only) {
    Hit hit;
    if (!enabled()) {
        return hit;
    }
    const int32_t id = index_.find(run, &hit.matched, [&](int32_t at) {
        const Cut& c = index_.cut(at);
        // At `last` itself there is no pass: only a full cut is enough.
        return c.at <= last && c.min_target <= last && (c.prompt_class || !prompt_class_only);
    });
    if (id >= 0) {
        hit.cut = ref_of(id);
        hit.at = index_.cut(id).at;
    }
    return hit;
}

bool PrefixCache::comes_deeper(const SymbolRun& run, int64_t last, bool prompt_class_only,
                               const Hit& hit) {
    return std::any_of(pending_.begin(), pending_.end(), [&](const Pending& p) {
        const Cut* c = find(p.cut);
        return c != nullptr && !p.by_chunk && c->at > hit.at && c->at <= last &&
               c->min_target <= last && (c->prompt_class || !prompt_class_only) &&
               index_.begins_with(run, p.cut.id);
    });
}

void PrefixCache::touch(const CutRef& ref, uint64_t step) {
    if (find(ref) != nullptr) {
        Cut& c = index_.cut(ref.id);
        c.use_step = step;
        ++c.hits;
    }
}

void PrefixCache::pin_hard(const CutRef& ref, int32_t delta) {
    if (find(ref) != nullptr) {
        index_.cut(ref.id).hard_pins += delta;
    }
}

void PrefixCache::pin_soft(const CutRef& ref, int32_t delta) {
    if (find(ref) != nullptr) {
        index_.cut(ref.id).soft_pins += delta;
    }
}

/// A snapshot cell and a place in the index; others are given up for the cell. -1: `snapshot` may
/// be taken, and is the caller's to release.
int32_t PrefixCache::take(plan::CutKind kind, PlanBuilder& builder, uint32_t* snapshot) {
    *snapshot = cells_.take(kind);
    while (*snapshot == 0 && evict(builder)) {
        *snapshot = cells_.take(kind);
    }
    return *snapshot == 0 ? -1 : index_.take();
}

void PrefixCache::describe(const NewCut& n, const SymbolRun& run, uint32_t snapshot, uint64_t step,
                           Cut* out) {
    out->kind = n.kind;
    out->origin = n.origin;
    out->at = n.at;
    out->min_target = n.min_target;
    out->prompt_class = n.prompt_class;
    out->salt = run.salt;
    out->owner = run.owner;
    out->snapshot = snapshot;
    out->use_step = step;
}

uint32_t PrefixCache::begin(const NewCut& n, Span<const int32_t> pages, const SymbolRun& run,
                            int64_t symbols_from, uint64_t step, PlanBuilder& builder) {
    if (!enabled()) {
        return 0;
    }
    uint32_t snapshot = 0;
    const int32_t id = take(n.kind, builder, &snapshot);
    if (id < 0) {
        if (snapshot != 0) {
            cells_.release(snapshot, n.kind);
        }
        return 0;
    }
    Cut& c = index_.cut(id);
    describe(n, run, snapshot, step, &c);
    const auto count =
        static_cast<uint64_t>((n.at + config_.info.page_tokens - 1) / config_.info.page_tokens);
    c.pages.assign(pages.begin(), pages.begin() + count);
    if (!index_.write_symbols(id, run, symbols_from)) {
        cells_.release(snapshot, n.kind);
        index_.release(id);
        return 0;
    }
    for (const int32_t page : c.pages) {
        pages_.hold(page);
    }
    pending_.push_back({ref_of(id), n.slot, n.generation, n.by_chunk});
    return snapshot;
}

CutRef PrefixCache::go_live(int32_t id, PlanBuilder& builder) {
    const int32_t other = index_.link(id);
    if (other < 0) {
        return ref_of(id);
    }
    // The same cut was made twice. The one that more requests can use stays.
    Cut& old = index_.cut(other);
    const Cut& fresh = index_.cut(id);
    const bool old_serves =
        old.min_target <= fresh.min_target && (old.prompt_class || !fresh.prompt_class);
    if (old_serves || old.hard_pins > 0) {
        old.use_step = std::max(old.use_step, fresh.use_step);
        old.origin = std::max(old.origin, fresh.origin);
        drop(id, builder);
        return ref_of(other);
    }
    drop(other, builder);  // soft pins of live slots name it still; they are ignored from now on
    TENON_CHECK(index_.link(id) < 0, "cut at {}", index_.cut(id).at);
    return ref_of(id);
}

void PrefixCache::drop(int32_t id, PlanBuilder& builder) {
    Cut& c = index_.cut(id);
    plan::SnapOp op;
    op.op = plan::SnapOpKind::drop;
    op.kind = c.kind;
    op.snapshot = c.snapshot;
    op.at = c.at;
    builder.snap_in.push_back(op);
    cells_.release(c.snapshot, c.kind);
    for (const int32_t page : c.pages) {
        pages_.unhold(page);
    }
    index_.release(id);
}

void PrefixCache::give_up(const CutRef& ref, PlanBuilder& builder) {
    const Cut* c = find(ref);
    if (c != nullptr && c->live && c->hard_pins == 0 && builder.has_snap_room()) {
        drop(ref.id, builder);
    }
}

/// Everything above a cut from which a live slot went on.
void PrefixCache::mark_kept() const {
    std::fill(kept_.begin(), kept_.end(), uint8_t{0});
    for (int32_t i = 0; i < index_.capacity(); ++i) {
        const Cut& c = index_.cut(i);
        if (!c.used || !c.live || (c.soft_pins == 0 && c.hard_pins == 0)) {
            continue;
        }
        for (int32_t at = i; at >= 0 && kept_[static_cast<size_t>(at)] == 0;
             at = index_.cut(at).parent) {
            kept_[static_cast<size_t>(at)] = 1;
        }
    }
}

PrefixCache::Worth PrefixCache::worth_of(int32_t id) const {
    const Cut& c = index_.cut(id);
    return {kept_[static_cast<size_t>(id)], c.origin, c.use_step, c.stamp};
}

int32_t PrefixCache::victims(CutRef* out, int32_t count) const {
    mark_kept();
    int32_t n = 0;
    for (int32_t i = 0; i < index_.capacity(); ++i) {
        const Cut& c = index_.cut(i);
        if (!c.used || !c.live || c.hard_pins > 0) {
            continue;
        }
        int32_t at = n;
        while (at > 0 && worth_of(i) < worth_of(out[at - 1].id)) {
            --at;
        }
        if (at == count) {
            continue;
        }
        n = std::min(n + 1, count);
        std::copy_backward(out + at, out + n - 1, out + n);
        out[at] = ref_of(i);
    }
    return n;
}

CutRef PrefixCache::reserve(const NewCut& n, Span<const int32_t> shared, const SymbolRun& run,
                            uint64_t step, PlanBuilder& builder) {
    uint32_t snapshot = 0;
    const int32_t id = take(n.kind, builder, &snapshot);
    const auto count =
        static_cast<uint64_t>((n.at + config_.info.page_tokens - 1) / config_.info.page_tokens);
    if (id >= 0) {
        Cut& c = index_.cut(id);
        c.pages.assign(shared.begin(), shared.end());
        c.pages.resize(count);
        const Span<int32_t> own(c.pages.data() + shared.size, count - shared.size);
        if (pages_.take(own)) {
            for (const int32_t page : c.pages) {
                pages_.hold(page);
            }
            for (const int32_t page : own) {
                pages_.release(page);  // only the cut has it
            }
            describe(n, run, snapshot, step, &c);
            const int64_t from = static_cast<int64_t>(shared.size) * config_.info.page_tokens;
            SymbolRun text = run;
            text.images = {};  // spilled cuts lie before any image
            TENON_CHECK(index_.write_symbols(id, text, from), "cut at {}", n.at);
            return ref_of(id);
        }
        c.pages.clear();
        index_.release(id);
    }
    if (snapshot != 0) {
        cells_.release(snapshot, n.kind);
    }
    return {};
}

void PrefixCache::abandon(const CutRef& ref) {
    Cut& c = index_.cut(ref.id);
    cells_.release(c.snapshot, c.kind);
    for (const int32_t page : c.pages) {
        pages_.unhold(page);
    }
    index_.release(ref.id);
}

void PrefixCache::set_spill(const CutRef& ref, const SpillName& file, bool never) {
    if (find(ref) != nullptr) {
        index_.cut(ref.id).spill = file;
        index_.cut(ref.id).no_spill = never;
    }
}

int32_t PrefixCache::victim() const {
    mark_kept();
    int32_t best = -1;
    Worth best_key{};
    for (int32_t i = 0; i < index_.capacity(); ++i) {
        const Cut& c = index_.cut(i);
        if (!c.used || !c.live || c.hard_pins > 0) {
            continue;
        }
        const Worth key = worth_of(i);
        if (best < 0 || key < best_key) {
            best = i;
            best_key = key;
        }
    }
    return best;
}

bool PrefixCache::evict(PlanBuilder& builder) {
    const int32_t id = builder.has_snap_room() ? victim() : -1;
    if (id < 0) {
        return false;
    }
    drop(id, builder);
    return true;
}

int64_t PrefixCache::evictable_pages(const CutRef& except) const {
    int64_t n = pages_.held_only();
    // Pages of cuts that wait for their step, or are pinned hard, cannot go now. One that two of
    // them hold is taken off twice: too few for a moment is safe.
    for (int32_t i = 0; i < index_.capacity(); ++i) {
        const Cut& c = index_.cut(i);
        const bool stays =
            c.used && (!c.live || c.hard_pins > 0 || (i == except.id && c.stamp == except.stamp));
        for (size_t p = 0; stays && p < c.pages.size(); ++p) {
            n -= pages_.holds(c.pages[p]) == pages_.references(c.pages[p]) ? 1 : 0;
        }
    }
    return std::max<int64_t>(n, 0);
}

}  // namespace tenon::engine
