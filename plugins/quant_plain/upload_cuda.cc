// SPDX-License-Identifier: MIT
// Upload of ordinary matrices through a pipe: rows straight to their place, padded with zeros;
// scales of FP8, one per 32 x 32 elements, through a staging buffer and a kernel that gives each
// row its own.
#include "upload_cuda.h"

#include <algorithm>

#include "plugins/quant_common/upload.h"

namespace tenon::plain {

namespace {

using quant::gpu_aligned;

int64_t codes_bytes(const Part& part) {
    return part.out * row_bytes(part.tensors->encoding, cuda::padded(part.in));
}
int64_t padded_columns(const Part& part) {
    return cuda::padded(part.in) / kScaleGroup;
}
bool is_expanded(const Part& part) {
    return part.tensors->encoding == Encoding::fp8;
}

quant::PipeJob codes_of(const Part& part, const cuda::Weight& w) {
    const Tensors& t = *part.tensors;
    quant::PipeJob job;
    job.source = t.source;
    job.tensor = t.base + ".weight";
    job.pitch = row_bytes(t.encoding, t.in);
    job.offset = part.o0 * job.pitch + row_bytes(t.encoding, part.i0);
    job.rows = part.out;
    job.row_bytes = row_bytes(t.encoding, part.in);
    job.to = const_cast<uint8_t*>(w.codes);
    job.to_pitch = w.row_bytes;
    job.check = [&part](const uint8_t* bytes, int64_t count, int64_t at) {
        return check_codes(part, bytes, count, at);
    };
    return job;
}

/// To the staging buffer if they are to be expanded.
quant::PipeJob scales_of(const Part& part, const cuda::Weight& w, void* staging) {
    const Tensors& t = *part.tensors;
    quant::PipeJob job;
    job.source = t.source;
    job.tensor = t.base + ".scale";
    job.pitch = t.scale_columns;
    job.offset = first_scale_row(part) * job.pitch + part.i0 / kScaleGroup;
    job.rows = scale_rows(part);
    job.row_bytes = scale_columns(part);
    job.to = is_expanded(part) ? staging : const_cast<uint8_t*>(w.scales);
    job.to_pitch = is_expanded(part) ? 0 : padded_columns(part);
    job.check = [&part](const uint8_t* bytes, int64_t count, int64_t at) {
        return check_scales(part, bytes, count, at);
    };
    return job;
}

Status plan(const Part& part, quant::Upload& upload, uint8_t* at, cuda::Weight* w) {
    const Encoding encoding = part.tensors->encoding;
    w->codes = at;
    w->row_bytes = row_bytes(encoding, cuda::padded(part.in));
    w->out = static_cast<int32_t>(part.out);
    w->in = static_cast<int32_t>(part.in);
    w->stored = static_cast<cuda::Stored>(encoding);
    w->quantise = part.quantise_input ? 1 : 0;
    if (has_scales(encoding)) {
        w->scales = at + gpu_aligned(codes_bytes(part));
        TENON_TRY(upload.pipe().add(scales_of(part, *w, upload.staging())));
    }
    return upload.pipe().add(codes_of(part, *w));
}

Status load(const Part& part, quant::Upload& upload, const cuda::Weight& w) {
    if (has_scales(part.tensors->encoding)) {
        TENON_TRY(upload.pipe().next());
    }
    if (is_expanded(part)) {
        // The stream orders this kernel before the next copy into the staging buffer.
        TENON_TRY(quant::gpu_status(
            cuda::expand_scales(static_cast<const uint8_t*>(upload.staging()), scale_columns(part),
                                part.o0 % kScaleGroup, w,
                                static_cast<cudaStream_t>(upload.stream().native())),
            part.tensors->base));
    }
    return upload.pipe().next();
}

Status upload_all(const std::vector<const Part*>& parts, quant::Upload& upload,
                  std::vector<cuda::Weight>* weights) {
    uint8_t* at = upload.weights();
    for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i] != nullptr) {
            TENON_TRY(plan(*parts[i], upload, at, &(*weights)[i]));
            at += gpu_bytes(*parts[i]);
        }
    }
    TENON_TRY(upload.pipe().start());
    for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i] != nullptr) {
            TENON_TRY(load(*parts[i], upload, (*weights)[i]));
        }
    }
    return {};
}

}  // namespace

int64_t gpu_bytes(const Part& part) {
    return gpu_aligned(codes_bytes(part)) +
           (has_scales(part.tensors->encoding) ? gpu_aligned(part.out * padded_columns(part)) : 0);
}

Status GpuParts::load(Device& device, const std::string& name,
                      const std::vector<const Part*>& parts, GpuParts* out) {
    TENON_TRY(quant::use_gpu(device.info().index));
    GpuParts loaded;
    int64_t staging = 0;
    for (const Part* p : parts) {
        if (p != nullptr) {
            loaded.bytes_ += gpu_bytes(*p);
            staging = std::max(staging, is_expanded(*p) ? scale_rows(*p) * scale_columns(*p) : 0);
        }
    }
    loaded.weights_.resize(parts.size());
    if (loaded.bytes_ > 0) {
        quant::Upload upload;
        TENON_TRY(upload.open(device, name, loaded.bytes_, staging));
        TENON_TRY(upload.close(upload_all(parts, upload, &loaded.weights_), &loaded.buffer_));
    }
    *out = std::move(loaded);
    return {};
}

}  // namespace tenon::plain
