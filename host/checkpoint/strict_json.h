// SPDX-License-Identifier: MIT
// JSON from files that strangers wrote: bounded depth, no key given twice.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tenon/base.h"

namespace tenon {

/// Parses one whole document.
///
/// what       names the document in messages: "x.safetensors: its header"
/// max_depth  containers inside each other, the outermost one counted
/// errors     invalid_argument: "<what> is not valid JSON: …", "<what> has the key 'k' twice"
Result<nlohmann::json> parse_strict_json(const std::string& what, std::string_view text,
                                         int max_depth);

/// At most `bytes` bytes of a UTF-8 text, for messages: cut before a character, not inside one.
std::string cut_text(std::string text, size_t bytes);

}  // namespace tenon
