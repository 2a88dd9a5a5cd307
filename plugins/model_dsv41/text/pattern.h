// SPDX-License-Identifier: MIT
// A splitter pattern of a pre-tokenizer: PCRE2 with the character classes of the tokenizers
// library.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tenon/base.h"

namespace tenon::dsv41 {

/// `pattern` with \p{L}, \p{M}, \p{N}, \p{P}, \p{S} and \s spelled so that PCRE2 matches what
/// Unicode 16 says.
///
/// PCRE2 10.42 knows Unicode 14, and its \s also takes U+180E. A text with newer characters would
/// be cut elsewhere than in training, hence get other ids. errors  unsupported: a construct that
/// the two engines read differently
Result<std::string> widen_classes(std::string_view pattern);

/// Cuts text into matches and the text between them ("isolated" splitting). Immutable, any thread.
class Pattern {
  public:
    /// Working memory of one thread for one pattern.
    class Scratch {
      public:
        Scratch(Scratch&&) noexcept;
        ~Scratch();

      private:
        friend class Pattern;
        Scratch();
        struct State;
        std::unique_ptr<State> state_;
    };

    static Result<Pattern> compile(std::string_view pattern);
    Pattern(Pattern&&) noexcept;
    Pattern& operator=(Pattern&&) noexcept;
    ~Pattern();

    Scratch make_scratch() const;
    /// Sets `end` to the end of the piece that begins at `begin`. A walk goes from piece to piece
    /// up to the end of `text` before the scratch is used for another text.
    ///
    /// text     well-formed UTF-8; 0 <= begin < text.size()
    /// errors   internal: the matcher gave up
    Status next(std::string_view text, size_t begin, Scratch& scratch, size_t& end) const;

  private:
    struct Regex;
    explicit Pattern(std::unique_ptr<Regex> regex);
    std::unique_ptr<Regex> regex_;
};

}  // namespace tenon::dsv41
