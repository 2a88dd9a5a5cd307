// SPDX-License-Identifier: MIT
// Finds added tokens in text: leftmost, of those the longest.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace tenon::dsv41 {

/// A byte trie over the contents of added tokens.
class AddedTokens {
  public:
    AddedTokens();
    /// content not empty; a repeated content keeps the last id.
    void add(std::string_view content, int32_t id);
    bool empty() const { return nodes_.size() == 1; }

    struct Match {
        size_t begin = 0, size = 0;  // size 0: none
        int32_t id = -1;
    };
    /// The first match at or behind `from`.
    Match find(std::string_view text, size_t from) const;

  private:
    struct Node {
        int32_t id = -1;
        std::vector<std::pair<unsigned char, int32_t>> children;
    };
    int32_t child(int32_t node, unsigned char byte) const;

    std::vector<Node> nodes_;
    std::array<int32_t, 256> first_;  // children of the root: most bytes of a text end here
};

}  // namespace tenon::dsv41
