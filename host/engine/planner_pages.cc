// SPDX-License-Identifier: MIT
// Pages on demand, and what happens when they run out: the newest reply waits, none fails
// (engine.md 3.3).
#include "host/engine/planner.h"

#include <algorithm>
#include <tuple>

namespace tenon::engine {

/// Order in which replies get pages, the first is never parked for another: foreground, and what
/// has waited past the fairness bound of its class, before background; then by arrival.
std::tuple<bool, uint64_t> Planner::seniority(const SequenceSpec& spec) const {
    const bool yields =
        spec.background && now_us_ - spec.arrival_us <= config_.fairness_background_us;
    return {yields, spec.arrival_seq};
}

/// Pages that a reply of `known` tokens starts with: its tokens and two windows.
int64_t Planner::first_pages(const SequenceSpec& spec, int64_t known) const {
    return config_.pages_of(
        std::min(known + 2 * int64_t{config_.window_rows}, spec.positions_needed()));
}

int64_t Planner::live_slots() const {
    return std::count_if(slots_.begin(), slots_.end(),
                         [](const Slot& s) { return s.state != SlotState::free; });
}

int64_t Planner::parked() const {
    return std::count_if(parked_.begin(), parked_.end(),
                         [](const Parked& p) { return p.spec != nullptr; });
}

/// Pages for a reply that gets a slot, and one for each live slot to go on with; pins the cut of
/// `hit` hard. False: not now, nothing is pinned.
bool Planner::reserve(int64_t pages, const SequenceSpec& spec, PrefixCache::Hit* hit) {
    if (!builder_.has_room(static_cast<uint64_t>(pages), spec.bias.size + spec.counts.size)) {
        return false;
    }
    // Before anything is given up for it: the prefix that it is about to use.
    cache_.pin_hard(hit->cut, 1);
    const int64_t live = live_slots();
    if (make_room(pages - hit->at / config_.info.page_tokens + live, *hit)) {
        return true;
    }
    cache_.pin_hard(hit->cut, -1);
    if (spill_.is_exporting()) {
        return false;  // pages come when the cut that is being written may go
    }
    if (live == 0 && hit->at > 0) {
        // Nobody will give pages back. A cut inside a page keeps that page beside the reply's own
        // ones, so a reply as long as the pool has to go without it.
        spill_.release(spec.arrival_seq);
        forget_own(hit->cut);
        *hit = PrefixCache::Hit{};
        return make_room(pages, *hit);
    }
    mark_for(nullptr);
    return false;
}

/// Makes sure that every decoding slot has pages for the window in flight and the next one; the
/// oldest first. Where pages are missing, the newest slot is marked for parking and the older one
/// rests until its pages come.
void Planner::grow_pages() {
    uint32_t order[kMaxSlots];
    int32_t count = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
        slots_[i].starved = false;
        // One whose client reads nothing gets pages when it goes on.
        if (slots_[i].state == SlotState::decoding && !slots_[i].parking &&
            slots_[i].blocked_since < 0) {
            order[count++] = static_cast<uint32_t>(i);
        }
    }
    std::sort(order, order + count, [this](uint32_t a, uint32_t b) {
        return seniority(*slots_[a].spec) < seniority(*slots_[b].spec);
    });
    for (int32_t i = 0; i < count; ++i) {
        Slot& s = slots_[order[i]];
        if (s.parking) {
            continue;
        }
        const int64_t reach = std::max(s.known(), s.length + 1) + 2 * int64_t{config_.window_rows};
        const int64_t owned = static_cast<int64_t>(s.pages.size());
        const int64_t need = config_.pages_of(std::min(reach, s.spec->positions_needed())) - owned;
        if (need <= 0) {
            continue;
        }
        while (pages_.free() < need && give_up_for_room()) {
        }
        if (pages_.free() < need || !builder_.has_room(static_cast<uint64_t>(need), 0)) {
            s.starved = true;
            if (!spill_.is_exporting()) {  // whose pages may be enough
                mark_for(&s);
            }
            continue;
        }
        s.pages.resize(static_cast<size_t>(owned + need));
        const Span<int32_t> added(s.pages.data() + owned, static_cast<uint64_t>(need));
        TENON_CHECK(pages_.take(added), "{} pages", need);
        plan::PageMap map;
        map.slot = order[i];
        map.generation = s.generation;
        map.first_index = static_cast<uint32_t>(owned);
        map.count = static_cast<uint32_t>(need);
        map.pages_off = builder_.add_pages(added);
        builder_.page_maps.push_back(map);
    }
}

/// Marks a slot whose pages `needy` (null: a reply without a slot) gets: one whose client reads
/// nothing, else the newest that came after `needy`. One at a time, since its pages may be enough.
void Planner::mark_for(const Slot* needy) {
    Slot* best = nullptr;
    const auto key = [this](const Slot& s) {
        return std::make_tuple(s.blocked_since >= 0, seniority(*s.spec));
    };
    for (Slot& s : slots_) {
        if (s.spec == nullptr || &s == needy) {
            continue;
        }
        if (s.parking) {
            return;  // its pages come with the results of the step in flight
        }
        const bool may = s.blocked_since >= 0 ||
                         (needy != nullptr && seniority(*needy->spec) < seniority(*s.spec));
        if (may && (best == nullptr || key(*best) < key(s))) {
            best = &s;
        }
    }
    if (best != nullptr) {
        best->parking = true;
    }
}

/// After the results: marked slots that have not ended give their pages back.
void Planner::park_marked() {
    for (size_t i = 0; i < slots_.size(); ++i) {
        Slot& s = slots_[i];
        if (s.state == SlotState::free || !s.parking) {
            continue;
        }
        const auto free = std::find_if(parked_.begin(), parked_.end(),
                                       [](const Parked& p) { return p.spec == nullptr; });
        TENON_CHECK(free != parked_.end(), "{} parked replies", parked_.size());
        free->spec = s.spec;
        free->emitted = s.emitted;
        free->blocked_since = s.blocked_since;
        effects_.push_back({EffectKind::parked, EndCause::complete, static_cast<uint32_t>(i),
                            s.generation, s.spec});
        free->has_state = save_parked(i);
        std::swap(free->history, s.history);
        if (!free->has_state) {
            close(i);
            continue;
        }
        // The slot stays open for the step that saves it.
        s.closing_request = s.spec->request;
        s.spec = nullptr;
        s.parking = s.starved = false;
        s.state = SlotState::saving;
    }
}

/// Of those that could go on.
Planner::Parked* Planner::oldest_parked() {
    Parked* oldest = nullptr;
    for (Parked& p : parked_) {
        if (p.spec != nullptr && p.blocked_since < 0 &&
            (oldest == nullptr || seniority(*p.spec) < seniority(*oldest->spec))) {
            oldest = &p;
        }
    }
    return oldest;
}

/// The oldest first, and nobody past it: pages that would do for a shorter reply are kept for it.
void Planner::resume_parked() {
    for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].state != SlotState::free) {
            continue;
        }
        Parked* p = oldest_parked();
        if (p == nullptr) {
            return;
        }
        PrefixCache::Hit hit;
        if (!find_parked(*p, &hit)) {
            return;
        }
        const int64_t pages = first_pages(*p->spec, static_cast<int64_t>(p->history.tokens().size));
        if (!reserve(pages, *p->spec, &hit)) {
            return;
        }
        const Cut* own = cache_.find(hit.cut);
        if (p->has_state && (own == nullptr || own->owner == 0)) {
            forget_parked(*p->spec, p->history.tokens());
        }
        Waiting next;
        next.spec = p->spec;
        next.blocked_since = p->blocked_since;
        next.parked = static_cast<int32_t>(p - parked_.data());
        open(i, next, hit);
        slots_[i].spent = own != nullptr && own->owner != 0 ? hit.cut : CutRef();
    }
}

}  // namespace tenon::engine
