// SPDX-License-Identifier: MIT
// JSON strings for the reply path, where a full JSON library costs more than the text.
#pragma once

#include <string>
#include <string_view>

namespace tenon::http {

/// Appends `text` as a JSON string with its quotes. Each byte that is not part of well-formed UTF-8
/// becomes U+FFFD.
void append_json_string(std::string& out, std::string_view text);

/// The same without quotes.
void append_json_escaped(std::string& out, std::string_view text);

/// Bytes of the well-formed UTF-8 character at the start of `text`, 0 if there is none.
size_t utf8_length(std::string_view text);

}  // namespace tenon::http
