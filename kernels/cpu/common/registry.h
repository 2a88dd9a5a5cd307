// SPDX-License-Identifier: MIT
// How op files register themselves: one function per op adds its entry, choosing reference or SIMD.
#pragma once

#include "common/context.h"

namespace tenon::cpu {

enum class Exactness : uint8_t { exact, invariant };  // class X, class I

class Registry {
  public:
    Registry(Context* owner, bool simd) : context_(owner), simd_(simd) {}

    template <class P>
    void add(OpCall<P> call, Exactness exactness,
             int64_t (*scratch)(void*, const P&) noexcept = nullptr) {
        OpTraits traits;
        traits.rows_max[0] = traits.rows_max[1] = int64_t{1} << 20;
        traits.graph_safe = false;
        traits.exact = exactness == Exactness::exact;
        traits.equal_regimes = true;
        entries_.push_back(make_op<P>(context_, call, traits, scratch));
    }
    bool simd() const { return simd_; }
    /// The SIMD version where it is wanted and not null (this CPU has fused multiply-add), else the
    /// reference.
    template <class P>
    void add_best(OpCall<P> reference, OpCall<P> fast, Exactness exactness,
                  int64_t (*scratch)(void*, const P&) noexcept = nullptr) {
        add<P>(simd_ && fast != nullptr ? fast : reference, exactness, scratch);
    }
    std::vector<OpEntry> take() { return std::move(entries_); }

  private:
    Context* context_;
    bool simd_;
    std::vector<OpEntry> entries_;
};

/// Adds every op of the CPU.
void add_all(Registry& r);

}  // namespace tenon::cpu
