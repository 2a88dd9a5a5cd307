// SPDX-License-Identifier: MIT
// Upload of EXL3 parts: raw tiles from the checkpoint's files through a pipe into a staging buffer,
// then a reordering kernel; scales straight to their place.
#include "upload_cuda.h"

#include <algorithm>
#include <list>

#include "kernels/cuda/exl3/smem.h"
#include "plugins/quant_common/upload.h"
#include "tenon/numeric.h"

namespace tenon::exl3 {

namespace {

using quant::gpu_aligned;

int64_t trellis_bytes(const Part& part) {
    return part.k / kTile * (part.n / kTile) * tile_words(part.tensors->twice_k) * 2;
}

cuda::Code code_of(Codebook codebook) {
    switch (codebook) {
        case Codebook::inst3:
            return cuda::Code::inst3;
        case Codebook::mcg:
            return cuda::Code::mcg;
        case Codebook::mul1:
            break;
    }
    return cuda::Code::mul1;
}

/// Channels of a part whose tiles wait in the staging buffer together for the kernel that orders
/// them; a large matrix goes through it in blocks.
int64_t block_of(const Part& part) {
    const int64_t unit = trellis_bytes(part) / (part.k / cuda::kUnit);
    return std::clamp<int64_t>(quant::kStagingBytes / unit, 1, part.k / cuda::kUnit) * cuda::kUnit;
}

/// Sums that thread blocks of a product share (kernels/cuda/exl3/params.h).
int64_t sums_bytes(const Part& part) {
    const bool exact = code_of(part.tensors->codebook) == cuda::Code::mul1 && !is_sliced(part);
    const auto blocks = static_cast<int>((part.out + cuda::kBlock - 1) / cuda::kBlock);
    return exact ? cuda::shared_sums_of(blocks) * cuda::fused_rows(part.k) * cuda::kBlock * 8 : 0;
}

int64_t staging_bytes(const Part& part) {
    return trellis_bytes(part) / part.k * block_of(part);
}

/// Tiles of channels [first, first + count) of a part, dense.
quant::PipeJob words_of(const Part& part, int64_t first, int64_t count, void* to) {
    const Tensors& t = *part.tensors;
    const int64_t tile = 2 * tile_words(t.twice_k);
    quant::PipeJob job;
    job.source = t.source;
    job.tensor = t.base + ".trellis";
    job.pitch = t.n / kTile * tile;
    job.offset = (part.k0 + first) / kTile * job.pitch + part.n0 / kTile * tile;
    job.rows = count / kTile;
    job.row_bytes = part.n / kTile * tile;
    job.to = to;
    return job;
}

/// Halves [first, first + count) of a tensor, as they are.
quant::PipeJob halves_of(const Tensors& t, const char* tensor, int64_t first, int64_t count,
                         void* to) {
    quant::PipeJob job;
    job.source = t.source;
    job.tensor = t.base + tensor;
    job.offset = 2 * first;
    job.row_bytes = 2 * count;
    job.to = to;
    job.check = [name = job.tensor, first](const uint8_t* bytes, int64_t length, int64_t at) {
        return check_halves(name, bytes, first + at / 2, length / 2);
    };
    return job;
}

/// Enqueues the loads of parts; until the stream has been waited for, this object must live.
class Uploader {
  public:
    Uploader(Device& device, quant::Upload& upload) : device_(device), upload_(upload) {}

    /// Before `load`, in the same order.
    Status plan(const Part& p, uint8_t* at, cuda::Weight* out) {
        const Tensors& t = *p.tensors;
        out->k = static_cast<int32_t>(p.k);
        out->n = static_cast<int32_t>(p.n);
        out->in = static_cast<int32_t>(p.in);
        out->out = static_cast<int32_t>(p.out);
        out->twice_k = t.twice_k;
        out->code = code_of(t.codebook);
        out->words = reinterpret_cast<const uint32_t*>(at);
        for (int64_t k = 0; k < p.k; k += block_of(p)) {
            TENON_TRY(upload_.pipe().add(
                words_of(p, k, std::min(block_of(p), p.k - k), upload_.staging())));
        }
        at += gpu_aligned(trellis_bytes(p));
        out->suh = reinterpret_cast<const uint16_t*>(at);
        if (!t.suh_signs) {
            TENON_TRY(upload_.pipe().add(halves_of(t, ".suh", p.k0, p.k, at)));
        }
        at += gpu_aligned(2 * p.k);
        out->svh = reinterpret_cast<const uint16_t*>(at);
        if (!t.svh_signs) {
            TENON_TRY(upload_.pipe().add(halves_of(t, ".svh", p.n0, p.n, at)));
        }
        at += gpu_aligned(2 * p.n);
        if (p.with_bias) {
            out->bias = reinterpret_cast<const float*>(at);
            at += gpu_aligned(4 * p.n);
        }
        if (sums_bytes(p) > 0) {  // a buffer is made of zeros
            out->sums = reinterpret_cast<uint64_t*>(at);
        }
        return {};
    }

    /// The next of the parts.
    Status load(const Part& p, const cuda::Weight& w) {
        const Tensors& t = *p.tensors;
        for (int64_t k = 0; k < p.k; k += block_of(p)) {
            // The stream orders this kernel before the next copy into the staging buffer.
            TENON_TRY(upload_.pipe().next());
            TENON_TRY(gpu_status(cuda::repack(static_cast<const uint16_t*>(upload_.staging()),
                                              const_cast<uint32_t*>(w.words), p.k, p.n, t.twice_k,
                                              k, std::min(block_of(p), p.k - k),
                                              static_cast<cudaStream_t>(upload_.stream().native())),
                                 t.base));
        }
        for (const bool signs : {t.suh_signs, t.svh_signs}) {
            if (!signs) {
                TENON_TRY(upload_.pipe().next());
            }
        }
        return t.suh_signs || t.svh_signs || p.with_bias ? load_rare(p, w) : Status();
    }

  private:
    // Legacy signs and a bias take another form on their way.
    Status load_rare(const Part& p, const cuda::Weight& w) {
        Tensors& t = rare_.emplace_back();
        TENON_TRY(read_tensors(*p.tensors->source, p.tensors->base, Want::data, &t));
        if (t.suh_signs) {
            TENON_TRY(halves(t.suh.data() + p.k0, p.k, w.suh));
        }
        if (t.svh_signs) {
            TENON_TRY(halves(t.svh.data() + p.n0, p.n, w.svh));
        }
        return p.with_bias ? copy(t.bias.data() + p.n0, w.bias, 4 * p.n) : Status();
    }

    Status copy(const void* from, const void* to, int64_t bytes) {
        return device_.copy(make_view(to, DType::u8, {bytes}, Place::device),
                            make_view(from, DType::u8, {bytes}), upload_.stream());
    }

    Status halves(const float* values, int64_t count, const void* to) {
        std::vector<uint16_t>& bits = halves_.emplace_back(static_cast<size_t>(count));
        std::transform(values, values + count, bits.begin(), [](float v) { return f32_to_f16(v); });
        return copy(bits.data(), to, 2 * count);
    }

    Device& device_;
    quant::Upload& upload_;
    std::list<Tensors> rare_;                  // being copied
    std::list<std::vector<uint16_t>> halves_;  // the same
};

Status upload_all(const std::vector<const Part*>& parts, quant::Upload& upload, Uploader& uploader,
                  std::vector<cuda::Weight>* weights) {
    uint8_t* at = upload.weights();
    for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i] != nullptr) {
            TENON_TRY(uploader.plan(*parts[i], at, &(*weights)[i]));
            at += gpu_bytes(*parts[i]);
        }
    }
    TENON_TRY(upload.pipe().start());
    for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i] != nullptr) {
            TENON_TRY(uploader.load(*parts[i], (*weights)[i]));
        }
    }
    return {};
}

}  // namespace

bool is_sliced(const Part& part) {
    return part.stored <= cuda::kSlicedMost;
}

int64_t gpu_bytes(const Part& part) {
    return gpu_aligned(trellis_bytes(part)) + gpu_aligned(2 * part.k) + gpu_aligned(2 * part.n) +
           (part.with_bias ? gpu_aligned(4 * part.n) : 0) + gpu_aligned(sums_bytes(part));
}

Status GpuParts::load(Device& device, const std::string& name,
                      const std::vector<const Part*>& parts, GpuParts* out) {
    TENON_TRY(use_gpu(device.info().index));
    GpuParts loaded;
    int64_t staging = 0;
    for (const Part* p : parts) {
        if (p != nullptr) {
            loaded.bytes_ += gpu_bytes(*p);
            staging = std::max(staging, staging_bytes(*p));
        }
    }
    loaded.weights_.resize(parts.size());
    if (loaded.bytes_ > 0) {
        quant::Upload upload;
        TENON_TRY(upload.open(device, name, loaded.bytes_, staging));
        Uploader uploader(device, upload);
        TENON_TRY(
            upload.close(upload_all(parts, upload, uploader, &loaded.weights_), &loaded.buffer_));
    }
    *out = std::move(loaded);
    return {};
}

}  // namespace tenon::exl3
