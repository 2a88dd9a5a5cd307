// SPDX-License-Identifier: MIT
// Graphs on a device without them: between begin and end, calls of ops, products and copies are
// kept with the parameters that they had, instead of being run; a graph runs them again. As with
// real graphs, whatever the caller does not read from memory at replay is what it was at capture.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "model/all_ops.h"
#include "tenon/quant.h"

namespace tenon::testing {

class CaptureDevice final : public Device, public GraphCapture {
  public:
    explicit CaptureDevice(Device& inner) : inner_(inner) {}

    int64_t eager_calls() const { return eager_; }  ///< ops and products run outside graphs
    int64_t captured() const { return captured_; }
    int64_t launched() const { return launched_; }
    /// `end` of the n-th capture fails, from 0.
    void fail_capture(int64_t n) { failing_ = n; }

    /// Runs `work` now, or keeps it for the graph that is being captured.
    Status run_or_keep(std::function<Status()> work) {
        if (recording_) {
            tape_.push_back(std::move(work));
            return {};
        }
        ++eager_;
        return work();
    }

    void* query(StrView facet) noexcept override {
        if (facet == StrView(Device::kFacet)) {
            return static_cast<Device*>(this);
        }
        return facet == StrView(GraphCapture::kFacet) ? static_cast<GraphCapture*>(this)
                                                      : inner_.query(facet);
    }
    void release() noexcept override {}
    DeviceInfo info() noexcept override { return inner_.info(); }
    Status allocate(const BufferDesc& desc, Buffer** out) noexcept override {
        return recording_ ? Status(Code::internal, "allocation during capture")
                          : inner_.allocate(desc, out);
    }
    Status create_stream(const StreamDesc& desc, Stream** out) noexcept override {
        return inner_.create_stream(desc, out);
    }
    Status create_event(Event** out) noexcept override { return inner_.create_event(out); }
    Status copy(const TensorView& dst, const TensorView& src, Stream& stream) noexcept override {
        if (!recording_) {
            return inner_.copy(dst, src, stream);
        }
        tape_.emplace_back([this, dst, src, &stream] { return inner_.copy(dst, src, stream); });
        return {};
    }
    Status fill_zero(const TensorView& dst, Stream& stream) noexcept override {
        if (!recording_) {
            return inner_.fill_zero(dst, stream);
        }
        tape_.emplace_back([this, dst, &stream] { return inner_.fill_zero(dst, stream); });
        return {};
    }
    Status record(Event& event, Stream& stream) noexcept override {
        return recording_ ? Status(Code::internal, "event during capture")
                          : inner_.record(event, stream);
    }
    Status wait(Stream& stream, Event& event) noexcept override {
        return inner_.wait(stream, event);
    }
    Status synchronize(Stream& stream) noexcept override {
        return recording_ ? Status(Code::internal, "synchronisation during capture")
                          : inner_.synchronize(stream);
    }
    uint64_t fault_count() noexcept override { return inner_.fault_count(); }

    Status begin(Stream&) noexcept override {
        recording_ = true;
        tape_.clear();
        return {};
    }
    Status end(Stream&, Graph** out) noexcept override {
        recording_ = false;
        if (captured_ == failing_) {
            return Status(Code::internal, "capture fails, as the test wants it to");
        }
        ++captured_;
        *out = new Tape(*this, std::move(tape_));
        return {};
    }

  private:
    using Work = std::vector<std::function<Status()>>;
    class Tape final : public Implements<Tape, GraphCapture::Graph> {
      public:
        Tape(CaptureDevice& device, Work work) : device_(device), work_(std::move(work)) {}
        Status launch(Stream&) noexcept override {
            ++device_.launched_;
            for (const auto& step : work_) {
                TENON_TRY(step());
            }
            return {};
        }

      private:
        CaptureDevice& device_;
        Work work_;
    };

    Device& inner_;
    Work tape_;
    bool recording_ = false;
    int64_t eager_ = 0, captured_ = 0, launched_ = 0, failing_ = -1;
};

/// The ops of a table, capturable.
class CaptureOps final : public OpTable {
  public:
    CaptureOps(CaptureDevice& device, OpTable& inner) : inner_(inner) {
        for (const OpEntry& e : inner.ops()) {
            add(device, e, AllOps());
        }
    }
    void* query(StrView facet) noexcept override {
        return facet == StrView(OpTable::kFacet) ? static_cast<OpTable*>(this) : nullptr;
    }
    void release() noexcept override {}
    Span<const OpEntry> ops() noexcept override { return entries_; }
    StrView provider() noexcept override { return inner_.provider(); }

  private:
    struct Kept {
        virtual ~Kept() = default;
    };
    template <class P>
    struct Op final : Kept {
        CaptureDevice* device = nullptr;
        OpFn<P> inner;
    };
    template <class P>
    bool add_one(CaptureDevice& device, const OpEntry& e) {
        if (std::string_view(e.id.name) != P::kOp.name || e.id.version != P::kOp.version) {
            return false;
        }
        auto op = std::make_unique<Op<P>>();
        op->device = &device;
        op->inner.self = e.self;
        op->inner.fn = reinterpret_cast<Status (*)(void*, const P&, Stream&) noexcept>(e.call);
        op->inner.supports_fn = reinterpret_cast<Status (*)(void*, const P&) noexcept>(e.supports);
        op->inner.scratch_fn = reinterpret_cast<int64_t (*)(void*, const P&) noexcept>(e.scratch);
        entries_.push_back(make_op<P>(
            op.get(),
            [](void* self, const P& p, Stream& stream) noexcept {
                auto* o = static_cast<Op<P>*>(self);
                return o->device->run_or_keep([o, p, &stream] { return o->inner(p, stream); });
            },
            e.traits,
            [](void* self, const P& p) noexcept {
                return static_cast<Op<P>*>(self)->inner.scratch(p);
            },
            [](void* self, const P& p) noexcept {
                return static_cast<Op<P>*>(self)->inner.supports(p);
            }));
        kept_.push_back(std::move(op));
        return true;
    }
    template <class... P>
    void add(CaptureDevice& device, const OpEntry& e, OpList<P...>) {
        const bool known = (add_one<P>(device, e) || ...);
        static_cast<void>(known);  // what the model does not call is left out
    }

    OpTable& inner_;
    std::vector<std::unique_ptr<Kept>> kept_;
    std::vector<OpEntry> entries_;
};

/// A format whose products are capturable.
class CaptureFormat final : public QuantFormat {
  public:
    CaptureFormat(CaptureDevice& device, QuantFormat& inner) : device_(device), inner_(inner) {}
    void* query(StrView facet) noexcept override {
        return facet == StrView(QuantFormat::kFacet) ? static_cast<QuantFormat*>(this) : nullptr;
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
        *out = new Weight(device_, std::move(inner));
        return {};
    }
    Status load_group(Span<const WeightRequest>, QuantGroup**) noexcept override {
        return Status(Code::unsupported, "members are loaded one by one");
    }
    Status load_experts(const ExpertsRequest& request, QuantExperts** out) noexcept override {
        Ref<QuantExperts> inner;
        TENON_TRY(inner_.load_experts(request, inner.out()));
        *out = new Experts(device_, std::move(inner));
        return {};
    }

  private:
    class Weight final : public Implements<Weight, QuantWeight> {
      public:
        Weight(CaptureDevice& device, Ref<QuantWeight> inner)
            : device_(device), inner_(std::move(inner)) {}
        QuantInfo info() noexcept override { return inner_->info(); }
        int64_t device_bytes() noexcept override { return inner_->device_bytes(); }
        int64_t scratch_bytes(int64_t rows, Regime regime, DType y) noexcept override {
            return inner_->scratch_bytes(rows, regime, y);
        }
        Status linear(const LinearArgs& args, Stream& stream) noexcept override {
            return device_.run_or_keep(
                [this, args, &stream] { return inner_->linear(args, stream); });
        }

      private:
        CaptureDevice& device_;
        Ref<QuantWeight> inner_;
    };
    class Experts final : public Implements<Experts, QuantExperts> {
      public:
        Experts(CaptureDevice& device, Ref<QuantExperts> inner)
            : device_(device), inner_(std::move(inner)) {}
        int64_t device_bytes() noexcept override { return inner_->device_bytes(); }
        int64_t scratch_bytes(int64_t rows, int32_t k, Regime regime) noexcept override {
            return inner_->scratch_bytes(rows, k, regime);
        }
        Status run(const ExpertsArgs& args, Stream& stream) noexcept override {
            return device_.run_or_keep([this, args, &stream] { return inner_->run(args, stream); });
        }
        void keep_f32(bool on) noexcept override { inner_->keep_f32(on); }

      private:
        CaptureDevice& device_;
        Ref<QuantExperts> inner_;
    };

    CaptureDevice& device_;
    QuantFormat& inner_;
};

}  // namespace tenon::testing
