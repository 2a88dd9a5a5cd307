// SPDX-License-Identifier: MIT
// The hash of the wire form and of the digest chain: XXH3-64, seed 0 (engine.md 1.5, 5).
#pragma once

#include "tenon/plan.h"

namespace tenon::engine {

/// XXH3-64 of `head` followed by `rest`; the DigestFn of plan_codec.h.
uint64_t plan_digest(Span<const uint8_t> head, Span<const uint8_t> rest) noexcept;

/// chain(n) from chain(n - 1), the plan's digest and the tokens and drafts that step n gave.
uint64_t next_chain(uint64_t chain, uint64_t digest, const StepResult& result) noexcept;

}  // namespace tenon::engine
