// SPDX-License-Identifier: MIT
// Op tables and formats with somebody between them and their caller: for profilers, recorders and
// tests.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tenon/ops/all.h"
#include "tenon/quant.h"

namespace tenon {

/// One call that passes by.
struct TappedCall {
    StrView name;  ///< of the op ("norm.rms"), or of the weight without its layer ("attn.wq_a")
    int64_t bytes = 0;  ///< of quantized weights that the call reads; experts: of the distinct ones
                        ///< to be expected if rows choose at random
    Stream* stream = nullptr;
    std::function<Status()> run;  ///< the call with the parameters that it has now; the memory that
                                  ///< they name is borrowed
};

/// Thread: that of the calls.
class CallTap {
  public:
    /// False: the call goes on at once, and `take` is not asked.
    virtual bool wants() noexcept = 0;
    /// In place of the call.
    virtual Status take(TappedCall call) noexcept = 0;

  protected:
    ~CallTap() = default;
};

/// The ops of `inner` with a tap. Both outlive it; it outlives whoever bound its ops.
class TappedOps final : public OpTable {
  public:
    /// `capturable`: the tap keeps calls for graphs, so all of them may be captured.
    TappedOps(OpTable& inner, CallTap& tap, bool capturable = false)
        : inner_(inner), tap_(tap), capturable_(capturable) {
        for (const OpEntry& e : inner.ops()) {
            add(e, AllOps());
        }
    }
    void* query(StrView facet) noexcept override {
        return facet == StrView(OpTable::kFacet) ? static_cast<OpTable*>(this) : nullptr;
    }
    void release() noexcept override {}
    Span<const OpEntry> ops() noexcept override { return entries_; }
    StrView provider() noexcept override { return inner_.provider(); }
    int64_t untapped() const { return untapped_; }

  private:
    struct Kept {
        virtual ~Kept() = default;
    };
    template <class P>
    struct Op final : Kept {
        CallTap* tap = nullptr;
        OpFn<P> inner;
    };
    template <class P>
    bool add_one(const OpEntry& e) {
        if (StrView(e.id.name) != StrView(P::kOp.name) || e.id.version != P::kOp.version) {
            return false;
        }
        auto op = std::make_unique<Op<P>>();
        op->tap = &tap_;
        op->inner.self = e.self;
        op->inner.fn = reinterpret_cast<Status (*)(void*, const P&, Stream&) noexcept>(e.call);
        op->inner.supports_fn = reinterpret_cast<Status (*)(void*, const P&) noexcept>(e.supports);
        op->inner.scratch_fn = reinterpret_cast<int64_t (*)(void*, const P&) noexcept>(e.scratch);
        entries_.push_back(make_op<P>(
            op.get(),
            [](void* self, const P& p, Stream& stream) noexcept -> Status {
                auto* o = static_cast<Op<P>*>(self);
                if (!o->tap->wants()) {
                    return o->inner(p, stream);
                }
                return o->tap->take(
                    {P::kOp.name, 0, &stream, [o, p, &stream] { return o->inner(p, stream); }});
            },
            traits_of(e),
            [](void* self, const P& p) noexcept {
                return static_cast<Op<P>*>(self)->inner.scratch(p);
            },
            [](void* self, const P& p) noexcept {
                return static_cast<Op<P>*>(self)->inner.supports(p);
            }));
        kept_.push_back(std::move(op));
        return true;
    }
    OpTraits traits_of(const OpEntry& e) const {
        OpTraits traits = e.traits;
        traits.graph_safe = traits.graph_safe || capturable_;
        return traits;
    }
    /// Ops of a plugin's own name space have unknown parameters and pass without a tap.
    template <class... P>
    void add(const OpEntry& e, OpList<P...>) {
        if (!(add_one<P>(e) || ...)) {
            entries_.push_back(e);
            ++untapped_;
        }
    }

    OpTable& inner_;
    CallTap& tap_;
    bool capturable_;
    std::vector<std::unique_ptr<Kept>> kept_;
    std::vector<OpEntry> entries_;
    int64_t untapped_ = 0;
};

/// A format whose products pass a tap; groups too. Both outlive it and what it loads.
class TappedFormat final : public QuantFormat {
  public:
    TappedFormat(QuantFormat& inner, CallTap& tap) : inner_(inner), tap_(tap) {}
    void* query(StrView facet) noexcept override {
        return facet == StrView(QuantFormat::kFacet) ? static_cast<QuantFormat*>(this)
                                                     : inner_.query(facet);
    }
    void release() noexcept override {}
    Status inspect(WeightSource& source, StrView base, QuantInfo* out) noexcept override {
        return inner_.inspect(source, base, out);
    }
    Status plan_bytes(const WeightRequest& request, int64_t* out) noexcept override {
        return inner_.plan_bytes(request, out);
    }
    Status load(const WeightRequest& request, QuantWeight** out) noexcept override {
        Ref<QuantWeight> inner;
        TENON_TRY(inner_.load(request, inner.out()));
        *out = new Weight(tap_, role(request.base), std::move(inner));
        return {};
    }
    Status load_group(Span<const WeightRequest> requests, QuantGroup** out) noexcept override {
        Ref<QuantGroup> inner;
        TENON_TRY(inner_.load_group(requests, inner.out()));
        std::string name;
        for (const WeightRequest& r : requests) {
            name += (name.empty() ? "" : "+") + role(r.base);
        }
        *out = new Group(tap_, std::move(name), std::move(inner));
        return {};
    }
    Status load_experts(const ExpertsRequest& request, QuantExperts** out) noexcept override {
        Ref<QuantExperts> inner;
        TENON_TRY(inner_.load_experts(request, inner.out()));
        *out = new Experts(tap_, role(request.prefix), request, std::move(inner));
        return {};
    }

  private:
    /// "layers.3.attn.wq_a" -> "attn.wq_a"
    static std::string role(StrView base) {
        std::string_view name = base;
        const size_t digit = name.find_first_of("0123456789");
        const size_t dot = digit == std::string_view::npos ? digit : name.find('.', digit);
        return std::string(dot == std::string_view::npos ? name : name.substr(dot + 1));
    }

    class Weight final : public Implements<Weight, QuantWeight> {
      public:
        Weight(CallTap& tap, std::string name, Ref<QuantWeight> inner)
            : tap_(tap), name_(std::move(name)), inner_(std::move(inner)) {}
        void* query(StrView facet) noexcept override {
            void* own = Implements<Weight, QuantWeight>::query(facet);
            return own != nullptr ? own : inner_->query(facet);
        }
        QuantInfo info() noexcept override { return inner_->info(); }
        int64_t device_bytes() noexcept override { return inner_->device_bytes(); }
        int64_t scratch_bytes(int64_t rows, Regime regime, DType y) noexcept override {
            return inner_->scratch_bytes(rows, regime, y);
        }
        Status linear(const LinearArgs& args, Stream& stream) noexcept override {
            if (!tap_.wants()) {
                return inner_->linear(args, stream);
            }
            return tap_.take({name_, inner_->device_bytes(), &stream,
                              [this, args, &stream] { return inner_->linear(args, stream); }});
        }

      private:
        CallTap& tap_;
        std::string name_;
        Ref<QuantWeight> inner_;
    };
    class Group final : public Implements<Group, QuantGroup> {
      public:
        Group(CallTap& tap, std::string name, Ref<QuantGroup> inner)
            : tap_(tap), name_(std::move(name)), inner_(std::move(inner)) {}
        int64_t device_bytes() noexcept override { return inner_->device_bytes(); }
        int64_t scratch_bytes(int64_t rows, Regime regime) noexcept override {
            return inner_->scratch_bytes(rows, regime);
        }
        Status linear(const TensorView& x, Span<const TensorView> ys, Regime regime,
                      const TensorView& scratch, Stream& stream) noexcept override {
            if (!tap_.wants()) {
                return inner_->linear(x, ys, regime, scratch, stream);
            }
            const std::vector<TensorView> kept(ys.begin(), ys.end());
            return tap_.take(
                {name_, inner_->device_bytes(), &stream, [this, x, kept, regime, scratch, &stream] {
                     return inner_->linear(x, kept, regime, scratch, stream);
                 }});
        }

      private:
        CallTap& tap_;
        std::string name_;
        Ref<QuantGroup> inner_;
    };
    class Experts final : public Implements<Experts, QuantExperts> {
      public:
        Experts(CallTap& tap, std::string name, const ExpertsRequest& request,
                Ref<QuantExperts> inner)
            : tap_(tap),
              name_(std::move(name)),
              experts_(request.experts),
              shared_(request.shared_prefix.empty() ? 0 : 1),
              inner_(std::move(inner)) {}
        int64_t device_bytes() noexcept override { return inner_->device_bytes(); }
        int64_t scratch_bytes(int64_t rows, int32_t k, Regime regime) noexcept override {
            return inner_->scratch_bytes(rows, k, regime);
        }
        Status run(const ExpertsArgs& args, Stream& stream) noexcept override {
            if (!tap_.wants()) {
                return inner_->run(args, stream);
            }
            return tap_.take({name_, bytes_of(args.ids), &stream,
                              [this, args, &stream] { return inner_->run(args, stream); }});
        }
        void keep_f32(bool on) noexcept override { inner_->keep_f32(on); }

      private:
        int64_t bytes_of(const TensorView& ids) {
            const double one = static_cast<double>(inner_->device_bytes()) /
                               static_cast<double>(experts_ + shared_);
            const double chosen = static_cast<double>(ids.shape[1]) / experts_;
            const double distinct =
                experts_ * (1 - std::pow(1 - chosen, static_cast<double>(ids.shape[0])));
            return static_cast<int64_t>(one * (distinct + shared_));
        }
        CallTap& tap_;
        std::string name_;
        int32_t experts_, shared_;
        Ref<QuantExperts> inner_;
    };

    QuantFormat& inner_;
    CallTap& tap_;
};

}  // namespace tenon
