// SPDX-License-Identifier: MIT
// Graphs on a device without them: between begin and end, calls of ops, products and copies are
// kept with the parameters that they had, instead of being run; a graph runs them again. As with
// real graphs, whatever the caller does not read from memory at replay is what it was at capture.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "tenon/tap.h"

namespace tenon::testing {

class CaptureDevice final : public Device, public GraphCapture, public CallTap {
  public:
    explicit CaptureDevice(Device& inner) : inner_(inner) {}

    int64_t eager_calls() const { return eager_; }  ///< ops and products run outside graphs
    int64_t captured() const { return captured_; }
    int64_t captured_calls() const { return kept_; }
    int64_t launched() const { return launched_; }
    /// `end` of the n-th capture fails, from 0.
    void fail_capture(int64_t n) { failing_ = n; }
    /// The n-th call that a capture keeps fails, from 0.
    void fail_call(int64_t n) { failing_call_ = n; }
    /// What the device says is left of its memory.
    void set_free(int64_t bytes) { free_ = bytes; }

    bool wants() noexcept override {
        eager_ += recording_ ? 0 : 1;
        return recording_;
    }
    Status take(TappedCall call) noexcept override {
        if (kept_++ == failing_call_) {
            return Status(Code::device, "a call fails, as the test wants it to");
        }
        tape_.push_back(std::move(call.run));
        return {};
    }

    void* query(StrView facet) noexcept override {
        if (facet == StrView(Device::kFacet)) {
            return static_cast<Device*>(this);
        }
        return facet == StrView(GraphCapture::kFacet) ? static_cast<GraphCapture*>(this)
                                                      : inner_.query(facet);
    }
    void release() noexcept override {}
    DeviceInfo info() noexcept override {
        DeviceInfo info = inner_.info();
        info.bytes_free = free_ >= 0 ? free_ : info.bytes_free;
        return info;
    }
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
        return recording_ ? Status(Code::internal, "wait for an event during capture")
                          : inner_.wait(stream, event);
    }
    Status synchronize(Stream& stream) noexcept override {
        return recording_ ? Status(Code::internal, "synchronisation during capture")
                          : inner_.synchronize(stream);
    }
    uint64_t fault_count() noexcept override { return inner_.fault_count(); }

    Status begin(Stream&) noexcept override {
        if (recording_) {
            return Status(Code::internal, "capture within a capture");
        }
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
    int64_t kept_ = 0, failing_call_ = -1, free_ = -1;
};

}  // namespace tenon::testing
