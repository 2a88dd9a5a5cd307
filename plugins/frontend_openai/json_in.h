// SPDX-License-Identifier: MIT
// Strict parsing of request bodies: limits on depth and size, no duplicate keys, errors with a
// place.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "api_error.h"

namespace tenon::http {

using Json = nlohmann::ordered_json;

/// Parses one JSON text. Refused with 400: syntax (line and column), ill-formed UTF-8 and lone
/// surrogates, NaN and infinities, numbers beyond a double, nesting beyond kJsonDepth, more values
/// or keys than the limits of settings.h, a key that occurs twice in one object (the parser behind
/// another hop may take the other one).
Refusal parse_json(std::string_view text, Json* out);

}  // namespace tenon::http
