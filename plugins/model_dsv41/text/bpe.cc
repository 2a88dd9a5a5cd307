// SPDX-License-Identifier: MIT
// Two ways to the same result: a linear search for the few bytes of a usual piece, a heap for long
// ones.
#include "text/bpe.h"

#include <algorithm>
#include <functional>

namespace tenon::dsv41 {

namespace {

constexpr size_t kShortPiece = 48;  // up to here n searches of n ranks cost less than the heap
constexpr uint64_t kEmptySlot = UINT64_MAX;

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<Rule>& rules)
    : byte_ids_(byte_ids) {
    size_t capacity = 2;
    shift_ = 63;
    while (capacity < rules.size() * 2 + 2) {
        capacity *= 2;
        --shift_;
    }
    slots_.assign(capacity, Slot{kEmptySlot, kNoRank});
    merged_.reserve(rules.size());
    for (const Rule& rule : rules) {
        const auto rank = static_cast<uint32_t>(merged_.size());
        merged_.push_back(rule.merged);
        const uint64_t pair = pair_key(rule.left, rule.right);
        size_t at = slot_of(pair);
        while (slots_[at].pair != kEmptySlot && slots_[at].pair != pair) {
            at = (at + 1) & (capacity - 1);
        }
        slots_[at] = Slot{pair, rank};
    }
}

uint32_t Bpe::rank_of(int32_t left, int32_t right) const {
    const uint64_t pair = pair_key(left, right);
    size_t at = slot_of(pair);
    while (slots_[at].pair != pair) {
        if (slots_[at].pair == kEmptySlot) {
            return kNoRank;
        }
        at = (at + 1) & (slots_.size() - 1);
    }
    return slots_[at].rank;
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
    if (piece.size() <= kShortPiece) {
        encode_short(piece, out);
    } else {
        encode_long(piece, scratch, out);
    }
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& out) const {
    std::array<int32_t, kShortPiece> ids;
    std::array<uint32_t, kShortPiece> ranks;  // of the pair that begins here
    size_t count = piece.size();
    for (size_t i = 0; i < count; ++i) {
        ids[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
    }
    for (size_t i = 0; i + 1 < count; ++i) {
        ranks[i] = rank_of(ids[i], ids[i + 1]);
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; ++i) {
            if (ranks[i] < ranks[best]) {
                best = i;
            }
        }
        if (ranks[best] == kNoRank) {
            break;
        }
        ids[best] = merged_[ranks[best]];
        --count;
        for (size_t i = best + 1; i < count; ++i) {
            ids[i] = ids[i + 1];
            ranks[i - 1] = ranks[i];
        }
        if (best + 1 < count) {
            ranks[best] = rank_of(ids[best], ids[best + 1]);
        }
        if (best > 0) {
            ranks[best - 1] = rank_of(ids[best - 1], ids[best]);
        }
    }
    out.insert(out.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
}

void Bpe::encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
    const size_t count = piece.size();
    std::vector<int32_t>& ids = scratch.ids;
    std::vector<int32_t>& previous = scratch.previous;
    std::vector<int32_t>& next = scratch.next;
    std::vector<uint32_t>& ranks = scratch.ranks;
    std::vector<uint64_t>& heap = scratch.heap;
    ids.resize(count);
    previous.resize(count);
    next.resize(count);
    ranks.assign(count, kNoRank);
    heap.clear();

    // A heap entry is rank above place; it is stale when the place has another rank by now.
    const auto entry = [](uint32_t rank, size_t place) {
        return (static_cast<uint64_t>(rank) << 32) | place;
    };
    const auto update = [&](size_t place) {
        const int32_t right = next[place];
        ranks[place] = right < 0 ? kNoRank : rank_of(ids[place], ids[static_cast<size_t>(right)]);
        return ranks[place] != kNoRank;
    };
    for (size_t i = 0; i < count; ++i) {
        ids[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
        previous[i] = static_cast<int32_t>(i) - 1;
        next[i] = i + 1 < count ? static_cast<int32_t>(i + 1) : -1;
    }
    for (size_t i = 0; i < count; ++i) {
        if (update(i)) {
            heap.push_back(entry(ranks[i], i));
        }
    }
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
    const auto push = [&](size_t place) {
        heap.push_back(entry(ranks[place], place));
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
    };
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        const uint64_t top = heap.back();
        heap.pop_back();
        const size_t place = static_cast<uint32_t>(top);
        const auto rank = static_cast<uint32_t>(top >> 32);
        if (ranks[place] != rank) {
            continue;
        }
        const auto right = static_cast<size_t>(next[place]);
        ids[place] = merged_[rank];
        next[place] = next[right];
        ranks[right] = kNoRank;
        if (next[place] >= 0) {
            previous[static_cast<size_t>(next[place])] = static_cast<int32_t>(place);
        }
        if (update(place)) {
            push(place);
        }
        if (previous[place] >= 0) {
            const auto before = static_cast<size_t>(previous[place]);
            if (update(before)) {
                push(before);
            }
        }
    }
    for (int32_t i = 0; i >= 0; i = next[static_cast<size_t>(i)]) {
        out.push_back(ids[static_cast<size_t>(i)]);
    }
}

}  // namespace tenon::dsv41
