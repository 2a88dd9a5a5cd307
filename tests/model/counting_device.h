// SPDX-License-Identifier: MIT
// A device that passes everything on and adds up what is allocated, by tag.
#pragma once

#include <map>

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
        return inner_.allocate(desc, out);
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
};

}  // namespace tenon::testing
