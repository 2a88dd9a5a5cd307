// SPDX-License-Identifier: MIT
// The facets that show what a step computed: logits per row, and named layer outputs and state.
#pragma once

#include <map>

#include "forward.h"
#include "tenon/model.h"

namespace tenon::dsv41 {

/// Collects logits of a step on the host while switched on. Allocates: for `score` and tests.
class LogitsFacet final : public ModelLogits {
  public:
    void init(Device& device, Stream& stream, int64_t vocab) {
        device_ = &device;
        stream_ = &stream;
        vocab_ = vocab;
    }
    bool wanted() const { return wanted_; }
    void begin(uint64_t step) {
        step_ = step;
        values_.clear();
    }
    Status add(const TensorView& logits, int64_t rows);

    void* query(StrView facet) noexcept override {
        return facet == StrView(ModelLogits::kFacet) ? static_cast<ModelLogits*>(this) : nullptr;
    }
    void release() noexcept override {}  // part of the model
    void want(bool on) noexcept override { wanted_ = on; }
    Status rows(uint64_t step, TensorView* out) noexcept override;

  private:
    Device* device_ = nullptr;
    Stream* stream_ = nullptr;
    int64_t vocab_ = 0;
    bool wanted_ = false;
    uint64_t step_ = 0;
    std::vector<float> values_;
};

/// Host copies by name. Allocates: tests only.
class TraceFacet final : public ModelTrace, public Tracer {
  public:
    struct Parts {
        const ModelConfig* config = nullptr;
        const DeviceState* state = nullptr;
        const OpSet* ops = nullptr;
        Device* device = nullptr;
        Stream* stream = nullptr;
    };
    /// length of a slot, -1 if it is closed
    using Length = int64_t (*)(const void* model, uint32_t slot);

    void init(const Parts& parts, Length length, const void* model) {
        p_ = parts;
        length_ = length;
        model_ = model;
    }
    bool wanted() const { return wanted_; }
    void begin() { kept_.clear(); }
    void keep(const std::string& name, const TensorView& value) override;
    void keep_host(const std::string& name, const TensorView& host) { copy_in(name, host); }

    void* query(StrView facet) noexcept override {
        return facet == StrView(ModelTrace::kFacet) ? static_cast<ModelTrace*>(this) : nullptr;
    }
    void release() noexcept override {}  // part of the model
    void want(bool on) noexcept override { wanted_ = on; }
    Status get(StrView name, uint32_t slot, TensorView* out) noexcept override;

  private:
    struct Kept {
        std::vector<uint8_t> bytes;
        TensorView view;
    };
    void copy_in(const std::string& name, const TensorView& host);
    Status read_state(const std::string& name, uint32_t slot, TensorView* out);
    Status read_ring(const Ring& ring, uint32_t slot, int64_t length, Kept* out);
    Status read_pages(const Pages& pages, uint32_t slot, int64_t length, Kept* out);
    Status dequantize(const TensorView& codes, const TensorView& scales, RowFormat format,
                      int64_t width, std::vector<uint16_t>* out);

    Parts p_;
    Length length_ = nullptr;
    const void* model_ = nullptr;
    bool wanted_ = false;
    std::map<std::string, Kept> kept_;
};

}  // namespace tenon::dsv41
