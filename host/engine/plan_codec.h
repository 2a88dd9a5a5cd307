// SPDX-License-Identifier: MIT
// The wire form of a step plan (engine.md 1.5): encode, and decode with every limit checked before
// use.
#pragma once

#include <vector>

#include "tenon/plan.h"

namespace tenon {

/// Replaces `out` by the plan's bytes; sets total_bytes, sections and digest. Canonical: same plan,
/// same bytes. Allocates only if `out` must grow beyond its capacity.
void encode_plan(const StepPlan& plan, std::vector<uint8_t>* out);

/// Decodes plans. Spans of the result point into `bytes`, or into the decoder where a record of
/// another minor version had to be copied; they live until the next call.
class PlanDecoder {
  public:
    /// bytes   8-byte aligned; time O(size); nothing outside is read
    /// errors  invalid_argument: what is malformed and where
    Status decode(Span<const uint8_t> bytes, StepPlan* out);

  private:
    template <class T>
    Status section(const plan::SectionHeader& header, const uint8_t* payload, Span<const T>* out);

    std::vector<std::vector<uint64_t>> copies_;  // 8-byte aligned storage
};

/// XXH3-64 of the bytes with the digest field taken as zero.
uint64_t plan_digest(Span<const uint8_t> bytes);

}  // namespace tenon
