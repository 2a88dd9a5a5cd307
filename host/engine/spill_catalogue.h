// SPDX-License-Identifier: MIT
// Which cuts lie on disk, as the planner knows it: look-up by symbols, byte budget, order of
// removal (engine.md 4.5).
#pragma once

#include <map>

#include "host/engine/prefix_index.h"
#include "host/engine/spill_jobs.h"

namespace tenon::engine {

using SpillRef = SpillName;

/// Rank 0's engine thread; part of the planner. Never allocates after construction; age is counted
/// in uses. A file is only removed when nothing builds on it, and using one uses all that it builds
/// on, so the oldest leaf is always among the oldest.
class SpillCatalogue {
  public:
    static constexpr int32_t kMostDepth = 32;  ///< files of one chain; then a cut is written whole

    struct Entry {
        bool used = false;
        bool stored = false;  ///< else it is being written
        uint32_t stamp = 0;
        uint64_t use = 0;
        int32_t parent = -1, children = 0, depth = 1;
        int32_t pins = 0;   ///< being written, or part of a chain that is loaded
        int32_t next = -1;  // in its bucket
        SpillFile file;
    };

    SpillCatalogue(const SpillDigest& key, int64_t budget, int32_t capacity);

    /// What the scan found, parents first; `used` gives the order of use. What does not fit is
    /// given to `remove`.
    template <class F>
    void fill(Span<const SpillFile> found, F&& remove) {
        std::map<SpillDigest, SpillRef> known;
        for (const SpillFile& file : found) {
            const auto parent = known.find(file.parent);
            const SpillRef on =
                file.parent_at == 0 || parent == known.end() ? SpillRef() : parent->second;
            // The parent may have had to go for the budget meanwhile.
            const bool whole = file.parent_at == 0 || find(on) != nullptr;
            const bool room = whole && make_room(file.bytes, on, capacity(), remove);
            const SpillRef ref = room ? add(file, on) : SpillRef();
            if (ref.id < 0) {
                remove(file);
                continue;
            }
            entries_[static_cast<size_t>(ref.id)].stored = true;
            entries_[static_cast<size_t>(ref.id)].use = file.used;
            known[file.digest] = ref;
        }
    }

    const Entry* find(const SpillRef& ref) const;
    /// An entry at exactly this position, whether it is stored or not.
    SpillRef at(const SymbolRun& run, int64_t position);
    /// The deepest stored entry at or before `last`, -1 = none. `prompt_class_only` as in
    /// PrefixCache::best.
    SpillRef best(const SymbolRun& run, int64_t last, bool prompt_class_only);
    SpillLookup lookup(const SymbolRun& run, int64_t position);

    /// Removes the least recently used leaves until `bytes` more fit, at most `most` of them;
    /// calls remove(file) for each. `keep`: never that one. False: it cannot be done, or not yet.
    template <class F>
    bool make_room(int64_t bytes, const SpillRef& keep, int32_t most, F&& remove) {
        while (bytes_ + bytes > budget_ || free_.empty()) {
            const int32_t leaf = bytes > budget_ || most-- <= 0 ? -1 : oldest_leaf(keep.id);
            if (leaf < 0) {
                return false;
            }
            remove(entries_[static_cast<size_t>(leaf)].file);
            erase(leaf);
        }
        return true;
    }
    /// An entry that is being written; there is room. Refused without the parent that it names.
    SpillRef add(const SpillFile& file, const SpillRef& parent);
    void stored(const SpillRef& ref, const SpillDigest& digest);
    /// Forgets an entry with everything that builds on it; calls remove(file) for what was stored.
    template <class F>
    void drop(const SpillRef& ref, F&& remove) {
        if (find(ref) == nullptr) {
            return;
        }
        for (int32_t i = 0; i < capacity(); ++i) {
            const Entry& e = entries_[static_cast<size_t>(i)];
            if (e.used && e.parent == ref.id) {
                drop(ref_of(i), remove);
            }
        }
        if (entries_[static_cast<size_t>(ref.id)].stored) {
            remove(entries_[static_cast<size_t>(ref.id)].file);
        }
        erase(ref.id);
    }
    /// Counts a use of the entry and of all that it builds on.
    void touch(const SpillRef& ref);
    void pin(const SpillRef& ref, int32_t delta);
    /// Entries from the first of the chain to this one; returns how many.
    int32_t chain(const SpillRef& ref, SpillRef (&out)[kMostDepth]) const;

    int64_t bytes() const { return bytes_; }
    int32_t count() const { return capacity() - static_cast<int32_t>(free_.size()); }
    int32_t capacity() const { return static_cast<int32_t>(entries_.size()); }
    static int64_t memory(int32_t capacity) {
        return capacity * static_cast<int64_t>(sizeof(Entry) + sizeof(Position) + 12);
    }

  private:
    struct Position {
        int64_t at = 0;
        int32_t entries = 0;
    };
    SpillRef ref_of(int32_t id) const { return {id, entries_[static_cast<size_t>(id)].stamp}; }
    int32_t& bucket(const SpillLookup& lookup);
    int32_t search(const SpillLookup& lookup, int64_t at);
    int32_t oldest_leaf(int32_t keep) const;
    void erase(int32_t id);

    const SpillDigest key_;
    const int64_t budget_;
    std::vector<Entry> entries_;
    std::vector<int32_t> free_, buckets_;
    std::vector<Position> positions_;  // ascending; look-ups hash a sequence once
    SymbolHash hash_;
    int64_t bytes_ = 0;
    uint64_t uses_ = 0;
    uint32_t next_stamp_ = 0;
};

}  // namespace tenon::engine
