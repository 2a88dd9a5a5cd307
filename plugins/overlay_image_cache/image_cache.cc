// SPDX-License-Identifier: MIT
// The list in order of use and its index.
#include "image_cache.h"

#include <algorithm>
#include <cstring>

namespace tenon::image_cache {

size_t ImageCache::KeyHash::operator()(const Key& key) const {
    // The key is a digest already: any part of it is as good as a hash.
    size_t hash = 0;
    std::memcpy(&hash, key.data(), sizeof hash);
    return hash;
}

ImageCache::Key ImageCache::key_of(const uint8_t key[32]) {
    Key out;
    std::copy_n(key, out.size(), out.begin());
    return out;
}

void ImageCache::drop(std::list<Entry>::iterator entry) {
    bytes_ -= cost(*entry);
    index_.erase(entry->key);
    entries_.erase(entry);
}

bool ImageCache::get(const uint8_t key[32], Span<uint8_t> rows) noexcept {
    const auto found = index_.find(key_of(key));
    if (found == index_.end() || found->second->rows.size() != rows.size) {
        return false;
    }
    entries_.splice(entries_.begin(), entries_, found->second);
    std::copy(found->second->rows.begin(), found->second->rows.end(), rows.begin());
    return true;
}

void ImageCache::put(const uint8_t key[32], Span<const uint8_t> rows) noexcept {
    // Nothing is lost but a hit if memory runs out.
    [[maybe_unused]] const Status status = guard([&] {
        const auto found = index_.find(key_of(key));
        if (found != index_.end()) {
            drop(found->second);
        }
        Entry entry{key_of(key), {rows.begin(), rows.end()}};
        if (cost(entry) > budget_) {
            return;
        }
        while (bytes_ + cost(entry) > budget_) {
            drop(std::prev(entries_.end()));
        }
        bytes_ += cost(entry);
        entries_.push_front(std::move(entry));
        index_.emplace(entries_.front().key, entries_.begin());
    });
}

}  // namespace tenon::image_cache
