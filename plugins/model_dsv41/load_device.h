// SPDX-License-Identifier: MIT
// A device as formats see it: what one matrix's load takes and gives back waits for the next one.
#pragma once

#include <string>
#include <vector>

#include "tenon/compute.h"

namespace tenon::dsv41 {

/// Passes everything on, but memory that comes back while the model loads is kept for the next
/// request of its kind and tag, so that a format's ring and staging are made once a model and not
/// once a matrix. A kept buffer is filled with zeros as a new one is, but for the pipe's ring.
/// Outlives all that was allocated through it. Thread: as Device.
class LoadDevice final : public Device {
  public:
    explicit LoadDevice(Device& inner) : inner_(inner) {}
    LoadDevice(const LoadDevice&) = delete;
    LoadDevice& operator=(const LoadDevice&) = delete;

    /// Ends the load: what waits goes now, what comes later at once. Returns the bytes that waited.
    int64_t finish();

    void* query(StrView facet) noexcept override {
        return facet == StrView(kFacet) ? static_cast<Device*>(this) : inner_.query(facet);
    }
    void release() noexcept override {}  // a member of its owner
    DeviceInfo info() noexcept override { return inner_.info(); }
    Status allocate(const BufferDesc& desc, Buffer** out) noexcept override;
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
    struct Kept {
        BufferKind kind = BufferKind::device;
        std::string tag;
        Ref<Buffer> buffer;
    };
    class Lent;
    Status clear(const Kept& kept, int64_t bytes);

    Device& inner_;
    std::vector<Kept> kept_;
    Ref<Stream> stream_;  ///< of `clear`, once it was needed
    bool finished_ = false;
};

}  // namespace tenon::dsv41
