// SPDX-License-Identifier: MIT
// An op table that changes parameters or results of chosen ops: how a test breaks one rule of the
// model.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>

#include "tenon/compute.h"

namespace tenon::testing {

/// Forwards to another table. Wrapped ops see every call first. Fused ops can be hidden, so that
/// the model calls the parts that are wrapped.
class OpShim final : public OpTable {
  public:
    template <class P>
    using Hook = std::function<Status(const P& params, Stream& stream, const OpFn<P>& original)>;

    void attach(OpTable* inner) {
        entries_.clear();
        for (const OpEntry& e : inner->ops()) {
            if (hidden_.empty() ||
                std::find(hidden_.begin(), hidden_.end(), e.id.name) == hidden_.end()) {
                entries_.push_back(e);
            }
        }
        for (const auto& apply : wrappers_) {
            apply();
        }
    }
    template <class P>
    void wrap(Hook<P> hook) {
        wrappers_.push_back([this, hook] {
            for (OpEntry& e : entries_) {
                if (std::string_view(e.id.name) != P::kOp.name || e.id.version != P::kOp.version) {
                    continue;
                }
                auto link = std::make_shared<Link<P>>();
                link->hook = hook;
                link->original.self = e.self;
                link->original.fn =
                    reinterpret_cast<Status (*)(void*, const P&, Stream&) noexcept>(e.call);
                link->original.supports_fn =
                    reinterpret_cast<Status (*)(void*, const P&) noexcept>(e.supports);
                link->original.scratch_fn =
                    reinterpret_cast<int64_t (*)(void*, const P&) noexcept>(e.scratch);
                link->original.traits = e.traits;
                const OpTraits traits = e.traits;
                e = make_op<P>(link.get(), &call<P>, traits, &scratch<P>, &supports<P>);
                links_.push_back(link);
            }
        });
    }
    void hide(const std::vector<std::string>& names) { hidden_ = names; }

    void* query(StrView facet) noexcept override {
        return facet == StrView(OpTable::kFacet) ? static_cast<OpTable*>(this) : nullptr;
    }
    void release() noexcept override {}
    Span<const OpEntry> ops() noexcept override { return entries_; }
    StrView provider() noexcept override { return "shim"; }

  private:
    template <class P>
    struct Link {
        Hook<P> hook;
        OpFn<P> original;
    };
    template <class P>
    static Status call(void* self, const P& p, Stream& s) noexcept {
        auto* link = static_cast<Link<P>*>(self);
        return guard([&] { return link->hook(p, s, link->original); });
    }
    template <class P>
    static int64_t scratch(void* self, const P& p) noexcept {
        return static_cast<Link<P>*>(self)->original.scratch(p);
    }
    template <class P>
    static Status supports(void* self, const P& p) noexcept {
        return static_cast<Link<P>*>(self)->original.supports(p);
    }

    std::vector<OpEntry> entries_;
    std::vector<std::function<void()>> wrappers_;
    std::vector<std::shared_ptr<void>> links_;
    std::vector<std::string> hidden_;
};

}  // namespace tenon::testing
