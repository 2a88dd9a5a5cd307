// SPDX-License-Identifier: MIT
// Sizes ("512 MiB") and times ("30 s") of profiles.
#pragma once

#include <string_view>

#include "tenon/base.h"

namespace tenon {

/// Bytes. Units B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB. errors  invalid_argument:
/// what was expected
Result<int64_t> parse_size(std::string_view text);
/// Microseconds. Units us, ms, s, min, h. errors  invalid_argument
Result<int64_t> parse_time(std::string_view text);
/// "512 MiB", "1.4 GiB": three digits, for tables.
std::string size_text(int64_t bytes);

}  // namespace tenon
