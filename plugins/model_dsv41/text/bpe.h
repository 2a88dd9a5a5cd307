// SPDX-License-Identifier: MIT
// Byte pair merging of one piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tenon::dsv41 {

/// Merges the bytes of a piece: always the pair of lowest rank next, of equal pairs the leftmost.
/// Immutable.
class Bpe {
  public:
    /// One merge; its rank is its place in the list. Of two rules for one pair the later counts.
    struct Rule {
        int32_t left, right, merged;
    };
    /// Working memory of one thread.
    struct Scratch {
        std::vector<int32_t> ids, previous, next;
        std::vector<uint32_t> ranks;
        std::vector<uint64_t> heap;
    };

    Bpe() = default;
    /// byte_ids: the id of each single byte.
    Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<Rule>& rules);

    /// Appends the ids of `piece` (below 2^31 bytes). O(n log n) for long pieces.
    void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

  private:
    static constexpr uint32_t kNoRank = UINT32_MAX;

    uint32_t rank_of(int32_t left, int32_t right) const;
    void encode_short(std::string_view piece, std::vector<int32_t>& out) const;
    void encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

    struct Slot {
        uint64_t pair;
        uint32_t rank;
    };
    static uint64_t pair_key(int32_t left, int32_t right) {
        return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
               static_cast<uint32_t>(right);
    }
    size_t slot_of(uint64_t pair) const {
        return static_cast<size_t>((pair * 0x9E3779B97F4A7C15ULL) >> shift_);
    }

    std::array<int32_t, 256> byte_ids_{};
    std::vector<int32_t> merged_;  // by rank
    std::vector<Slot> slots_;      // open addressing, a power of two, at most half full
    int shift_ = 63;
};

}  // namespace tenon::dsv41
