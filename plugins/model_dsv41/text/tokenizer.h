// SPDX-License-Identifier: MIT
// The byte-level BPE tokenizer of a checkpoint, read from its tokenizer.json.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tenon/base.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pattern.h"
#include "text/utf8.h"

namespace tenon::dsv41 {

/// Immutable after `load`; every method may run on any thread. Ids are below `size()`; some may be
/// unused.
class Tokenizer {
  public:
    /// Working memory of one thread for `encode`.
    class Scratch {
        friend class Tokenizer;
        std::vector<Pattern::Scratch> stages;
        Bpe::Scratch bpe;
    };
    enum class Specials { as_text, parsed };

    /// json  content of tokenizer.json; untrusted
    /// errors  invalid_argument: malformed, names the field; unsupported: a feature that changes
    /// ids and is not known here
    static Result<Tokenizer> load(std::string_view json);

    /// One more than the largest id.
    int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
    bool has(int32_t id) const {
        return id >= 0 && id < size() && tokens_[static_cast<size_t>(id)].is_used;
    }
    bool is_added(int32_t id) const { return has(id) && tokens_[static_cast<size_t>(id)].is_added; }
    /// A skip-specials decode drops it.
    bool is_special(int32_t id) const {
        return has(id) && tokens_[static_cast<size_t>(id)].is_special;
    }
    /// The string of tokenizer.json; bytes are spelled in its byte alphabet. Empty for an unused
    /// id.
    std::string_view raw(int32_t id) const;
    /// What the token decodes to. Empty for an unused id.
    std::string_view bytes(int32_t id) const;
    /// The id whose raw string this is.
    std::optional<int32_t> find(std::string_view raw_text) const;

    Scratch make_scratch() const;
    /// Appends the ids of `text`. `as_text`: no added token is recognised, so client text yields no
    /// control token. errors  invalid_argument: text is not UTF-8 (names the byte)
    Status encode(std::string_view text, Specials specials, Scratch& scratch,
                  std::vector<int32_t>& out) const;
    /// One decode of all ids: ill-formed UTF-8 becomes U+FFFD.
    /// errors  invalid_argument: an unused id (names it and its place)
    Result<std::string> decode(std::span<const int32_t> ids, bool skip_specials) const;

  private:
    friend class TokenizerLoader;
    struct Token {
        uint32_t raw_begin = 0, raw_size = 0, bytes_begin = 0, bytes_size = 0;
        bool is_used = false, is_added = false, is_special = false;
    };
    Tokenizer() = default;
    Status encode_plain(std::string_view text, size_t stage, Scratch& scratch,
                        std::vector<int32_t>& out) const;
    Status encode_around(const AddedTokens& added, const AddedTokens* then, std::string_view text,
                         Scratch& scratch, std::vector<int32_t>& out) const;

    std::vector<Token> tokens_;
    std::string raw_, bytes_;      // all strings, one behind the other
    std::vector<int32_t> by_raw_;  // used ids in the order of their raw strings
    Bpe bpe_;
    std::vector<Pattern> stages_;        // each cuts the pieces of the one before
    AddedTokens verbatim_, normalized_;  // cut out before, and after the (empty) normaliser
};

/// Decodes a growing list of ids; what it gives out ends on a character border.
class DecodeStream {
  public:
    DecodeStream(const Tokenizer& tokenizer, bool skip_specials)
        : tokenizer_(tokenizer), skip_specials_(skip_specials) {}
    /// Text that became certain. While a character is incomplete nothing is given out, also not
    /// what precedes it in the same token.
    std::string feed(std::span<const int32_t> ids);
    /// The rest; an incomplete character becomes U+FFFD.
    std::string flush();

  private:
    const Tokenizer& tokenizer_;
    bool skip_specials_;
    Utf8Assembler assembler_;
    std::string held_;
};

}  // namespace tenon::dsv41
