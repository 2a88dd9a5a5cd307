// SPDX-License-Identifier: MIT
// Structured output: a compiler of grammars and the state that masks and walks tokens.
#pragma once

#include "tenon/object.h"

namespace tenon {

/// State of one request's grammar. It only ever contains emitted tokens. Thread: the engine thread.
class TokenConstraint : public Object {
  public:
    static constexpr const char* kFacet = "constraint.token/1";
    /// Length of the longest legal prefix of `candidates` from the current state; the state stays.
    virtual int32_t walk(Span<const int32_t> candidates) noexcept = 0;
    /// Fills masks of rows 0..drafts.size: row r is the state after drafts[0..r). 1 bit = allowed.
    virtual Status fill(Span<const int32_t> drafts, Span<uint32_t> masks,
                        int64_t words_per_row) noexcept = 0;
    virtual Status accept(Span<const int32_t> emitted) noexcept = 0;
    /// The grammar is complete: only an end token may follow.
    virtual bool complete() noexcept = 0;
};

class ConstraintCompiler : public Object {
  public:
    static constexpr const char* kFacet = "constraint.compiler/1";
    /// `kind`: json_schema, json_object, regex, ebnf, choice. errors  invalid_argument,
    /// unsupported: named keyword
    virtual Status compile(StrView kind, StrView source, TokenConstraint** out) noexcept = 0;
};

}  // namespace tenon
