// SPDX-License-Identifier: MIT
// All tokens of one slot, with an index of its 4-grams: what the text said after the same words
// before is a good draft.
#pragma once

#include <vector>

#include "tenon/base.h"

namespace tenon::engine {

/// Engine thread. Allocates at construction only.
///
/// The index is direct-mapped and keeps the newest place of each 4-gram; a lost entry costs a
/// draft, never a wrong one, since matches are compared token by token.
class TokenHistory {
  public:
    static constexpr int64_t kMinMatch = 4;  ///< shorter repeats are mostly chance

    explicit TokenHistory(int64_t context_tokens);
    /// Bytes that one history of this length takes.
    static int64_t bytes(int64_t context_tokens);

    void open(Span<const int32_t> prompt);
    void append(Span<const int32_t> ids);
    /// Prompt and reply, the pending token last.
    Span<const int32_t> tokens() const { return {tokens_.data(), tokens_.size()}; }
    /// Enters at most `most` further 4-grams; a long prompt is indexed over several steps.
    void index_some(int64_t most);

    struct Match {
        int64_t length = 0;  ///< tokens before the end that agree, at most kMaxMatch; 0 = none
        int32_t count = 0;   ///< drafts written
    };
    static constexpr int64_t kMaxMatch = 32;
    /// Looks the last tokens up and writes what followed them. A repeat whose period is shorter
    /// than `most` goes round. Indexes what `append` brought; nothing while a prompt is behind.
    Match propose(int32_t most, int32_t* out);

  private:
    size_t bucket(int64_t end) const;  ///< of the 4-gram that ends at this position

    std::vector<int32_t> tokens_;
    std::vector<int32_t> index_;  ///< by hash: position of a 4-gram's last token, -1 = none
    int64_t indexed_ = 0;         ///< 4-grams that end before this position are in
};

}  // namespace tenon::engine
