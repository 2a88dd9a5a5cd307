// SPDX-License-Identifier: MIT
// Upload of ordinary matrices: rows padded with zeros, scales one row an output.
#include "upload_cuda.h"

namespace tenon::plain {

namespace {

using quant::gpu_aligned;

int64_t codes_bytes(const Part& part) {
    return part.out * row_bytes(part.tensors->encoding, cuda::padded(part.in));
}
int64_t scale_columns(const Part& part) {
    return cuda::padded(part.in) / kScaleGroup;
}

Status upload(const Part& part, Device& device, Stream& stream, uint8_t* at, cuda::Weight* out) {
    const Tensors& t = *part.tensors;
    cuda::Weight w;
    w.codes = at;
    w.row_bytes = row_bytes(t.encoding, cuda::padded(part.in));
    w.out = static_cast<int32_t>(part.out);
    w.in = static_cast<int32_t>(part.in);
    w.stored = static_cast<cuda::Stored>(t.encoding);
    w.quantise = part.quantise_input ? 1 : 0;
    const int64_t bytes = row_bytes(t.encoding, part.in);
    TensorView to = make_view(at, DType::u8, {part.out, bytes}, Place::device);
    to.stride[0] = w.row_bytes;
    TensorView from =
        make_view(t.row(part.o0) + row_bytes(t.encoding, part.i0), DType::u8, {part.out, bytes});
    from.stride[0] = row_bytes(t.encoding, t.in);
    TENON_TRY(device.copy(to, from, stream));
    std::vector<uint8_t> scales;
    if (has_scales(t.encoding)) {
        const int64_t columns = scale_columns(part);
        scales.resize(static_cast<size_t>(part.out * columns), 0);
        for (int64_t o = 0; o < part.out; ++o) {
            for (int64_t i = 0; i < part.in; i += kScaleGroup) {
                scales[static_cast<size_t>(o * columns + i / kScaleGroup)] =
                    t.scale_code(part.o0 + o, part.i0 + i);
            }
        }
        at += gpu_aligned(codes_bytes(part));
        w.scales = at;
        const auto count = static_cast<int64_t>(scales.size());
        TENON_TRY(device.copy(make_view(at, DType::u8, {count}, Place::device),
                              make_view(scales.data(), DType::u8, {count}), stream));
    }
    *out = w;
    return device.synchronize(stream);
}

}  // namespace

int64_t gpu_bytes(const Part& part) {
    return gpu_aligned(codes_bytes(part)) +
           (has_scales(part.tensors->encoding) ? gpu_aligned(part.out * scale_columns(part)) : 0);
}

Status GpuParts::load(Device& device, const std::string& name,
                      const std::vector<const Part*>& parts, GpuParts* out) {
    TENON_TRY(quant::use_gpu(device.info().index));
    GpuParts loaded;
    for (const Part* p : parts) {
        loaded.bytes_ += p == nullptr ? 0 : gpu_bytes(*p);
    }
    loaded.weights_.resize(parts.size());
    if (loaded.bytes_ > 0) {
        Ref<Stream> stream;
        TENON_TRY(device.create_stream({.name = "plain load"}, stream.out()));
        TENON_TRY_CTX(
            device.allocate({.bytes = loaded.bytes_, .tag = "weights"}, loaded.buffer_.out()), "{}",
            name);
        auto* at = static_cast<uint8_t*>(loaded.buffer_->data());
        for (size_t i = 0; i < parts.size(); ++i) {
            if (parts[i] != nullptr) {
                TENON_TRY_CTX(upload(*parts[i], device, *stream, at, &loaded.weights_[i]), "{}",
                              name);
                at += gpu_bytes(*parts[i]);
            }
        }
    }
    *out = std::move(loaded);
    return {};
}

}  // namespace tenon::plain
