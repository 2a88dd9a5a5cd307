// SPDX-License-Identifier: MIT
// The Engram token map: tokens that read alike share one class, and tables are addressed by class.
#pragma once

#include <cstdint>
#include <vector>

#include "tenon/base.h"
#include "text/tokenizer.h"

namespace tenon::dsv41 {

struct EngramTokenMap {
    std::vector<int32_t>
        classes;  ///< class of each id of the tokenizer; dense from 0 in order of first appearance
    int32_t class_count = 0;
};

/// Derives the map from the tokenizer (docs/dsv41.md 4.1). Rows of the embedding beyond the
/// tokenizer have no class. errors  internal: the Unicode library failed
Result<EngramTokenMap> build_engram_token_map(const Tokenizer& tokenizer);

/// The key under which a token's text is compared. Exposed for tests.
Result<std::string> engram_key(std::string_view text);

}  // namespace tenon::dsv41
