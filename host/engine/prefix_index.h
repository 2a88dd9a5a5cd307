// SPDX-License-Identifier: MIT
// The tree of kept cuts over the symbols of their sequences (engine.md 4.1). Knows no cells and no
// plans.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "tenon/plan.h"

namespace tenon::engine {

/// Where a cut comes from, in the order in which cuts are given up.
enum class CutOrigin : uint32_t { pass, message, reply, header, system };

/// A run of image rows in a sequence; its rows compare by content, never by placeholder id.
struct ImageSpan {
    int64_t position = 0;
    int32_t rows = 0;
    std::array<uint8_t, 32> key{};
};

/// The symbols of a sequence: token ids, in image rows overridden by their content key.
struct SymbolRun {
    uint64_t salt = 0;  ///< sequences of different salts never match
    Span<const int32_t> tokens;
    Span<const ImageSpan> images;  ///< ascending, disjoint
    uint64_t owner = 0;            ///< not 0: the one parked reply that may find it
};

/// Names an entry of the spill catalogue that may be gone since.
struct SpillName {
    int32_t id = -1;
    uint32_t stamp = 0;
};

/// One kept cut. `pages` name all pages of [0, at): each is referenced once by this cut.
struct Cut {
    bool used = false;
    bool live = false;  ///< linked: look-ups find it. Else it waits for its step.
    plan::CutKind kind = plan::CutKind::full;
    CutOrigin origin = CutOrigin::pass;
    bool prompt_class = true;  ///< every row below was computed in a chunk
    uint32_t stamp = 0;        ///< tells a reused entry from the one that was meant
    uint32_t snapshot = 0;
    uint64_t salt = 0, owner = 0;
    SpillName spill;        ///< its file, if that still exists
    bool no_spill = false;  ///< it can have none
    int64_t at = 0;
    int64_t min_target = 0;  ///< smallest full target of a pass that goes on from here
    uint64_t use_step = 0;   ///< last step that restored or made it
    int64_t hits = 0;
    int32_t hard_pins = 0;  ///< being restored, joined, exported or imported: never given up
    int32_t soft_pins = 0;  ///< live slots that went on from it: given up last
    int32_t parent = -1, first_child = -1, next_sibling = -1, previous_sibling = -1;
    bool has_images = false;
    std::vector<int32_t> pages;
};

/// Rank 0's engine thread. Never allocates after construction.
///
/// A tree node is a cut: its edge holds the symbols between the parent's position and its own.
/// Sequences that only part between two cuts are siblings, since nothing could be resumed at the
/// place where they part, and pages are shared from a common cut on only. Symbols lie beside the
/// pages, one array a page, so the index is as large as the pool allows and needs no budget.
class PrefixIndex {
  public:
    PrefixIndex(int64_t pool_pages, int32_t page_tokens, int64_t pages_per_cut, int32_t max_cuts);

    Cut& cut(int32_t id) { return cuts_[static_cast<size_t>(id)]; }
    const Cut& cut(int32_t id) const { return cuts_[static_cast<size_t>(id)]; }
    int32_t capacity() const { return static_cast<int32_t>(cuts_.size()); }
    int32_t count() const { return count_; }

    /// An unlinked entry with its own stamp, -1 = none is free.
    int32_t take();
    /// Unlinks, if linked, and frees the entry. The caller has released pages and cells.
    void release(int32_t id);

    /// Writes the symbols of positions [from, at) of the cut beside its pages; image keys are
    /// remembered. False: the table of image keys is full.
    bool write_symbols(int32_t id, const SymbolRun& run, int64_t from);

    /// The run begins with all of the cut's symbols, linked or not.
    bool begins_with(const SymbolRun& run, int32_t id) {
        return cut(id).salt == run.salt && common(cut(id), 0, encode(run)) == cut(id).at;
    }

    /// Finds the cut's place by its symbols and links it. Another live cut with the same symbols
    /// and position is returned: then nothing was linked. -1 = linked.
    int32_t link(int32_t id);

    /// Calls accept(id) for every live cut on the run's path, shallow to deep; the last one
    /// accepted is returned, -1 = none. `matched`: symbols of the run that some live cut's
    /// sequence shares.
    template <class F>
    int32_t find(const SymbolRun& run, int64_t* matched, F&& accept) {
        *matched = 0;
        int32_t best = -1;
        const Span<const int32_t> symbols = encode(run);
        for (int32_t at = next_on_path(-1, run, symbols, matched); at >= 0;
             at = next_on_path(at, run, symbols, matched)) {
            if (accept(at)) {
                best = at;
            }
        }
        return best;
    }

    /// The cut's symbols, copied to a scratch that lives until the next call.
    Span<const int32_t> symbols_of(const Cut& cut);

  private:
    static constexpr size_t kMaxImages = 1024;
    struct ImageKey {
        std::array<uint8_t, 32> key{};
        bool used = false;
        int32_t cuts = 0;  // that contain it, each as often as it has runs of it
    };

    Span<const int32_t> encode(const SymbolRun& run);
    int32_t image_code(const std::array<uint8_t, 32>& key) const;  // 0 = unknown
    template <class Root>                                          // a run or a cut
    int32_t next_on_path(int32_t parent, const Root& root, Span<const int32_t> symbols,
                         int64_t* matched) const {
        const int64_t from = parent < 0 ? 0 : cut(parent).at;
        for (int32_t id = parent < 0 ? first_root_ : cut(parent).first_child; id >= 0;
             id = cut(id).next_sibling) {
            const Cut& c = cut(id);
            if (c.salt != root.salt || c.owner != root.owner) {
                continue;
            }
            const int64_t equal = common(c, from, symbols);
            *matched = std::max(*matched, from + equal);
            if (from + equal == c.at) {
                return id;  // the only one: a sibling on the same path would be its child
            }
        }
        return -1;
    }
    /// Symbols that the cut's edge from `from` on shares with `symbols`.
    int64_t common(const Cut& cut, int64_t from, Span<const int32_t> symbols) const;
    void attach(int32_t id, int32_t parent);
    void unlist(int32_t id);
    void detach(int32_t id);
    void count_images(const Cut& cut, int32_t delta);
    int32_t* page_symbols(int32_t page) { return symbols_.data() + int64_t{page} * page_tokens_; }
    const int32_t* page_symbols(int32_t page) const {
        return symbols_.data() + int64_t{page} * page_tokens_;
    }

    int32_t page_tokens_;
    std::vector<Cut> cuts_;
    std::vector<int32_t> free_;     // the back is next
    std::vector<int32_t> symbols_;  // [pool_pages, page_tokens]
    std::vector<int32_t> scratch_;  // one sequence
    std::vector<ImageKey> images_;
    int32_t first_root_ = -1;
    int32_t count_ = 0;
    uint32_t next_stamp_ = 0;
};

}  // namespace tenon::engine
