// SPDX-License-Identifier: MIT
// Buffers on their way between loads.
#include "load_device.h"

#include <cstring>

#include "plugins/quant_common/weight_pipe.h"
#include "tenon/plugin.h"

namespace tenon::dsv41 {

class LoadDevice::Lent final : public Implements<Lent, Buffer> {
  public:
    Lent(LoadDevice& from, Kept kept, int64_t bytes)
        : from_(from), kept_(std::move(kept)), bytes_(bytes) {}
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    ~Lent() {
        if (!from_.finished_) {
            from_.kept_.push_back(std::move(kept_));
        }
    }
    void* data() noexcept override { return kept_.buffer->data(); }
    int64_t bytes() noexcept override { return bytes_; }
    Place place() noexcept override { return kept_.buffer->place(); }

  private:
    LoadDevice& from_;
    Kept kept_;
    int64_t bytes_;
};

int64_t LoadDevice::finish() {
    int64_t bytes = 0;
    for (const Kept& k : kept_) {
        bytes += k.buffer->bytes();
    }
    kept_.clear();
    stream_.reset();
    finished_ = true;
    return bytes;
}

// A new buffer is filled with zeros, so a kept one is too; but for the ring, where that would take
// up to a third of the time in which it is filled from memory.
Status LoadDevice::clear(const Kept& kept, int64_t bytes) {
    Buffer& buffer = *kept.buffer;
    if (kept.tag == quant::kRingTag) {
        return {};
    }
    if (buffer.place() != Place::device) {
        std::memset(buffer.data(), 0, static_cast<size_t>(bytes));
        return {};
    }
    if (!stream_) {
        TENON_TRY(inner_.create_stream({.name = "clear"}, stream_.out()));
    }
    TENON_TRY(
        inner_.fill_zero(make_view(buffer.data(), DType::u8, {bytes}, Place::device), *stream_));
    return inner_.synchronize(*stream_);
}

Status LoadDevice::allocate(const BufferDesc& desc, Buffer** out) noexcept {
    return guard([&]() -> Status {
        Kept mine{desc.kind, desc.tag.str(), {}};
        for (size_t i = 0; i < kept_.size() && !mine.buffer; ++i) {
            if (kept_[i].kind != desc.kind || kept_[i].tag != mine.tag) {
                continue;
            }
            Kept kept = std::move(kept_[i]);
            kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i--));  // used, or too small
            const auto at = reinterpret_cast<uintptr_t>(kept.buffer->data());
            if (kept.buffer->bytes() >= desc.bytes &&
                at % static_cast<uintptr_t>(desc.alignment) == 0) {
                TENON_TRY(clear(kept, desc.bytes));
                mine.buffer = std::move(kept.buffer);
            }
        }
        if (!mine.buffer) {
            TENON_TRY(inner_.allocate(desc, mine.buffer.out()));
        }
        *out = new Lent(*this, std::move(mine), desc.bytes);
        return {};
    });
}

}  // namespace tenon::dsv41
