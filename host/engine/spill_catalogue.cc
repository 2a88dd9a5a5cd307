// SPDX-License-Identifier: MIT
// Buckets, positions and ages of spilled cuts.
#include "host/engine/spill_catalogue.h"

#include <algorithm>
#include <cstring>

namespace tenon::engine {

SpillCatalogue::SpillCatalogue(const SpillDigest& key, int64_t budget, int32_t capacity)
    : key_(key),
      budget_(budget),
      entries_(static_cast<size_t>(capacity)),
      buckets_(static_cast<size_t>(capacity) + 1, -1),
      uses_(static_cast<uint64_t>(1) << 32) {  // later than anything that was found
    free_.reserve(entries_.size());
    for (int32_t i = capacity - 1; i >= 0; --i) {
        free_.push_back(i);
    }
    positions_.reserve(entries_.size());
}

const SpillCatalogue::Entry* SpillCatalogue::find(const SpillRef& ref) const {
    if (ref.id < 0) {
        return nullptr;
    }
    const Entry& e = entries_[static_cast<size_t>(ref.id)];
    return e.used && e.stamp == ref.stamp ? &e : nullptr;
}

int32_t& SpillCatalogue::bucket(const SpillLookup& lookup) {
    uint64_t word = 0;
    std::memcpy(&word, lookup.data(), sizeof word);
    return buckets_[word % buckets_.size()];
}

int32_t SpillCatalogue::search(const SpillLookup& lookup, int64_t at) {
    int32_t id = bucket(lookup);
    while (id >= 0) {
        const Entry& e = entries_[static_cast<size_t>(id)];
        if (e.file.at == at && e.file.lookup == lookup) {
            return id;
        }
        id = e.next;
    }
    return -1;
}

SpillLookup SpillCatalogue::lookup(const SymbolRun& run, int64_t position) {
    hash_.begin(key_, run.salt, run.owner);
    hash_.add(run.tokens.subspan(0, static_cast<uint64_t>(position)));
    return hash_.value();
}

SpillRef SpillCatalogue::at(const SymbolRun& run, int64_t position) {
    const int32_t id = search(lookup(run, position), position);
    return id < 0 ? SpillRef() : ref_of(id);
}

SpillRef SpillCatalogue::best(const SymbolRun& run, int64_t last, bool prompt_class_only) {
    // An image's rows have placeholder ids; only what lies before the first one is in the look-up.
    last = run.images.empty() ? last : std::min(last, run.images[0].position);
    int32_t best = -1;
    int64_t hashed = 0;
    hash_.begin(key_, run.salt, run.owner);
    for (const Position& p : positions_) {
        if (p.at > last) {
            break;
        }
        hash_.add(run.tokens.subspan(static_cast<uint64_t>(hashed),
                                     static_cast<uint64_t>(p.at - hashed)));
        hashed = p.at;
        const int32_t id = search(hash_.value(), p.at);
        if (id >= 0 && entries_[static_cast<size_t>(id)].stored &&
            (entries_[static_cast<size_t>(id)].file.prompt_class || !prompt_class_only)) {
            best = id;
        }
    }
    return best < 0 ? SpillRef() : ref_of(best);
}

SpillRef SpillCatalogue::add(const SpillFile& file, const SpillRef& parent) {
    if (free_.empty() || search(file.lookup, file.at) >= 0 ||
        (file.parent_at > 0 && find(parent) == nullptr)) {
        return {};
    }
    const int32_t id = free_.back();
    free_.pop_back();
    Entry& e = entries_[static_cast<size_t>(id)];
    e = Entry();
    e.used = true;
    e.stamp = ++next_stamp_;
    e.use = ++uses_;
    e.file = file;
    if (const Entry* p = find(parent)) {
        e.parent = parent.id;
        e.depth = p->depth + 1;
        ++entries_[static_cast<size_t>(parent.id)].children;
    }
    int32_t& first = bucket(file.lookup);
    e.next = first;
    first = id;
    const auto place = std::lower_bound(positions_.begin(), positions_.end(), file.at,
                                        [](const Position& p, int64_t at) { return p.at < at; });
    if (place != positions_.end() && place->at == file.at) {
        ++place->entries;
    } else {
        positions_.insert(place, {file.at, 1});
    }
    bytes_ += file.bytes;
    return ref_of(id);
}

void SpillCatalogue::erase(int32_t id) {
    Entry& e = entries_[static_cast<size_t>(id)];
    int32_t* link = &bucket(e.file.lookup);
    while (*link != id) {
        link = &entries_[static_cast<size_t>(*link)].next;
    }
    *link = e.next;
    if (e.parent >= 0) {
        --entries_[static_cast<size_t>(e.parent)].children;
    }
    const auto place = std::lower_bound(positions_.begin(), positions_.end(), e.file.at,
                                        [](const Position& p, int64_t at) { return p.at < at; });
    if (--place->entries == 0) {
        positions_.erase(place);
    }
    bytes_ -= e.file.bytes;
    e.used = e.stored = false;
    free_.push_back(id);
}

void SpillCatalogue::stored(const SpillRef& ref, const SpillDigest& digest) {
    if (find(ref) != nullptr) {
        Entry& e = entries_[static_cast<size_t>(ref.id)];
        e.stored = true;
        e.file.digest = digest;
    }
}

void SpillCatalogue::touch(const SpillRef& ref) {
    ++uses_;
    for (int32_t id = find(ref) != nullptr ? ref.id : -1; id >= 0;
         id = entries_[static_cast<size_t>(id)].parent) {
        entries_[static_cast<size_t>(id)].use = uses_;
    }
}

void SpillCatalogue::pin(const SpillRef& ref, int32_t delta) {
    if (find(ref) != nullptr) {
        entries_[static_cast<size_t>(ref.id)].pins += delta;
    }
}

int32_t SpillCatalogue::oldest_leaf(int32_t keep) const {
    int32_t oldest = -1;
    for (int32_t i = 0; i < capacity(); ++i) {
        const Entry& e = entries_[static_cast<size_t>(i)];
        if (e.used && e.stored && e.children == 0 && e.pins == 0 && i != keep &&
            (oldest < 0 || e.use < entries_[static_cast<size_t>(oldest)].use)) {
            oldest = i;
        }
    }
    return oldest;
}

int32_t SpillCatalogue::chain(const SpillRef& ref, SpillRef (&out)[kMostDepth]) const {
    const Entry* e = find(ref);
    const int32_t count = e == nullptr ? 0 : e->depth;
    int32_t id = ref.id;
    for (int32_t i = count; i > 0 && i <= kMostDepth; --i) {
        out[i - 1] = ref_of(id);
        id = entries_[static_cast<size_t>(id)].parent;
    }
    return count;
}

}  // namespace tenon::engine
