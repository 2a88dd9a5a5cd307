// SPDX-License-Identifier: MIT
// Shell completion, generated from the verbs and their options.
#pragma once

#include <string>
#include <vector>

namespace tenon::cli {

struct CompletionVerb {
    std::string name, help;
    std::vector<std::string> options;
};

std::string completion_script(const std::string& shell, const std::vector<CompletionVerb>& verbs);

}  // namespace tenon::cli
