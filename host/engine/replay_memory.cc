// SPDX-License-Identifier: MIT
// Shards with their own lock, list of use and index. All keys of a record lie in one shard, as they
// share the prompt.
#include "host/engine/replay_memory.h"

#include <algorithm>

namespace tenon::engine {
namespace {

// A list node, a map node with its digest, and the shared count, rounded up.
constexpr int64_t kRecordBytes = 320;
constexpr int64_t kKeyBytes = 96;

}  // namespace

size_t ReplayMemory::Hash::operator()(const Digest& d) const {
    size_t value = 0;
    std::memcpy(&value, d.data(), sizeof value);
    return value;
}

ReplayMemory::ReplayMemory(int64_t budget, int32_t think_close)
    : budget_(budget), think_close_(think_close) {}

void ReplayMemory::drop_last(Shard& shard) {
    const auto last = std::prev(shard.records.end());
    for (size_t i = 0; i < last->key_count; ++i) {
        const auto found = shard.index.find(last->keys[i]);
        // A later turn with the same visible text may have taken the key over.
        if (found != shard.index.end() && found->second == last) {
            shard.index.erase(found);
        }
    }
    shard.bytes -= last->bytes;
    shard.records.erase(last);
}

void ReplayMemory::put(const RecordedTurn& turn) {
    if (!enabled() || turn.is_odd || turn.ids.empty()) {
        return;
    }
    Record record;
    record.starts_reasoning = turn.starts_reasoning;
    if (turn.starts_reasoning) {
        const auto close = std::find(turn.ids.begin(), turn.ids.end(), think_close_);
        if (close == turn.ids.end()) {
            return;
        }
        record.content_at = static_cast<uint64_t>(close - turn.ids.begin()) + 1;
    }
    const std::vector<VisibleCall> calls = turn.visible_calls();
    const VisibleTurn visible{turn.reasoning, turn.content, calls};
    const auto add_key = [&](bool with_reasoning, TurnMatch match) {
        record.keys[record.key_count++] = turn_key(turn.prompt, visible, with_reasoning, match);
    };
    add_key(false, TurnMatch::text);
    if (!turn.reasoning.empty()) {
        add_key(true, TurnMatch::text);
    }
    if (!calls.empty()) {
        add_key(false, TurnMatch::call_ids);
        if (!turn.reasoning.empty()) {
            add_key(true, TurnMatch::call_ids);
        }
    }
    record.bytes = kRecordBytes + kKeyBytes * static_cast<int64_t>(record.key_count) +
                   static_cast<int64_t>(turn.ids.size() * sizeof(int32_t));
    const int64_t most = budget_ / static_cast<int64_t>(kShards);
    if (record.bytes > most) {
        return;
    }
    record.ids = std::make_shared<const std::vector<int32_t>>(turn.ids.begin(), turn.ids.end());

    Shard& shard = shard_of(turn.prompt);
    const std::lock_guard lock(shard.mutex);
    while (shard.bytes + record.bytes > most) {
        drop_last(shard);
    }
    shard.bytes += record.bytes;
    shard.records.push_front(std::move(record));
    const Record& kept = shard.records.front();
    for (size_t i = 0; i < kept.key_count; ++i) {
        shard.index[kept.keys[i]] = shard.records.begin();
    }
}

ReplayMemory::Found ReplayMemory::find(const Digest& prompt, const VisibleTurn& turn,
                                       bool shows_reasoning) {
    // A client that sends other reasoning than it got means it; one that sends none gets the
    // turn's own back.
    const bool with_reasoning = shows_reasoning && !turn.reasoning.empty();
    const Digest by_text = turn_key(prompt, turn, with_reasoning, TurnMatch::text);
    const Digest by_ids =
        turn.calls.empty() ? by_text : turn_key(prompt, turn, with_reasoning, TurnMatch::call_ids);
    Shard& shard = shard_of(prompt);
    const std::lock_guard lock(shard.mutex);
    auto at = shard.index.find(by_text);
    if (at == shard.index.end()) {
        at = shard.index.find(by_ids);
    }
    if (at == shard.index.end()) {
        return {};
    }
    const auto record = at->second;
    if (shows_reasoning && !record->starts_reasoning) {
        return {};  // it has no close marker
    }
    shard.records.splice(shard.records.begin(), shard.records, record);
    const Span<const int32_t> ids = *record->ids;
    return {record->ids,
            shows_reasoning ? ids : ids.subspan(record->content_at, ids.size - record->content_at)};
}

int64_t ReplayMemory::bytes() const {
    int64_t sum = 0;
    for (const Shard& shard : shards_) {
        const std::lock_guard lock(shard.mutex);
        sum += shard.bytes;
    }
    return sum;
}

int64_t ReplayMemory::records() const {
    int64_t sum = 0;
    for (const Shard& shard : shards_) {
        const std::lock_guard lock(shard.mutex);
        sum += static_cast<int64_t>(shard.records.size());
    }
    return sum;
}

Span<const int32_t> ReplayLookup::find(const VisibleTurn& turn, bool shows_reasoning) noexcept {
    found_ = {};
    // Without memory for the look-up the canonical form is written.
    const Status status = guard([&] { found_ = memory_.find(sha_.peek(), turn, shows_reasoning); });
    hits_ += status.ok() && !found_.ids.empty() ? 1 : 0;
    return found_.ids;
}

}  // namespace tenon::engine
