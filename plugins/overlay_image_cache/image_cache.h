// SPDX-License-Identifier: MIT
// Encoded image rows by content key, within a byte budget (architecture.md 8).
#pragma once

#include <array>
#include <list>
#include <unordered_map>
#include <vector>

#include "tenon/overlay.h"

namespace tenon::image_cache {

/// Least recently used first. What is larger than the whole budget is not kept. Bytes are counted
/// with a fixed allowance an entry, so that many small images are bounded too.
///
/// Thread: the engine thread of rank 0.
class ImageCache final : public Implements<ImageCache, MediaCache> {
  public:
    /// Index, list node and vector of one entry.
    static constexpr int64_t kEntryBytes = 160;

    /// `states`: prefix cuts may lie beyond an image.
    ImageCache(int64_t budget_bytes, bool states) : budget_(budget_bytes), states_(states) {}
    ~ImageCache() = default;

    /// A miss if the rows have another size than those that were put; `rows` is then untouched.
    bool get(const uint8_t key[32], Span<uint8_t> rows) noexcept override;
    void put(const uint8_t key[32], Span<const uint8_t> rows) noexcept override;
    bool keeps_states() noexcept override { return states_; }

    int64_t bytes() const { return bytes_; }
    int64_t count() const { return static_cast<int64_t>(entries_.size()); }

  private:
    using Key = std::array<uint8_t, 32>;
    struct KeyHash {
        size_t operator()(const Key& key) const;
    };
    struct Entry {
        Key key;
        std::vector<uint8_t> rows;
    };
    static Key key_of(const uint8_t key[32]);
    static int64_t cost(const Entry& entry) {
        return static_cast<int64_t>(entry.rows.size()) + kEntryBytes;
    }
    void drop(std::list<Entry>::iterator entry);

    const int64_t budget_;
    const bool states_;
    int64_t bytes_ = 0;
    std::list<Entry> entries_;  // the front was used last
    std::unordered_map<Key, std::list<Entry>::iterator, KeyHash> index_;
};

}  // namespace tenon::image_cache
