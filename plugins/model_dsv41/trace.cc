// SPDX-License-Identifier: MIT
// Copies of logits, layer outputs and state to the host.
#include "trace.h"

#include <algorithm>

#include "tenon/numeric.h"

namespace tenon::dsv41 {

Status LogitsFacet::add(const TensorView& logits, int64_t rows) {
    const size_t at = values_.size();
    values_.resize(at + static_cast<size_t>(rows * vocab_));
    const TensorView host = make_view(values_.data() + at, DType::f32, {rows, vocab_});
    TENON_TRY(device_->copy(host, logits.rows(0, rows), *stream_));
    return device_->synchronize(*stream_);
}

Status LogitsFacet::rows(uint64_t step, TensorView* out) noexcept {
    if (step != step_ || !wanted_) {
        return error(Code::not_found,
                     "no logits of step {}: ask with want(true) before it is submitted", step);
    }
    const auto n = static_cast<int64_t>(values_.size()) / std::max<int64_t>(vocab_, 1);
    *out = make_view(values_.data(), DType::f32, {n, vocab_});
    return {};
}

void TraceFacet::copy_in(const std::string& name, const TensorView& host) {
    Kept& k = kept_[name];
    k.bytes.assign(host.as<uint8_t>(), host.as<uint8_t>() + host.bytes());
    k.view = host;
    k.view.data = k.bytes.data();
    k.view.place = Place::host;
}

void TraceFacet::keep(const std::string& name, const TensorView& value) {
    TensorView host = value;
    std::vector<uint8_t> bytes(static_cast<size_t>(value.bytes()));
    host.data = bytes.data();
    host.place = Place::host;
    int64_t stride = 1;
    for (int i = host.rank - 1; i >= 0; --i) {
        host.stride[i] = stride;
        stride *= host.shape[i];
    }
    if (!p_.device->copy(host, value, *p_.stream).ok() ||
        !p_.device->synchronize(*p_.stream).ok()) {
        return;
    }
    const bool is_output = name.size() > 4 && name.compare(name.size() - 4, 4, "_out") == 0;
    if (is_output && host.dtype == DType::f32) {
        // Site outputs count as bf16: that is how they enter the streams.
        std::vector<uint16_t> rounded(static_cast<size_t>(host.elements()));
        const auto* from = host.as<float>();
        std::transform(from, from + host.elements(), rounded.begin(),
                       [](float v) { return f32_to_bf16(v); });
        host.dtype = DType::bf16;
        host.data = rounded.data();
        copy_in(name, host);
        return;
    }
    copy_in(name, host);
}

Status TraceFacet::dequantize(const TensorView& codes, const TensorView& scales, RowFormat format,
                              int64_t width, std::vector<uint16_t>* out) {
    const int64_t rows = codes.shape[0];
    out->resize(static_cast<size_t>(rows * width));
    const TensorView host = make_view(out->data(), DType::bf16, {rows, width});
    if (format == RowFormat::bf16) {
        TENON_TRY(p_.device->copy(host, codes, *p_.stream));
        return p_.device->synchronize(*p_.stream);
    }
    Ref<Buffer> buffer;
    BufferDesc desc;
    desc.bytes = std::max<int64_t>(host.bytes(), 256);
    TENON_TRY(p_.device->allocate(desc, buffer.out()));
    const TensorView values =
        make_view(buffer->data(), DType::bf16, {rows, width}, buffer->place());
    TENON_TRY(p_.ops->kvq_dequantize(KvqDequantize{codes, scales, format, values}, *p_.stream));
    TENON_TRY(p_.device->copy(host, values, *p_.stream));
    return p_.device->synchronize(*p_.stream);
}

/// The newest rows, oldest first: a window of them, since rejected rows may lie where older ones
/// were.
Status TraceFacet::read_ring(const Ring& ring, uint32_t slot, int64_t length, Kept* out) {
    const auto slot_rows = [&](const TensorView& v) {
        return v.null() ? v
                        : make_view(v.as<char>() + slot * v.stride[0] * dtype_bytes(v.dtype),
                                    v.dtype, {v.shape[1], v.shape[2]}, v.place);
    };
    std::vector<uint16_t> all;
    TENON_TRY(
        dequantize(slot_rows(ring.codes), slot_rows(ring.scales), ring.format, ring.width, &all));
    const int64_t n = std::min<int64_t>(length, p_.config->window);
    out->bytes.resize(static_cast<size_t>(n * ring.width) * 2);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t at = (length - n + i) % ring.R;
        std::memcpy(out->bytes.data() + i * ring.width * 2, all.data() + at * ring.width,
                    static_cast<size_t>(ring.width) * 2);
    }
    out->view = make_view(out->bytes.data(), DType::bf16, {n, int64_t{ring.width}});
    return {};
}

Status TraceFacet::read_pages(const Pages& pages, uint32_t slot, int64_t length, Kept* out) {
    const int64_t n = length / pages.ratio;
    const int64_t row = int64_t{pages.width} * 2;
    out->bytes.resize(static_cast<size_t>(n * row));
    for (int64_t first = 0; first < n; first += pages.rows_per_page) {
        const int64_t count = std::min<int64_t>(pages.rows_per_page, n - first);
        const int32_t page = p_.state->page_of(slot, first / pages.rows_per_page);
        if (page < 0) {
            return error(Code::not_found, "page {} of slot {} is not mapped",
                         first / pages.rows_per_page, slot);
        }
        auto* base = pages.pool.as<char>() + page * pages.pool.stride[0];
        const bool packed = pages.format != RowFormat::bf16;
        const TensorView codes = make_view(
            base + pages.codes_at, packed ? DType::u8 : DType::bf16,
            {count, packed ? code_bytes(pages.format, pages.width) : int64_t{pages.width}},
            pages.pool.place);
        const TensorView scales =
            packed ? make_view(base + pages.scales_at, DType::u8,
                               {count, scale_bytes(pages.format, pages.width)}, pages.pool.place)
                   : TensorView();
        std::vector<uint16_t> values;
        TENON_TRY(dequantize(codes, scales, pages.format, pages.width, &values));
        std::memcpy(out->bytes.data() + first * row, values.data(), values.size() * 2);
    }
    out->view = make_view(out->bytes.data(), DType::bf16, {n, int64_t{pages.width}});
    return {};
}

Status TraceFacet::read_state(const std::string& name, uint32_t slot, TensorView* out) {
    const int64_t length = length_(model_, slot);
    int layer = -1;
    char what[32] = {};
    const bool is_layer = std::sscanf(name.c_str(), "state.layers.%d.%31s", &layer, what) == 2;
    const bool is_stage =
        !is_layer && std::sscanf(name.c_str(), "state.mtp.%d.%31s", &layer, what) == 2;
    const ModelConfig& c = *p_.config;
    const std::string_view part = what;
    const auto at = static_cast<size_t>(layer);
    const bool owns = is_layer && layer >= 0 && layer < c.layers && c.layer[at].owns_kv;
    Kept& k = kept_[name];
    Status status = error(Code::not_found, "no state '{}' in slot {}", name, slot);
    if (length >= 0 && is_layer && layer >= 0 && layer < c.layers && part == "window_kv") {
        status = read_ring(p_.state->window_ring(layer), slot, length, &k);
    } else if (length >= 0 && is_stage && layer >= 0 && layer < c.draft.stages && part == "ring") {
        status = read_ring(p_.state->draft_ring(layer), slot, length, &k);
    } else if (length >= 0 && owns && part == "compressed_kv") {
        status = read_pages(p_.state->compressed(layer), slot, length, &k);
    } else if (length >= 0 && owns && part == "index_keys") {
        status = read_pages(p_.state->index_keys(layer), slot, length, &k);
    }
    TENON_TRY(std::move(status));
    *out = k.view;
    return {};
}

Status TraceFacet::get(StrView name, uint32_t slot, TensorView* out) noexcept {
    return guard([&]() -> Status {
        if (name.view().substr(0, 6) == "state.") {
            return read_state(name.str(), slot, out);
        }
        const auto found = kept_.find(name.str());
        if (found == kept_.end()) {
            return error(Code::not_found, "nothing named '{}' was kept in the last step", name);
        }
        *out = found->second.view;
        return {};
    });
}

}  // namespace tenon::dsv41
