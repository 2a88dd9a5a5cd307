// SPDX-License-Identifier: MIT
// Structured output: a compiler of grammars and the state that masks and walks tokens.
#pragma once

#include "tenon/object.h"

namespace tenon {

/// What a grammar knows about tokens.
struct TokenVocabulary {
    /// Raw bytes of each id. Empty: the token is never part of a grammar's text.
    Span<const StrView> bytes;
    /// Tokens that end a reply: legal exactly where the text so far is complete, whatever their
    /// bytes.
    Span<const int32_t> end_ids;
};

/// State of one request's grammar. It only ever contains emitted tokens. Thread: the engine thread.
class TokenConstraint : public Object {
  public:
    static constexpr const char* kFacet = "constraint.token/1";
    /// Length of the longest legal prefix of `candidates` from the current state; the state stays.
    /// Nothing is legal behind an end token.
    virtual int32_t walk(Span<const int32_t> candidates) noexcept = 0;
    /// Fills masks of rows 0..drafts.size (both included): row r is the state after drafts[0..r),
    /// bit i % 32 of word i / 32 says whether token i is legal there; bits behind the vocabulary
    /// are 0. `drafts` is legal as a whole; the state stays. `masks`: u32 [drafts.size + 1,
    /// words_per_row], words_per_row >= ceil(vocabulary / 32). errors  invalid_argument: masks or
    /// words_per_row too small, illegal drafts (nothing is written)
    virtual Status fill(Span<const int32_t> drafts, Span<uint32_t> masks,
                        int64_t words_per_row) noexcept = 0;
    /// Moves the state on. errors  invalid_argument: an illegal token, named with its place; the
    /// state stays
    virtual Status accept(Span<const int32_t> emitted) noexcept = 0;
    /// The grammar is complete: only an end token may follow.
    virtual bool complete() noexcept = 0;
};

class ConstraintCompiler : public Object {
  public:
    static constexpr const char* kFacet = "constraint.compiler/1";
    /// Copies what it needs of the vocabulary. The host calls it once, before the first `compile`.
    /// errors  invalid_argument: no vocabulary, or an end id outside it
    virtual Status use(const TokenVocabulary& vocabulary) noexcept = 0;
    /// `kind`: json_schema, json_object, regex, ebnf, choice (source: a JSON array of strings).
    /// Thread: any, several at once. errors  invalid_argument: source with place and reason;
    /// unsupported: kind or keyword, named; does_not_fit: over the limits of time or size
    virtual Status compile(StrView kind, StrView source, TokenConstraint** out) noexcept = 0;
};

}  // namespace tenon
