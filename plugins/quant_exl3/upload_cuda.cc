// SPDX-License-Identifier: MIT
// Upload of EXL3 parts: raw tiles from the checkpoint's files through a pipe into a staging buffer,
// then a reordering kernel.
#include "upload_cuda.h"

#include <algorithm>
#include <list>

#include "plugins/quant_common/weight_pipe.h"
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

/// The rows of tiles of a part, dense in `staging`.
quant::PipeJob words_of(const Part& part, void* staging) {
    const Tensors& t = *part.tensors;
    const int64_t tile = 2 * tile_words(t.twice_k);
    quant::PipeJob job;
    job.source = t.source;
    job.tensor = t.base + ".trellis";
    job.pitch = t.n / kTile * tile;
    job.offset = part.k0 / kTile * job.pitch + part.n0 / kTile * tile;
    job.rows = part.k / kTile;
    job.row_bytes = part.n / kTile * tile;
    job.to = staging;
    return job;
}

/// Copies of one load, in order on a stream of its own. Until that has been waited for, the parts
/// and this object must live.
class Uploader {
  public:
    Uploader(Device& device, Stream& stream, void* staging)
        : device_(device), stream_(stream), staging_(staging), pipe_(device, stream) {}

    Status start(const std::vector<const Part*>& parts) {
        for (const Part* p : parts) {
            if (p != nullptr) {
                TENON_TRY(pipe_.add(words_of(*p, staging_)));
            }
        }
        return pipe_.start();
    }

    /// The next of the parts.
    Status part(const Part& p, uint8_t* at, cuda::Weight* out) {
        const Tensors& t = *p.tensors;
        cuda::Weight w;
        w.k = static_cast<int32_t>(p.k);
        w.n = static_cast<int32_t>(p.n);
        w.in = static_cast<int32_t>(p.in);
        w.out = static_cast<int32_t>(p.out);
        w.twice_k = t.twice_k;
        w.code = code_of(t.codebook);
        w.words = reinterpret_cast<const uint32_t*>(at);
        TENON_TRY(words(p, reinterpret_cast<uint32_t*>(at)));
        at += gpu_aligned(trellis_bytes(p));
        w.suh = reinterpret_cast<const uint16_t*>(at);
        TENON_TRY(halves(t.suh, p.k0, p.k, at));
        at += gpu_aligned(2 * p.k);
        w.svh = reinterpret_cast<const uint16_t*>(at);
        TENON_TRY(halves(t.svh, p.n0, p.n, at));
        at += gpu_aligned(2 * p.n);
        if (p.with_bias) {
            w.bias = reinterpret_cast<const float*>(at);
            TENON_TRY(copy(t.bias.data() + p.n0, at, 4 * p.n));
        }
        *out = w;
        return {};
    }

  private:
    Status copy(const void* from, void* to, int64_t bytes) {
        return device_.copy(make_view(to, DType::u8, {bytes}, Place::device),
                            make_view(from, DType::u8, {bytes}), stream_);
    }

    // Scales are halves in the checkpoint, so nothing is lost.
    Status halves(const std::vector<float>& values, int64_t first, int64_t count, void* to) {
        std::vector<uint16_t>& bits = halves_.emplace_back(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) {
            bits[static_cast<size_t>(i)] = f32_to_f16(values[static_cast<size_t>(first + i)]);
        }
        return copy(bits.data(), to, 2 * count);
    }

    // The stream orders a part's kernel before the next part's copy into the staging buffer.
    Status words(const Part& p, uint32_t* to) {
        TENON_TRY(pipe_.next());
        return gpu_status(
            cuda::repack(static_cast<const uint16_t*>(staging_), to, p.k, p.n, p.tensors->twice_k,
                         static_cast<cudaStream_t>(stream_.native())),
            p.tensors->base);
    }

    Device& device_;
    Stream& stream_;
    void* staging_;
    std::list<std::vector<uint16_t>> halves_;  // being copied
    quant::WeightPipe pipe_;
};

}  // namespace

int64_t gpu_bytes(const Part& part) {
    return gpu_aligned(trellis_bytes(part)) + gpu_aligned(2 * part.k) + gpu_aligned(2 * part.n) +
           (part.with_bias ? gpu_aligned(4 * part.n) : 0);
}

Status GpuParts::load(Device& device, const std::string& name,
                      const std::vector<const Part*>& parts, GpuParts* out) {
    TENON_TRY(use_gpu(device.info().index));
    GpuParts loaded;
    int64_t staging_bytes = 0;
    for (const Part* p : parts) {
        if (p != nullptr) {
            loaded.bytes_ += gpu_bytes(*p);
            staging_bytes = std::max(staging_bytes, trellis_bytes(*p));
        }
    }
    loaded.weights_.resize(parts.size());
    if (loaded.bytes_ > 0) {
        Ref<Stream> stream;
        TENON_TRY(device.create_stream({.name = "exl3 load"}, stream.out()));
        TENON_TRY_CTX(
            device.allocate({.bytes = loaded.bytes_, .tag = "weights"}, loaded.buffer_.out()), "{}",
            name);
        Ref<Buffer> staging;
        TENON_TRY_CTX(
            device.allocate({.bytes = staging_bytes, .tag = "weight staging"}, staging.out()), "{}",
            name);
        Uploader uploader(device, *stream, staging->data());
        Status status = uploader.start(parts);
        auto* at = static_cast<uint8_t*>(loaded.buffer_->data());
        for (size_t i = 0; i < parts.size() && status.ok(); ++i) {
            if (parts[i] != nullptr) {
                status = uploader.part(*parts[i], at, &loaded.weights_[i]);
                at += gpu_bytes(*parts[i]);
            }
        }
        Status waited = device.synchronize(*stream);  // after an error too: all of it goes
        TENON_TRY_CTX(std::move(status), "{}", name);
        TENON_TRY_CTX(std::move(waited), "{}", name);
    }
    *out = std::move(loaded);
    return {};
}

}  // namespace tenon::exl3
