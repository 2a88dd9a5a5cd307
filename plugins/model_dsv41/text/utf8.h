// SPDX-License-Identifier: MIT
// UTF-8 at the byte level: checking input, and turning any byte stream into text that ends on
// character borders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tenon::dsv41 {

/// U+FFFD, which stands for what is no character.
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Offset of the first byte that is not well-formed UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text);

/// Appends one scalar value (not a surrogate, at most U+10FFFF).
void append_utf8(std::string& out, char32_t c);

/// Reads the character at `at` of well-formed text and moves `at` behind it.
char32_t next_utf8(std::string_view text, size_t& at);

/// `text` with each maximal ill-formed part replaced by U+FFFD, for messages that quote input.
std::string to_valid_utf8(std::string_view text);

/// Bytes in, well-formed text out. Holds an incomplete character until it is complete or proves
/// wrong.
///
/// Each maximal ill-formed part gives one U+FFFD, so the result equals a decode of the whole
/// stream.
class Utf8Assembler {
  public:
    /// Appends to `out` what became certain.
    void feed(std::string_view bytes, std::string& out);
    /// Ends the stream: an incomplete character becomes U+FFFD.
    void flush(std::string& out);
    /// Ends the stream and forgets an incomplete character.
    void drop() { held_size_ = 0; }
    bool has_incomplete() const { return held_size_ > 0; }

  private:
    void put(unsigned char byte, std::string& out);

    char held_[4] = {};
    uint8_t held_size_ = 0;
    uint8_t need_ = 0;                  // bytes that the held character has in all
    unsigned char low_ = 0, high_ = 0;  // range of the next byte
};

}  // namespace tenon::dsv41
