// SPDX-License-Identifier: MIT
// Knuth-Morris-Pratt for a handful of patterns side by side.
#include "text/stop_strings.h"

#include <algorithm>

namespace tenon::dsv41 {

StopStrings::StopStrings(const std::vector<std::string>& stops) {
    for (const std::string& stop : stops) {
        if (stop.empty()) {
            continue;
        }
        Pattern pattern;
        pattern.text = stop;
        pattern.borders.assign(stop.size() + 1, 0);
        for (size_t length = 2, border = 0; length <= stop.size(); ++length) {
            while (border > 0 && stop[border] != stop[length - 1]) {
                border = pattern.borders[border];
            }
            border += stop[border] == stop[length - 1];
            pattern.borders[length] = border;
        }
        patterns_.push_back(std::move(pattern));
    }
}

std::optional<StopStrings::Hit> StopStrings::feed(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
        size_t longest = 0;
        for (Pattern& pattern : patterns_) {
            if (pattern.matched == pattern.text.size()) {
                pattern.matched = pattern.borders[pattern.matched];
            }
            while (pattern.matched > 0 && pattern.text[pattern.matched] != text[i]) {
                pattern.matched = pattern.borders[pattern.matched];
            }
            pattern.matched += pattern.text[pattern.matched] == text[i];
            if (pattern.matched == pattern.text.size()) {
                longest = std::max(longest, pattern.matched);
            }
        }
        if (longest > 0) {
            return Hit{i + 1, longest};
        }
    }
    return std::nullopt;
}

size_t StopStrings::held() const {
    size_t most = 0;
    for (const Pattern& pattern : patterns_) {
        most = std::max(most, pattern.matched);
    }
    return most;
}

}  // namespace tenon::dsv41
