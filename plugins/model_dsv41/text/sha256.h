// SPDX-License-Identifier: MIT
// SHA-256, for the digest that names a tokenizer.
#pragma once

#include <string>
#include <string_view>

namespace tenon::dsv41 {

/// The digest as 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace tenon::dsv41
