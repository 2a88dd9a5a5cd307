// SPDX-License-Identifier: MIT
// A device that passes everything on, keeps the most bytes that were allocated at a time, by tag,
// and can spoil them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tenon/compute.h"
#include "tenon/plugin.h"

namespace tenon::testing {

class CountingDevice final : public Device {
  public:
    explicit CountingDevice(Device& inner) : inner_(inner) {}
    const std::map<std::string, int64_t>& bytes() const { return count_->most; }

    void* query(StrView facet) noexcept override {
        return facet == StrView(Device::kFacet) ? static_cast<Device*>(this) : inner_.query(facet);
    }
    void release() noexcept override {}
    DeviceInfo info() noexcept override { return inner_.info(); }
    Status allocate(const BufferDesc& desc, Buffer** out) noexcept override {
        Ref<Buffer> mine;
        TENON_TRY(inner_.allocate(desc, mine.out()));
        *out = new Counted(count_, std::move(mine), desc);
        if (desc.kind == BufferKind::device) {
            buffers_.emplace_back(desc.tag.str(), *out);
        }
        return {};
    }
    /// Every byte of these buffers becomes 0xff, which is NaN in each float format of the state.
    /// Only while they live and the device is at rest.
    void poison(const std::string& tag) {
        for (const auto& [name, buffer] : buffers_) {
            if (name == tag) {
                const std::string nan(static_cast<size_t>(buffer->bytes()), '\xff');
                const TensorView from = make_view(nan.data(), DType::u8, {buffer->bytes()});
                TensorView to = from;
                to.data = buffer->data();
                to.place = buffer->place();
                Ref<Stream> stream;
                if (!inner_.create_stream({}, stream.out()).ok() ||
                    !inner_.copy(to, from, *stream).ok() || !inner_.synchronize(*stream).ok()) {
                    std::abort();
                }
            }
        }
    }
    Status create_stream(const StreamDesc& desc, Stream** out) noexcept override {
        return inner_.create_stream(desc, out);
    }
    Status create_event(Event** out) noexcept override { return inner_.create_event(out); }
    Status copy(const TensorView& dst, const TensorView& src, Stream& stream) noexcept override {
        return inner_.copy(dst, src, stream);
    }
    Status fill_zero(const TensorView& dst, Stream& stream) noexcept override {
        return inner_.fill_zero(dst, stream);
    }
    Status record(Event& event, Stream& stream) noexcept override {
        return inner_.record(event, stream);
    }
    Status wait(Stream& stream, Event& event) noexcept override {
        return inner_.wait(stream, event);
    }
    Status synchronize(Stream& stream) noexcept override { return inner_.synchronize(stream); }
    uint64_t fault_count() noexcept override { return inner_.fault_count(); }

  private:
    struct Count {
        std::map<std::string, int64_t> live, most;
    };
    class Counted final : public Implements<Counted, Buffer> {
      public:
        Counted(std::shared_ptr<Count> count, Ref<Buffer> buffer, const BufferDesc& desc)
            : count_(std::move(count)),
              buffer_(std::move(buffer)),
              tag_(desc.tag.str()),
              bytes_(desc.bytes) {
            int64_t& live = count_->live[tag_] += bytes_;
            int64_t& most = count_->most[tag_];
            most = std::max(most, live);
        }
        Counted(const Counted&) = delete;
        Counted& operator=(const Counted&) = delete;
        ~Counted() { count_->live[tag_] -= bytes_; }
        void* data() noexcept override { return buffer_->data(); }
        int64_t bytes() noexcept override { return buffer_->bytes(); }
        Place place() noexcept override { return buffer_->place(); }

      private:
        std::shared_ptr<Count> count_;  // buffers may outlive the device
        Ref<Buffer> buffer_;
        std::string tag_;
        int64_t bytes_;
    };

    Device& inner_;
    std::shared_ptr<Count> count_ = std::make_shared<Count>();
    std::vector<std::pair<std::string, Buffer*>> buffers_;  // owned by who allocated them
};

}  // namespace tenon::testing
