// SPDX-License-Identifier: MIT
// What replies were sampled as, so that the next turn of a conversation finds its kept prefix
// (engine.md 4.4).
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "host/engine/turn_key.h"

namespace tenon::engine {

/// Bounded; the records that were used least recently go first. Thread: any.
class ReplayMemory {
  public:
    /// `budget` bytes in all, 0 = keeps nothing. `think_close`: the token after which a reply is
    /// shown when its reasoning is dropped, -1 if the model has none.
    ReplayMemory(int64_t budget, int32_t think_close);

    bool enabled() const { return budget_ > 0; }

    /// Keeps a finished turn. One that began in reasoning and never closed it is not kept: no
    /// later prompt holds it as it is.
    void put(const RecordedTurn& turn);

    struct Found {
        std::shared_ptr<const std::vector<int32_t>> record;  ///< keeps `ids` alive
        Span<const int32_t> ids;                             ///< empty: not known
    };
    Found find(const Digest& prompt, const VisibleTurn& turn, bool shows_reasoning);

    /// Bytes that the records take, by the same count as the budget.
    int64_t bytes() const;
    int64_t records() const;

  private:
    static constexpr size_t kShards = 8;
    static constexpr size_t kKeys = 4;  // text and call ids, each with and without reasoning

    struct Record {
        std::shared_ptr<const std::vector<int32_t>> ids;
        uint64_t content_at = 0;  ///< first id after the reasoning
        bool starts_reasoning = false;
        std::array<Digest, kKeys> keys;
        size_t key_count = 0;
        int64_t bytes = 0;
    };
    struct Hash {
        size_t operator()(const Digest& d) const;
    };
    struct Shard {
        mutable std::mutex mutex;   // guards the rest
        std::list<Record> records;  // used last first
        std::unordered_map<Digest, std::list<Record>::iterator, Hash> index;
        int64_t bytes = 0;
    };

    Shard& shard_of(const Digest& prompt) { return shards_[prompt[8] % kShards]; }
    static void drop_last(Shard& shard);

    const int64_t budget_;
    const int32_t think_close_;
    std::array<Shard, kShards> shards_;
};

/// The replay memory as one `render` sees it. One thread.
class ReplayLookup final : public TurnReplay {
  public:
    ReplayLookup(ReplayMemory& memory, uint64_t cache_salt)
        : memory_(memory), sha_(prompt_sha(cache_salt)) {}

    void add_prompt(Span<const int32_t> ids) noexcept override { sha_.add_ids(ids); }
    Span<const int32_t> find(const VisibleTurn& turn, bool shows_reasoning) noexcept override;

    /// Turns that were found.
    int64_t hits() const { return hits_; }

  private:
    ReplayMemory& memory_;
    Sha256 sha_;
    ReplayMemory::Found found_;
    int64_t hits_ = 0;
};

}  // namespace tenon::engine
