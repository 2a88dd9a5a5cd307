// SPDX-License-Identifier: MIT
// The trie of added tokens; its depth is that of the longest content, so a search is linear in the
// text.
#include "text/added_tokens.h"

namespace tenon::dsv41 {

AddedTokens::AddedTokens() : nodes_(1) {
    first_.fill(-1);
}

int32_t AddedTokens::child(int32_t node, unsigned char byte) const {
    if (node == 0) {
        return first_[byte];
    }
    for (const auto& [key, target] : nodes_[static_cast<size_t>(node)].children) {
        if (key == byte) {
            return target;
        }
    }
    return -1;
}

void AddedTokens::add(std::string_view content, int32_t id) {
    int32_t node = 0;
    for (const char c : content) {
        const auto byte = static_cast<unsigned char>(c);
        int32_t target = child(node, byte);
        if (target < 0) {
            target = static_cast<int32_t>(nodes_.size());
            nodes_.emplace_back();
            if (node == 0) {
                first_[byte] = target;
            } else {
                nodes_[static_cast<size_t>(node)].children.emplace_back(byte, target);
            }
        }
        node = target;
    }
    nodes_[static_cast<size_t>(node)].id = id;
}

AddedTokens::Match AddedTokens::find(std::string_view text, size_t from) const {
    for (size_t begin = from; begin < text.size(); ++begin) {
        int32_t node = first_[static_cast<unsigned char>(text[begin])];
        Match longest;
        for (size_t at = begin + 1; node >= 0; ++at) {
            const int32_t id = nodes_[static_cast<size_t>(node)].id;
            if (id >= 0) {
                longest = Match{begin, at - begin, id};
            }
            node = at < text.size() ? child(node, static_cast<unsigned char>(text[at])) : -1;
        }
        if (longest.size > 0) {
            return longest;
        }
    }
    return {};
}

}  // namespace tenon::dsv41
