// SPDX-License-Identifier: MIT
// One export and one load at a time, piece by piece.
#include "host/engine/spill_plan.h"

#include <algorithm>
#include <limits>

namespace tenon::engine {
namespace {

constexpr int32_t kMostRemovals = 16;  ///< for one export; the queue is bounded
constexpr size_t kMostCommands = kSpillJobs;
constexpr int64_t kNextOutline = -1;  ///< a step has just ended: the disk's time begins there

}  // namespace

SpillPlan::SpillPlan(const SpillPlanConfig& config, const ModelInfo& info, int64_t context_tokens,
                     PrefixCache& cache)
    : config_(config),
      info_(info),
      cache_(cache),
      catalogue_(config.key, config.budget, config.areas > 0 ? config.capacity : 0),
      areas_(static_cast<size_t>(config.areas)) {
    if (!enabled()) {
        return;
    }
    out_symbols_.reserve(static_cast<size_t>(context_tokens));
    in_symbols_.reserve(static_cast<size_t>(context_tokens));
    chain_.reserve(SpillCatalogue::kMostDepth);
    chain_refs_.reserve(SpillCatalogue::kMostDepth);
    // The first commands remove what the budget has no room for.
    commands_.reserve(std::max(kMostCommands, static_cast<size_t>(config.found.size)));
    catalogue_.fill(config.found, [this](const SpillFile& file) { remove(file); });
}

SpillCommand& SpillPlan::command(SpillCommandKind kind) {
    SpillCommand& c = commands_.emplace_back();
    c.kind = kind;
    return c;
}

void SpillPlan::remove(const SpillFile& file) {
    // One that finds no place stays until the next start, where its missing parent or the budget
    // removes it.
    if (commands_.size() < commands_.capacity()) {
        command(SpillCommandKind::remove).file = file;
    }
}

/// An export leaves the last free area to a load.
SpillPlan::Area* SpillPlan::free_area(bool for_export) {
    Area* found = nullptr;
    int32_t free = 0;
    for (Area& a : areas_) {
        if (a.state == AreaState::free) {
            found = &a;
            ++free;
        }
    }
    const bool keeps_one = for_export && in_.active && areas_.size() > 1;
    return free > (keeps_one ? 1 : 0) ? found : nullptr;
}

SpillPlan::Area* SpillPlan::area_of(uint64_t job) {
    if (areas_.empty()) {
        return nullptr;
    }
    Area& a = areas_[job % areas_.size()];
    return a.state != AreaState::free && a.job == job ? &a : nullptr;
}

void SpillPlan::claim(Area* area, AreaState state) {
    const auto index = static_cast<uint64_t>(area - areas_.data());
    do {
        ++next_job_;
    } while (next_job_ % areas_.size() != index);
    *area = Area();
    area->state = state;
    area->job = next_job_;
}

/// Pages of the next piece; whether the snapshot goes with them.
int64_t SpillPlan::piece(int64_t pages_left, bool* snapshot) const {
    const int64_t most = piece_pages(config_.area_bytes, info_.page_bytes);
    const int64_t n = std::min(pages_left, most);
    *snapshot =
        n == pages_left && n * info_.page_bytes + config_.snapshot_bytes <= config_.area_bytes;
    return n;
}

bool SpillPlan::wants_export(const CutRef& ref) {
    const Cut* c = cache_.find(ref);
    return c != nullptr && c->live && c->kind == plan::CutKind::full && !c->has_images &&
           !c->no_spill && c->hard_pins == 0 && catalogue_.find(c->spill) == nullptr;
}

bool SpillPlan::start_export(const CutRef& ref, int64_t now_us) {
    const Cut& c = *cache_.find(ref);
    const Span<const int32_t> symbols = cache_.symbols(ref);
    SymbolRun run;
    run.salt = c.salt;
    run.owner = c.owner;
    run.tokens = symbols;
    const bool classes = info_.numeric_classes > 1;
    const SpillRef same = catalogue_.at(run, c.at);
    if (const SpillCatalogue::Entry* e = catalogue_.find(same)) {
        const bool serves = e->stored && (e->file.prompt_class || !c.prompt_class);
        cache_.set_spill(ref, serves ? same : SpillRef(), !serves);
        return false;
    }
    // With two numeric classes only pages of equal rows are left out.
    SpillRef parent =
        classes && !c.prompt_class ? SpillRef() : catalogue_.best(run, c.at - 1, classes);
    const SpillCatalogue::Entry* p = catalogue_.find(parent);
    if (p != nullptr && (p->depth >= SpillCatalogue::kMostDepth)) {
        parent = SpillRef();
        p = nullptr;
    }
    SpillHeader h;
    SpillFile f;
    f.lookup = catalogue_.lookup(run, c.at);
    f.at = h.at = c.at;
    f.parent_at = h.parent_at = p != nullptr ? p->file.at : 0;
    if (p != nullptr) {
        f.parent = p->file.digest;
    }
    f.first_page = static_cast<int32_t>(f.parent_at / info_.page_tokens);
    f.pages = h.pages = static_cast<int32_t>(c.pages.size()) - f.first_page;
    f.origin = static_cast<uint32_t>(c.origin);
    f.prompt_class = c.prompt_class;
    f.is_private = c.owner != 0;
    h.page_bytes = info_.page_bytes;
    h.snapshot_bytes = config_.snapshot_bytes;
    f.bytes = h.file_bytes();
    const bool room = catalogue_.make_room(f.bytes, parent, kMostRemovals,
                                           [this](const SpillFile& file) { remove(file); });
    const SpillRef entry = room ? catalogue_.add(f, parent) : SpillRef();
    if (entry.id < 0) {
        cache_.set_spill(ref, SpillRef(), f.bytes > config_.budget);
        return false;
    }
    catalogue_.pin(entry, 1);
    out_ = Out();
    out_.active = true;
    out_.cut = ref;
    out_.entry = entry;
    out_.owner = c.owner;
    out_.next_page = f.first_page;
    out_.end_page = static_cast<int64_t>(c.pages.size());
    out_.since_us = now_us;
    out_symbols_.assign(symbols.begin() + f.parent_at, symbols.end());
    SpillCommand& begin = command(SpillCommandKind::write_begin);
    begin.file = f;
    begin.salt = run.salt;
    begin.owner = run.owner;
    begin.symbols = out_symbols_;
    cache_.pin_hard(ref, 1);
    return true;
}

void SpillPlan::write_exports(PlanBuilder& builder) {
    while (out_.active && !out_.snapshot_sent) {
        const Cut* c = cache_.find(out_.cut);
        bool snapshot = false;
        const int64_t n = piece(out_.end_page - out_.next_page, &snapshot);
        if (c == nullptr || !builder.has_room(static_cast<uint64_t>(n), 0)) {
            return;
        }
        Area* area = free_area(true);
        if (area == nullptr) {
            return;
        }
        claim(area, AreaState::exporting);
        area->page = out_.next_page;
        area->pages = n;
        area->snapshot = snapshot;
        plan::SnapOp op;
        op.op = plan::SnapOpKind::exports;
        op.snapshot = snapshot ? c->snapshot : 0;
        op.at = c->at;
        op.job = area->job;
        op.pages_count = op.staged = static_cast<uint32_t>(n);
        op.pages_off =
            builder.add_pages({c->pages.data() + out_.next_page, static_cast<uint64_t>(n)});
        builder.snap_out.push_back(op);
        out_.next_page += n;
        out_.snapshot_sent = snapshot;
    }
}

void SpillPlan::end_export(bool stored) {
    if (!out_.staged) {
        cache_.pin_hard(out_.cut, -1);
    }
    catalogue_.pin(out_.entry, -1);
    if (!stored) {
        // Nothing builds on an entry that was never stored.
        catalogue_.drop(out_.entry, [](const SpillFile&) {});
    } else if (out_.unwanted) {
        catalogue_.drop(out_.entry, [this](const SpillFile& file) { remove(file); });
    }
    if (out_.unwanted) {
        cache_.set_spill(out_.cut, SpillRef(), true);
    }
    out_.active = false;
}

bool SpillPlan::can_load() const {
    const auto has = [this](AreaState state) {
        return std::any_of(areas_.begin(), areas_.end(),
                           [state](const Area& a) { return a.state == state; });
    };
    // Reads under way still use the buffers of the load before.
    return enabled() && !in_.active && has(AreaState::free) && !has(AreaState::reading);
}

SpillRef SpillPlan::deeper(const SymbolRun& run, int64_t last, int64_t at, bool prompt_class_only) {
    const SpillRef ref = enabled() && catalogue_.count() > 0
                             ? catalogue_.best(run, last, prompt_class_only)
                             : SpillRef();
    const SpillCatalogue::Entry* e = catalogue_.find(ref);
    // The rows that it would spare against a file to read.
    const int64_t least = std::min<int64_t>(at, info_.page_tokens / 2);
    return e != nullptr && e->file.at - at >= std::max<int64_t>(least, 1) ? ref : SpillRef();
}

int64_t SpillPlan::shared_pages(const SpillRef& ref, const PrefixCache::Hit& hit) const {
    const Cut* cut = cache_.find(hit.cut);
    const bool equal = info_.numeric_classes == 1 || (cut != nullptr && cut->prompt_class &&
                                                      catalogue_.find(ref)->file.prompt_class);
    return cut != nullptr && equal ? hit.at / info_.page_tokens : 0;
}

bool SpillPlan::start_load(const SpillRef& ref, const SymbolRun& run, const PrefixCache::Hit& hit,
                           uint64_t waiter, uint64_t step, int64_t now_us, PlanBuilder& builder) {
    const SpillFile target = catalogue_.find(ref)->file;
    const int64_t shared = shared_pages(ref, hit);
    PrefixCache::NewCut cut;
    cut.origin = static_cast<CutOrigin>(target.origin);
    cut.at = cut.min_target = target.at;
    cut.prompt_class = target.prompt_class;
    const Cut* source = cache_.find(hit.cut);
    const Span<const int32_t> pages =
        source == nullptr
            ? Span<const int32_t>()
            : Span<const int32_t>(source->pages.data(), static_cast<uint64_t>(shared));
    in_ = In();
    in_.cut = cache_.reserve(cut, pages, run, step, builder);
    if (cache_.find(in_.cut) == nullptr) {
        return false;
    }
    cache_.set_spill(in_.cut, ref, false);
    in_.active = true;
    in_.hit = hit.cut;
    in_.ref = ref;
    in_.waiter = waiter;
    in_.next_page = shared;
    in_.end_page = (target.at + info_.page_tokens - 1) / info_.page_tokens;
    in_.since_us = now_us;
    cache_.pin_hard(in_.hit, 1);
    SpillRef links[SpillCatalogue::kMostDepth];
    const int32_t depth = catalogue_.chain(ref, links);
    chain_.clear();
    chain_refs_.clear();
    for (int32_t i = 0; i < depth; ++i) {
        catalogue_.pin(links[i], 1);
        chain_refs_.push_back(links[i]);
        chain_.push_back(catalogue_.find(links[i])->file);
    }
    catalogue_.touch(ref);
    in_symbols_.assign(run.tokens.begin(), run.tokens.begin() + target.at);
    SpillCommand& begin = command(SpillCommandKind::load_begin);
    begin.salt = run.salt;
    begin.owner = run.owner;
    begin.symbols = in_symbols_;
    begin.chain = chain_;
    ask_pieces();
    return true;
}

/// Reads into every free area. A page comes from the last file of the chain that has it.
void SpillPlan::ask_pieces() {
    while (in_.active && !in_.snapshot_asked) {
        const auto links = static_cast<int32_t>(chain_.size());
        int32_t link = links - 1;
        while (link > 0 && chain_[static_cast<size_t>(link)].first_page > in_.next_page) {
            --link;
        }
        const bool last = link == links - 1;
        const int64_t end = last ? in_.end_page : chain_[static_cast<size_t>(link) + 1].first_page;
        bool snapshot = false;
        const int64_t n = piece(end - in_.next_page, &snapshot);
        Area* area = free_area(false);
        if (area == nullptr) {
            return;
        }
        claim(area, AreaState::reading);
        area->page = in_.next_page;
        area->pages = n;
        area->snapshot = snapshot && last;
        area->link = link;
        SpillCommand& c = command(SpillCommandKind::read_piece);
        c.job = area->job;
        c.chain = chain_;
        c.link = link;
        c.page = static_cast<int32_t>(in_.next_page - chain_[static_cast<size_t>(link)].first_page);
        c.pages = static_cast<int32_t>(n);
        c.snapshot = area->snapshot;
        c.bytes = bytes_of(*area);
        in_.next_page += n;
        in_.snapshot_asked = area->snapshot;
    }
}

/// Pieces in the order in which they were asked for, so that the snapshot comes last.
void SpillPlan::write_imports(PlanBuilder& builder) {
    for (;;) {
        Area* next = nullptr;
        for (Area& a : areas_) {
            const bool waits = a.state == AreaState::ready || a.state == AreaState::reading;
            if (waits && !a.stale && (next == nullptr || a.job < next->job)) {
                next = &a;
            }
        }
        const Cut* c = cache_.find(in_.cut);
        if (next == nullptr || next->state != AreaState::ready || !in_.active || c == nullptr) {
            return;
        }
        const int64_t first = next->snapshot ? 0 : next->page;
        const auto count = static_cast<uint64_t>(next->page + next->pages - first);
        if (!builder.has_room(count, 0)) {
            return;
        }
        plan::SnapOp op;
        op.op = plan::SnapOpKind::import;
        op.snapshot = next->snapshot ? c->snapshot : 0;
        op.at = c->at;
        op.job = next->job;
        op.pages_count = static_cast<uint32_t>(count);
        op.staged = static_cast<uint32_t>(next->pages);
        op.pages_off = builder.add_pages({c->pages.data() + first, count});
        builder.snap_in.push_back(op);
        next->state = AreaState::importing;
    }
}

void SpillPlan::write(PlanBuilder& builder) {
    if (!enabled()) {
        return;
    }
    ask_pieces();
    write_imports(builder);
    write_exports(builder);
}

void SpillPlan::end_load(bool live, PlanBuilder& builder) {
    for (const SpillRef& link : chain_refs_) {
        catalogue_.pin(link, -1);
    }
    cache_.pin_hard(in_.hit, -1);
    for (Area& a : areas_) {
        if (a.state == AreaState::ready) {
            a.state = AreaState::free;
        }
        a.stale = a.stale || a.state == AreaState::reading || a.state == AreaState::importing;
    }
    in_.active = false;
    if (!live) {
        ++misses_;
        cache_.abandon(in_.cut);
        return;
    }
    ++hits_;
    const CutRef cut = cache_.settle_import(in_.cut, builder);
    if (in_.unwanted) {
        catalogue_.drop(in_.ref, [this](const SpillFile& file) { remove(file); });
        cache_.give_up(cut, builder);
    } else if (in_.waiter != 0) {
        release(ready_for_);
        ready_ = cut;
        ready_for_ = in_.waiter;
        cache_.pin_hard(ready_, 1);
    }
}

void SpillPlan::release(uint64_t waiter) {
    if (ready_for_ == waiter && waiter != 0) {
        cache_.pin_hard(ready_, -1);
        ready_ = CutRef();
        ready_for_ = 0;
    }
    if (in_.waiter == waiter) {
        in_.waiter = 0;  // it goes live unpinned
    }
}

bool SpillPlan::let_go() {
    const bool has = cache_.find(ready_) != nullptr && ready_for_ != 0;
    release(ready_for_);
    return has;
}

void SpillPlan::forget(const SpillRef& ref) {
    const SpillCatalogue::Entry* e = catalogue_.find(ref);
    if (e != nullptr && e->pins == 0) {
        catalogue_.drop(ref, [this](const SpillFile& file) { remove(file); });
    }
}

void SpillPlan::forget_moving(uint64_t owner) {
    out_.unwanted = out_.unwanted || is_writing_for(owner);
    const Cut* in = in_.active ? cache_.find(in_.cut) : nullptr;
    in_.unwanted = in_.unwanted || (in != nullptr && in->owner == owner);
}

void SpillPlan::take(const SpillEvent& e, int64_t now_us, PlanBuilder& builder) {
    if (out_.active) {
        out_.since_us = now_us;
    }
    if (in_.active) {
        in_.since_us = now_us;
    }
    Area* area = area_of(e.job);
    switch (e.kind) {
        case SpillEventKind::piece_written:
            if (area != nullptr) {
                area->state = AreaState::free;
            }
            break;
        case SpillEventKind::stored:
            if (out_.active) {
                catalogue_.stored(out_.entry, e.digest);
                end_export(true);
            }
            break;
        case SpillEventKind::write_failed:
            if (area != nullptr) {
                area->state = AreaState::free;
            }
            no_writes_ = no_writes_ || e.no_writes;
            waits_for_abort_ = false;
            if (out_.active && (e.no_writes || e.job != 0)) {
                end_export(false);
            }
            break;
        case SpillEventKind::piece_read:
            if (area != nullptr) {
                area->state = area->stale ? AreaState::free : AreaState::ready;
            }
            break;
        case SpillEventKind::read_failed: {
            const bool stale = area != nullptr && area->stale;
            if (area != nullptr) {
                area->state = AreaState::free;
            }
            if (stale || !in_.active) {
                break;
            }
            const SpillRef bad = chain_refs_[static_cast<size_t>(e.link)];
            const SpillRef target = in_.ref;
            end_load(false, builder);
            if (e.is_gone) {
                catalogue_.drop(bad, [this](const SpillFile& file) { remove(file); });
            } else {
                catalogue_.drop(target, [](const SpillFile&) {});  // another sequence; a good file
            }
            break;
        }
    }
}

void SpillPlan::take(Span<const JobResult> jobs, PlanBuilder& builder) {
    for (const JobResult& r : jobs) {
        Area* area = area_of(r.job);
        if (area == nullptr) {
            continue;
        }
        if (area->state == AreaState::exporting) {
            if (!out_.active) {  // its file was given up meanwhile
                area->state = AreaState::free;
                continue;
            }
            area->state = AreaState::writing;
            out_.since_us = kNextOutline;
            SpillCommand& c = command(SpillCommandKind::write_piece);
            c.job = area->job;
            c.bytes = bytes_of(*area);
            if (area->snapshot) {
                const SpillCatalogue::Entry* e = catalogue_.find(out_.entry);
                SpillCommand& end = command(SpillCommandKind::write_end);
                end.job = area->job | uint64_t{1} << 63;  // names no area
                end.file = e->file;
                cache_.set_spill(out_.cut, out_.entry, false);
                cache_.pin_hard(out_.cut, -1);  // all of it is in the staging areas
                out_.staged = true;
            }
            continue;
        }
        if (area->state == AreaState::importing) {
            const bool done = area->snapshot && !area->stale;
            area->state = AreaState::free;
            if (done && in_.active) {
                end_load(true, builder);
            } else if (in_.active) {
                in_.since_us = kNextOutline;
            }
        }
    }
}

void SpillPlan::expire(int64_t now_us, PlanBuilder& builder) {
    // A step that takes long is not the disk's fault; and what it imports cannot be taken back.
    const auto start_anew = [&](int64_t* since_us, AreaState by_step) {
        const bool in_step = std::any_of(areas_.begin(), areas_.end(), [by_step](const Area& a) {
            return a.state == by_step && !a.stale;
        });
        *since_us = in_step || *since_us == kNextOutline ? now_us : *since_us;
    };
    start_anew(&out_.since_us, AreaState::exporting);
    start_anew(&in_.since_us, AreaState::importing);
    if (in_.active && now_us - in_.since_us >= config_.stall_us) {
        end_load(false, builder);
    }
    if (out_.active && now_us - out_.since_us >= config_.stall_us) {
        command(SpillCommandKind::write_abort);
        waits_for_abort_ = true;
        end_export(false);
    }
}

int64_t SpillPlan::due_us() const {
    int64_t due = std::numeric_limits<int64_t>::max();
    const auto look = [&](bool active, int64_t since_us) {
        const int64_t at = since_us == kNextOutline ? 0 : since_us + config_.stall_us;
        due = active ? std::min(due, at) : due;
    };
    look(in_.active, in_.since_us);
    look(out_.active, out_.since_us);
    return due;
}

}  // namespace tenon::engine
