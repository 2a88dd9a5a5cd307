// SPDX-License-Identifier: MIT
// Matches stop strings in a stream of text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tenon::dsv41 {

/// Each byte of the stream is fed once. The stop string that ends first counts; of those the
/// longest.
class StopStrings {
  public:
    /// Empty strings are ignored.
    explicit StopStrings(const std::vector<std::string>& stops);

    bool empty() const { return patterns_.empty(); }

    struct Hit {
        size_t end = 0;     ///< behind the stop string, in the text fed by this call
        size_t length = 0;  ///< of the stop string; it may begin in an earlier call
    };
    std::optional<Hit> feed(std::string_view text);

    /// Bytes at the end of the stream that may still become a stop string.
    size_t held() const;

  private:
    struct Pattern {
        std::string text;
        std::vector<size_t> borders;  ///< by matched length: the longest proper prefix that is a
                                      ///< suffix of the match
        size_t matched = 0;
    };
    std::vector<Pattern> patterns_;
};

}  // namespace tenon::dsv41
