// SPDX-License-Identifier: MIT
// Admission of waiting replies, and slots from open to close.
#include "host/engine/planner.h"

#include <algorithm>
#include <tuple>

namespace tenon::engine {

size_t Planner::next_waiting(const SchedulerView& view) const {
    size_t best = waiting_.size();
    std::tuple<int, bool, int64_t, uint64_t> best_key{};
    for (size_t i = 0; i < waiting_.size(); ++i) {
        const SequenceSpec& spec = *waiting_[i].spec;
        if (waiting_[i].blocked_since >= 0) {
            continue;  // its front end does not even take what it has
        }
        if (is_joining(waiting_[i], view.now_us) ||
            spill_.is_loading_for(waiting_[i].spec->arrival_seq) ||
            (waiting_[i].wants_load && !spill_.can_load() && spill_.is_active())) {
            continue;
        }
        const int64_t rows = waiting_[i].remaining();
        const bool overdue =
            base_.is_overdue(view, view.now_us - spec.arrival_us, rows, spec.background);
        const auto key =
            std::make_tuple(overdue ? 0 : 1, spec.background, overdue ? 0 : rows, spec.arrival_seq);
        if (best == waiting_.size() || key < best_key) {
            best = i;
            best_key = key;
        }
    }
    return best;
}

void Planner::admit(int64_t now_us) {
    SchedulerView costs;
    costs.now_us = now_us;
    costs.chunk_rows = config_.chunk_rows;
    costs.stage_us = costs_.stage_table();
    for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].state != SlotState::free) {
            continue;
        }
        const size_t next = next_waiting(costs);
        if (next == waiting_.size()) {
            return;
        }
        const SequenceSpec& spec = *waiting_[next].spec;
        const Parked* parked = oldest_parked();
        if (parked != nullptr &&
            std::get<0>(seniority(*parked->spec)) <= std::get<0>(seniority(spec))) {
            return;  // it had a slot before; a background reply yields, but not for ever
        }
        if (live_slots() + this->parked() >= static_cast<int64_t>(parked_.size())) {
            return;  // every live slot may have to be parked
        }
        PrefixCache::Hit hit = look_up(spec);
        if (awaits_reply(spec, hit)) {
            return;
        }
        if (join(waiting_[next], hit, now_us)) {
            --i;
            continue;
        }
        if (load_deeper(waiting_[next], hit, now_us)) {
            if (!spill_.is_loading_for(spec.arrival_seq) && spill_.can_load()) {
                return;  // it waits for pages, and nobody overtakes it
            }
            --i;
            continue;
        }
        const int64_t pages = first_pages(spec, static_cast<int64_t>(spec.prompt.size));
        // Nobody overtakes a reply that waits for pages: it would starve behind smaller ones.
        if (!reserve(pages, spec, &hit)) {
            return;
        }
        const Waiting chosen = waiting_[next];
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(next));
        open(i, chosen, hit);
    }
}

void Planner::open(size_t index, const Waiting& next, const PrefixCache::Hit& hit) {
    const SequenceSpec& spec = *next.spec;
    Slot& s = slots_[index];
    const auto slot_id = static_cast<uint32_t>(index);
    ++s.generation;
    s.spec = next.spec;
    s.length = hit.at;
    s.emitted = 0;
    s.candidate_count = 0;
    s.blocked_since = next.blocked_since;
    if (next.parked >= 0) {
        Parked& p = parked_[static_cast<size_t>(next.parked)];
        std::swap(s.history, p.history);
        s.emitted = p.emitted;
        p.spec = nullptr;
    } else {
        s.history.open(spec.prompt);
    }
    s.parking = s.starved = false;
    s.draft = DraftRecord{};
    s.draft.sampled = spec.sampler.temperature > 0;
    s.state = s.prefill_end() > s.length ? SlotState::prefilling : SlotState::decoding;
    s.pending = s.history.tokens()[s.history.tokens().size - 1];
    s.pages.resize(static_cast<size_t>(first_pages(spec, s.known())));
    // Whole pages of the cut are shared; a part of one is copied into the first own page.
    const auto shared = static_cast<size_t>(hit.at / config_.info.page_tokens);
    if (const Cut* cut = cache_.find(hit.cut)) {
        std::copy_n(cut->pages.begin(), shared, s.pages.begin());
        std::for_each(s.pages.begin(), s.pages.begin() + static_cast<std::ptrdiff_t>(shared),
                      [this](int32_t page) { pages_.share(page); });
    }
    TENON_CHECK(pages_.take({s.pages.data() + shared, s.pages.size() - shared}), "{} pages",
                s.pages.size() - shared);

    plan::SlotOp op;
    op.slot = slot_id;
    op.generation = s.generation;
    op.op = plan::SlotOpKind::open;
    op.request = spec.request;
    builder_.slot_ops.push_back(op);

    plan::PageMap map;
    map.slot = slot_id;
    map.generation = s.generation;
    map.count = static_cast<uint32_t>(s.pages.size());
    map.pages_off = builder_.add_pages(s.pages);
    builder_.page_maps.push_back(map);
    restore(index, hit);
    spill_.release(spec.arrival_seq);
    plan_pass(s, hit);

    plan::Sampler sampler = spec.sampler;
    sampler.slot = slot_id;
    sampler.generation = s.generation;
    sampler.bias_off = spec.bias.empty() ? 0 : builder_.add_pairs(spec.bias);
    sampler.bias_count = static_cast<uint32_t>(spec.bias.size);
    sampler.stop_off = spec.stops.empty() ? 0 : builder_.add_tokens(spec.stops);
    sampler.stop_count = static_cast<uint32_t>(spec.stops.size);
    sampler.counts_off = spec.counts.empty() ? 0 : builder_.add_pairs(spec.counts);
    sampler.counts_count = static_cast<uint32_t>(spec.counts.size);
    builder_.samplers.push_back(sampler);

    if (next.parked < 0) {
        effects_.push_back(
            {EffectKind::started, EndCause::complete, slot_id, s.generation, next.spec, hit.at});
    }
}

void Planner::close(size_t index) {
    Slot& s = slots_[index];
    plan::SlotOp op;
    op.slot = static_cast<uint32_t>(index);
    op.generation = s.generation;
    op.op = plan::SlotOpKind::close;
    op.request = s.spec != nullptr ? s.spec->request : s.closing_request;
    builder_.slot_ops.push_back(op);
    cache_.pin_soft(s.pass.source, -1);
    s.pass = PassState();
    // Pages that it got in this very step: the close runs first, so nothing may name it after that.
    const auto is_own = [&op](const plan::PageMap& m) { return m.slot == op.slot; };
    builder_.page_maps.erase(
        std::remove_if(builder_.page_maps.begin(), builder_.page_maps.end(), is_own),
        builder_.page_maps.end());
    for (const int32_t page : s.pages) {
        pages_.release(page);
    }
    s.pages.clear();
    s.state = SlotState::free;
    s.spec = nullptr;
    s.candidate_count = 0;
    s.blocked_since = -1;
}

void Planner::end(size_t index, EndCause cause) {
    const Slot& s = slots_[index];
    effects_.push_back(
        {EffectKind::ended, cause, static_cast<uint32_t>(index), s.generation, s.spec, 0});
    close(index);
}

}  // namespace tenon::engine
