// SPDX-License-Identifier: MIT
// The suffix look-up behind copy drafts.
#include "host/engine/token_history.h"

#include <algorithm>
#include <bit>

namespace tenon::engine {
namespace {

constexpr int64_t kSmallest = 1 << 10;
constexpr int64_t kLargest = 1 << 17;  // 512 KiB a slot; older 4-grams of longer texts are lost
constexpr int64_t kPerAppend = 64;     // more than any window emits

int64_t index_size(int64_t context_tokens) {
    const auto wanted = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(context_tokens)));
    return std::clamp(wanted, kSmallest, kLargest);
}

}  // namespace

TokenHistory::TokenHistory(int64_t context_tokens)
    : index_(static_cast<size_t>(index_size(context_tokens)), -1) {
    tokens_.reserve(static_cast<size_t>(context_tokens) + 1);
}

int64_t TokenHistory::bytes(int64_t context_tokens) {
    return 4 * (context_tokens + 1 + index_size(context_tokens));
}

void TokenHistory::open(Span<const int32_t> prompt) {
    tokens_.assign(prompt.begin(), prompt.end());
    std::fill(index_.begin(), index_.end(), -1);
    indexed_ = kMinMatch - 1;
}

void TokenHistory::append(Span<const int32_t> ids) {
    TENON_CHECK(tokens_.size() + ids.size <= tokens_.capacity(), "history of {} tokens",
                tokens_.capacity());
    tokens_.insert(tokens_.end(), ids.begin(), ids.end());
}

size_t TokenHistory::bucket(int64_t end) const {
    uint64_t hash = 0;
    for (int64_t i = end - kMinMatch + 1; i <= end; ++i) {
        hash = (hash ^ static_cast<uint32_t>(tokens_[static_cast<size_t>(i)])) *
               uint64_t{0x9E3779B97F4A7C15};  // the golden ratio, as in Fibonacci hashing
        hash ^= hash >> 29;
    }
    return static_cast<size_t>(hash) & (index_.size() - 1);
}

void TokenHistory::index_some(int64_t most) {
    // The 4-gram at the very end stays out: it would find itself.
    const int64_t end = std::min(indexed_ + most, static_cast<int64_t>(tokens_.size()) - 1);
    for (; indexed_ < end; ++indexed_) {
        index_[bucket(indexed_)] = static_cast<int32_t>(indexed_);
    }
}

TokenHistory::Match TokenHistory::propose(int32_t most, int32_t* out) {
    index_some(kPerAppend);
    const auto size = static_cast<int64_t>(tokens_.size());
    Match match;
    if (size <= kMinMatch || indexed_ < size - 1 || most < 1) {
        return match;
    }
    const int64_t place = index_[bucket(size - 1)];
    if (place < 0) {
        return match;
    }
    const auto at = [this](int64_t i) { return tokens_[static_cast<size_t>(i)]; };
    int64_t length = 0;
    while (length < kMaxMatch && length <= place && at(place - length) == at(size - 1 - length)) {
        ++length;
    }
    if (length < kMinMatch) {
        return match;  // another 4-gram with the same hash
    }
    const int64_t period = size - 1 - place;
    for (int32_t i = 0; i < most; ++i) {
        out[i] = i < period ? at(place + 1 + i) : out[i - period];
    }
    match.length = length;
    match.count = most;
    return match;
}

}  // namespace tenon::engine
