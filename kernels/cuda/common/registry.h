// SPDX-License-Identifier: MIT
// How op files register themselves: each family defines `void add_<family>(Registry&)`.
#pragma once

#include "common/context.h"

namespace tenon::cuda {

enum class Exactness : uint8_t { exact, invariant };  // class X, class I

constexpr uint32_t kDecode = 1u << static_cast<uint32_t>(Regime::decode);
constexpr uint32_t kPrefill = 1u << static_cast<uint32_t>(Regime::prefill);
constexpr uint32_t kBoth = kDecode | kPrefill;

class Registry {
  public:
    explicit Registry(Context* context) : context_(context) {}

    /// One implementation for both regimes: rows have equal bits in them. An op whose regimes
    /// differ is added twice, with kDecode and with kPrefill, and `equal_regimes` false.
    /// Rows: at least 64 (decode) and 4096 (prefill); launchers here take more.
    template <class P>
    void add(OpCall<P> call, Exactness exactness, uint32_t regimes = kBoth,
             int64_t (*scratch)(void*, const P&) noexcept = nullptr, bool graph_safe = true) {
        OpTraits traits;
        traits.regimes = regimes;
        traits.rows_max[0] = traits.rows_max[1] = int64_t{1} << 20;
        traits.graph_safe = graph_safe;
        traits.exact = exactness == Exactness::exact;
        traits.equal_regimes = regimes == kBoth;
        entries_.push_back(make_op<P>(context_, call, traits, scratch));
    }
    Context& context() { return *context_; }
    std::vector<OpEntry> take() { return std::move(entries_); }

  private:
    Context* context_;
    std::vector<OpEntry> entries_;
};

/// Adds every op of the families that were built.
void add_all(Registry& r);

}  // namespace tenon::cuda
