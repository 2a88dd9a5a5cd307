// SPDX-License-Identifier: MIT
// Comparison of symbols page by page, and the links between cuts.
#include "host/engine/prefix_index.h"

#include <algorithm>
#include <limits>

namespace tenon::engine {
namespace {

constexpr int32_t kUnknownImage = std::numeric_limits<int32_t>::min();  // equals no stored symbol

int64_t equal_run(const int32_t* a, const int32_t* b, int64_t n) {
    return std::mismatch(a, a + n, b).first - a;
}

}  // namespace

PrefixIndex::PrefixIndex(int64_t pool_pages, int32_t page_tokens, int64_t pages_per_cut,
                         int32_t max_cuts)
    : page_tokens_(page_tokens),
      cuts_(static_cast<size_t>(max_cuts)),
      symbols_(max_cuts > 0 ? static_cast<size_t>(pool_pages * page_tokens) : 0, 0),
      images_(max_cuts > 0 ? kMaxImages : 0) {
    free_.reserve(cuts_.size());
    for (int32_t i = max_cuts - 1; i >= 0; --i) {
        cuts_[static_cast<size_t>(i)].pages.reserve(static_cast<size_t>(pages_per_cut));
        free_.push_back(i);
    }
    scratch_.reserve(max_cuts > 0 ? static_cast<size_t>(pages_per_cut * page_tokens) : 0);
}

int32_t PrefixIndex::take() {
    if (free_.empty()) {
        return -1;
    }
    const int32_t id = free_.back();
    free_.pop_back();
    ++count_;
    Cut& c = cut(id);
    std::vector<int32_t> pages = std::move(c.pages);
    pages.clear();
    c = Cut();
    c.pages = std::move(pages);
    c.used = true;
    c.stamp = ++next_stamp_;
    return id;
}

void PrefixIndex::release(int32_t id) {
    Cut& c = cut(id);
    if (c.live) {
        detach(id);
    }
    if (c.has_images) {
        count_images(c, -1);
    }
    c.used = c.live = false;
    c.pages.clear();
    free_.push_back(id);
    --count_;
}

int32_t PrefixIndex::image_code(const std::array<uint8_t, 32>& key) const {
    for (size_t i = 0; i < images_.size(); ++i) {
        if (images_[i].used && images_[i].key == key) {
            return -1 - static_cast<int32_t>(i);
        }
    }
    return 0;
}

Span<const int32_t> PrefixIndex::encode(const SymbolRun& run) {
    if (run.images.empty()) {
        return run.tokens;
    }
    scratch_.assign(run.tokens.begin(), run.tokens.end());
    for (const ImageSpan& image : run.images) {
        const int32_t code = image_code(image.key);
        std::fill_n(scratch_.begin() + image.position, image.rows,
                    code != 0 ? code : kUnknownImage);
    }
    return scratch_;
}

bool PrefixIndex::write_symbols(int32_t id, const SymbolRun& run, int64_t from) {
    Cut& c = cut(id);
    for (const ImageSpan& image : run.images) {
        if (image.position >= c.at || image_code(image.key) != 0) {
            continue;
        }
        const auto free =
            std::find_if(images_.begin(), images_.end(), [](const ImageKey& k) { return !k.used; });
        if (free == images_.end()) {
            for (ImageKey& k : images_) {
                k.used = k.cuts > 0;
            }
            return false;
        }
        free->key = image.key;
        free->used = true;
    }
    const Span<const int32_t> symbols = encode(run);
    for (int64_t p = from / page_tokens_ * page_tokens_; p < c.at; p += page_tokens_) {
        const int64_t n = std::min<int64_t>(page_tokens_, c.at - p);
        std::copy_n(symbols.begin() + p, n,
                    page_symbols(c.pages[static_cast<size_t>(p / page_tokens_)]));
    }
    c.has_images = !run.images.empty() && run.images[0].position < c.at;
    if (c.has_images) {
        count_images(c, 1);
    }
    return true;
}

/// Once per run of equal codes, so that taking back counts the same as giving.
void PrefixIndex::count_images(const Cut& c, int32_t delta) {
    int32_t before = 0;
    for (int64_t p = 0; p < c.at; ++p) {
        const int32_t symbol =
            page_symbols(c.pages[static_cast<size_t>(p / page_tokens_)])[p % page_tokens_];
        if (symbol < 0 && symbol != before) {
            ImageKey& key = images_[static_cast<size_t>(-1 - symbol)];
            key.cuts += delta;
            key.used = key.cuts > 0;
        }
        before = symbol;
    }
}

Span<const int32_t> PrefixIndex::symbols_of(const Cut& c) {
    scratch_.clear();
    for (int64_t p = 0; p < c.at; p += page_tokens_) {
        const int32_t* from = page_symbols(c.pages[static_cast<size_t>(p / page_tokens_)]);
        scratch_.insert(scratch_.end(), from, from + std::min<int64_t>(page_tokens_, c.at - p));
    }
    return scratch_;
}

int64_t PrefixIndex::common(const Cut& c, int64_t from, Span<const int32_t> symbols) const {
    const int64_t end = std::min(c.at, static_cast<int64_t>(symbols.size));
    for (int64_t p = from; p < end;) {
        const int64_t in_page = p % page_tokens_;
        const int64_t n = std::min(page_tokens_ - in_page, end - p);
        const int64_t equal =
            equal_run(page_symbols(c.pages[static_cast<size_t>(p / page_tokens_)]) + in_page,
                      symbols.begin() + p, n);
        p += equal;
        if (equal < n) {
            return p - from;
        }
    }
    return std::max<int64_t>(end - from, 0);
}

int32_t PrefixIndex::link(int32_t id) {
    Cut& c = cut(id);
    const Span<const int32_t> symbols = symbols_of(c);
    int32_t parent = -1;
    int64_t matched = 0;
    for (int32_t at = next_on_path(-1, c, symbols, &matched); at >= 0;
         at = next_on_path(parent, c, symbols, &matched)) {
        if (cut(at).at == c.at) {
            return at;
        }
        parent = at;
    }
    const int64_t from = parent < 0 ? 0 : cut(parent).at;
    for (int32_t other = parent < 0 ? first_root_ : cut(parent).first_child; other >= 0;) {
        const int32_t next = cut(other).next_sibling;
        if (cut(other).salt == c.salt && cut(other).owner == c.owner &&
            from + common(cut(other), from, symbols) == c.at) {
            unlist(other);
            attach(other, id);
        }
        other = next;
    }
    attach(id, parent);
    c.live = true;
    return -1;
}

void PrefixIndex::attach(int32_t id, int32_t parent) {
    Cut& c = cut(id);
    int32_t& first = parent < 0 ? first_root_ : cut(parent).first_child;
    c.parent = parent;
    c.previous_sibling = -1;
    c.next_sibling = first;
    if (first >= 0) {
        cut(first).previous_sibling = id;
    }
    first = id;
}

/// Takes the cut out of its parent's list; its own children stay with it.
void PrefixIndex::unlist(int32_t id) {
    Cut& c = cut(id);
    int32_t& first = c.parent < 0 ? first_root_ : cut(c.parent).first_child;
    if (c.previous_sibling >= 0) {
        cut(c.previous_sibling).next_sibling = c.next_sibling;
    } else {
        first = c.next_sibling;
    }
    if (c.next_sibling >= 0) {
        cut(c.next_sibling).previous_sibling = c.previous_sibling;
    }
    c.next_sibling = c.previous_sibling = -1;
}

/// Unlinks a cut; its children become its parent's.
void PrefixIndex::detach(int32_t id) {
    const int32_t parent = cut(id).parent;
    unlist(id);
    while (cut(id).first_child >= 0) {
        const int32_t child = cut(id).first_child;
        unlist(child);
        attach(child, parent);
    }
    cut(id).live = false;
}

}  // namespace tenon::engine
