// SPDX-License-Identifier: MIT
// A device that passes everything on, adds up what is allocated, by tag, and can spoil it.
#pragma once

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tenon/compute.h"

namespace tenon::testing {

class CountingDevice final : public Device {
  public:
    explicit CountingDevice(Device& inner) : inner_(inner) {}
    const std::map<std::string, int64_t>& bytes() const { return bytes_; }

    void* query(StrView facet) noexcept override {
        return facet == StrView(Device::kFacet) ? static_cast<Device*>(this) : inner_.query(facet);
    }
    void release() noexcept override {}
    DeviceInfo info() noexcept override { return inner_.info(); }
    Status allocate(const BufferDesc& desc, Buffer** out) noexcept override {
        bytes_[desc.tag.str()] += desc.bytes;
        TENON_TRY(inner_.allocate(desc, out));
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
    Device& inner_;
    std::map<std::string, int64_t> bytes_;
    std::vector<std::pair<std::string, Buffer*>> buffers_;  // owned by who allocated them
};

}  // namespace tenon::testing
