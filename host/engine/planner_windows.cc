// SPDX-License-Identifier: MIT
// Decode windows of a step: which drafts each slot offers, how many rows it gets, and which slots
// draft again behind them.
#include "host/engine/planner.h"

#include <algorithm>

namespace tenon::engine {
namespace {

// Below this chance of being reached a draft is not worth listing.
constexpr double kLeastSurvival = 0.01;
// A slot in the middle of a copy this long does not need the drafter.
constexpr int32_t kLongCopy = 8;

double sum(const Offer& offer) {
    double total = 0;
    for (int32_t i = 0; i < offer.count; ++i) {
        total += offer.survive[i];
    }
    return total;
}

}  // namespace

void Planner::propose(Slot& s, Proposal* out) {
    *out = Proposal{};
    const auto most = static_cast<int32_t>(
        std::min<int64_t>(s.remaining() - 1, std::min(config_.window_rows - 1, plan::kMaxDrafts)));
    if (!s.spec->drafts_allowed || most < 1) {
        return;
    }
    double survive = 1;
    for (int32_t i = 0; i < std::min(most, s.candidate_count); ++i) {
        survive *= drafts_.believe(s.confidence[i], s.draft.sampled, &out->raw[i]);
        out->offer.survive[i] = survive;
        out->tokens[i] = s.candidates[i];
        out->offer.count = i + 1;
        out->source = DraftSource::model;
    }
    // Penalties work against repeats, so copies would mostly fail.
    if (!config_.copy_drafts || s.has_penalties()) {
        return;
    }
    Proposal copy;
    const TokenHistory::Match match = s.history.propose(most, copy.tokens);
    if (match.count == 0) {
        return;
    }
    copy.source = DraftSource::copy;
    copy.match = match.length;
    const double p = drafts_.believe_copy(s.draft, match.length);
    survive = 1;
    for (int32_t i = 0; i < match.count && survive * p >= kLeastSurvival; ++i) {
        survive *= p;
        copy.offer.survive[i] = survive;
        copy.offer.count = i + 1;
    }
    if (sum(copy.offer) > sum(out->offer)) {
        *out = copy;
    }
}

void Planner::write_windows() {
    uint32_t order[StepOutline::kMaxSlots];
    int32_t count = 0;
    for (int32_t i = 0; i < outline_.decode_count; ++i) {
        if (slots_[outline_.decode[i]].state == SlotState::decoding) {
            order[count++] = outline_.decode[i];
        }
    }
    if (count == 0) {
        return;
    }
    // Replies that were parked catch up first: their rows are known, so each brings them on.
    int32_t row_cap = std::min(outline_.row_cap, config_.step_rows);
    int32_t replayed = 0, normal = 0;
    for (int32_t i = 0; i < count; ++i) {
        if (slots_[order[i]].replay_rows() > 0) {
            replayed += write_replay(order[i], row_cap - replayed - (count - 1 - i) - normal);
        } else {
            order[normal++] = order[i];
        }
    }
    step_rows_ = replayed;
    count = normal;
    row_cap -= replayed;
    if (count == 0) {
        return;
    }
    Offer offers[StepOutline::kMaxSlots];
    for (int32_t i = 0; i < count; ++i) {
        Slot& s = slots_[order[i]];
        Proposal& p = proposals_[static_cast<size_t>(i)];
        const bool drafted = s.candidate_count > 0;
        propose(s, &p);
        offers[i] = p.offer;
        if (drafted && p.source != DraftSource::model) {
            drafts_.note_gain(&s.draft, 0, 0);  // a draft pass for nothing
        }
    }
    const int32_t drafting = write_drafts({order, static_cast<uint64_t>(count)});
    const double other_us =
        costs_.draft_us(drafting) +
        (outline_.slice_slot < 0 ? 0 : costs_.chunk_us(outline_.slice_rows, config_.chunk_rows));
    int32_t rows[StepOutline::kMaxSlots];
    const Allotment all =
        allot({offers, static_cast<uint64_t>(count)}, costs_, row_cap, other_us, rows);
    for (int32_t i = 0; i < count; ++i) {
        write_window(order[i], proposals_[static_cast<size_t>(i)], rows[i]);
    }
    step_rows_ += all.rows;
    step_streams_ = drafting;
}

/// Known tokens of a resumed reply as given rows; the last window's last row draws the next token.
int32_t Planner::write_replay(uint32_t index, int32_t row_cap) {
    Slot& s = slots_[index];
    const auto rows = static_cast<int32_t>(std::min<int64_t>(
        s.replay_rows() + 1, std::max(1, std::min(row_cap, config_.window_rows))));
    plan::Window w;
    w.slot = index;
    w.generation = s.generation;
    w.position = s.length;
    w.rows = rows;
    w.forced = rows - 1;
    w.accept_max = rows;
    w.tokens_off = builder_.add_tokens(
        s.history.tokens().subspan(static_cast<uint64_t>(s.length), static_cast<uint64_t>(rows)));
    if (s.spec->sampler.logprobs >= 0) {
        w.flags |= plan::kWantLogprobs;
        w.top = s.spec->sampler.logprobs;
    }
    builder_.windows.push_back(w);
    s.draft.source = DraftSource::none;
    s.draft.offered = 0;
    return rows;
}

void Planner::write_window(uint32_t index, const Proposal& proposal, int32_t rows) {
    Slot& s = slots_[index];
    const int32_t drafts = rows - 1;
    plan::Window w;
    w.slot = index;
    w.generation = s.generation;
    w.position = s.length;
    w.rows = rows;
    w.accept_max = rows;
    w.tokens_off = builder_.add_tokens({&s.pending, 1});
    if (drafts > 0) {
        w.flags |= plan::kDrafted;
        builder_.add_tokens({proposal.tokens, static_cast<uint64_t>(drafts)});
    }
    if (s.spec->sampler.logprobs >= 0) {
        w.flags |= plan::kWantLogprobs;
        w.top = s.spec->sampler.logprobs;
    }
    builder_.windows.push_back(w);

    s.draft.source = drafts > 0 ? proposal.source : DraftSource::none;
    s.draft.offered = drafts;
    s.draft.match = proposal.match;
    std::copy(std::begin(proposal.raw), std::end(proposal.raw), s.draft.raw);
    if (proposal.source == DraftSource::model) {
        double gain = 0;
        for (int32_t i = 0; i < drafts; ++i) {
            gain += proposal.offer.survive[i];
        }
        drafts_.note_gain(&s.draft, gain, drafts);
    }
}

/// Asks for a draft pass behind the windows of the slots in `order`, where it pays.
int32_t Planner::write_drafts(Span<const uint32_t> order) {
    const int32_t depth = std::min(config_.draft_depth, config_.info.draft_max);
    if (depth < 1) {
        return 0;
    }
    DraftRecord* records[StepOutline::kMaxSlots];
    uint32_t slots[StepOutline::kMaxSlots];
    bool wanted[StepOutline::kMaxSlots];
    int32_t count = 0;
    for (const uint32_t index : order) {
        Slot& s = slots_[index];
        // After this window one token at least is gone; drafts pay only if two more may follow.
        if (s.spec->drafts_allowed && s.remaining() > 2 && s.draft.copy_run < kLongCopy) {
            slots[count] = index;
            records[count++] = &s.draft;
        }
    }
    drafts_.choose({records, static_cast<uint64_t>(count)}, static_cast<int32_t>(order.size),
                   costs_, config_.step_rows, wanted);
    int32_t drafting = 0;
    for (int32_t i = 0; i < count; ++i) {
        if (wanted[i]) {
            plan::Draft d;
            d.slot = slots[i];
            d.generation = slots_[slots[i]].generation;
            d.rows = depth;
            builder_.drafts.push_back(d);
            ++drafting;
        }
    }
    return drafting;
}

}  // namespace tenon::engine
