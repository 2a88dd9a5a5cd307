// SPDX-License-Identifier: MIT
// QuantWeight, QuantGroup and QuantExperts of ordinary matrices on a GPU: checks on the host, then
// launches.
#include "backend_cuda.h"

#include <algorithm>

#include "kernels/cpu/matrix/check.h"
#include "kernels/cuda/experts/steps.h"
#include "kernels/cuda/plain/prefill.h"
#include "upload_cuda.h"

namespace tenon::plain {

namespace {

using quant::gpu_status;
using quant::use_gpu;

cudaStream_t native(Stream& stream) {
    return static_cast<cudaStream_t>(stream.native());
}

/// Rows of x as the kernels read them: f32, as they are and rounded to E4M3, each if it is needed.
struct Staged {
    float* plain = nullptr;
    float* quantised = nullptr;
    const float* of(const cuda::Weight& w) const { return w.quantise != 0 ? quantised : plain; }
};

Staged take_staged(packed::Arena& arena, int64_t rows, int64_t in, bool plain, bool quantised) {
    Staged s;
    s.plain = plain ? arena.take<float>(rows * cuda::padded(in)) : nullptr;
    s.quantised = quantised ? arena.take<float>(rows * cuda::padded(in)) : nullptr;
    return s;
}

cudaError_t stage_rows(const void* x, DType dtype, int64_t stride, int64_t rows, int64_t in,
                       const Staged& to, cudaStream_t stream) {
    cuda::StageCall c;
    c.x = x;
    c.is_f32 = dtype == DType::f32;
    c.x_stride = stride;
    c.rows = static_cast<int32_t>(rows);
    c.in = static_cast<int32_t>(in);
    c.staged = to.plain;
    c.quantised = to.quantised;
    return cuda::stage(c, stream);
}

/// Whether products of these weights take the kernels of prefill.h in a regime.
bool takes_prefill(const std::vector<cuda::Weight>& list, Regime regime) {
    return regime == Regime::prefill && std::all_of(list.begin(), list.end(), cuda::has_prefill);
}

/// Their scratch: panels of rows of the jobs of one launch, and of weights.
struct PrefillBytes {
    int64_t x = 0, w = 0;
};
PrefillBytes prefill_bytes(const std::vector<cuda::Weight>& list, int64_t rows) {
    PrefillBytes b;
    for (const cuda::Weight& w : list) {
        b.x = std::max(b.x, cuda::prefill_x_bytes(rows, w.in));
        b.w += cuda::prefill_w_bytes(w.out, w.in);
    }
    b.x *= std::min<int64_t>(static_cast<int64_t>(list.size()), cuda::kMaxJobs);
    b.w = std::min(b.w, cuda::kPanelBytes);
    return b;
}

/// Jobs of one call, eight at a time.
class Prefill {
  public:
    Prefill(const std::vector<cuda::Weight>& list, int64_t rows, DType x, void* scratch,
            cudaStream_t stream)
        : stream_(stream) {
        call_.rows = static_cast<int32_t>(rows);
        call_.x_is_f32 = x == DType::f32;
        call_.scratch = scratch;
        call_.w_bytes = prefill_bytes(list, rows).w;
    }
    cudaError_t add(const cuda::Weight& w, const void* x, int64_t x_stride, void* y,
                    int64_t y_stride, DType y_type) {
        call_.jobs[call_.job_count++] = {w, x, x_stride, y, y_stride, y_type == DType::f32};
        return call_.job_count == cuda::kMaxJobs ? flush() : cudaSuccess;
    }
    cudaError_t flush() {
        const cudaError_t status = cuda::prefill(call_, stream_);
        call_.job_count = 0;
        return status;
    }

  private:
    cudaStream_t stream_;
    cuda::PrefillCall call_;
};

class GpuWeight final : public Implements<GpuWeight, QuantWeight, QuantDequant> {
  public:
    GpuWeight(std::string name, const QuantInfo& info, Device& device, GpuParts parts)
        : name_(std::move(name)),
          info_(info),
          device_(&device),
          index_(device.info().index),
          parts_(std::move(parts)) {}

    QuantInfo info() noexcept override { return info_; }
    int64_t device_bytes() noexcept override { return parts_.bytes(); }
    int64_t scratch_bytes(int64_t rows, Regime regime, DType) noexcept override {
        if (rows > 0 && takes_prefill(parts_.weights(), regime)) {
            const PrefillBytes b = prefill_bytes(parts_.weights(), rows);
            return b.x + b.w;
        }
        packed::Arena arena;
        lay_out(arena, rows);
        return rows <= 0 ? 0 : arena.used();
    }

    Status linear(const LinearArgs& request, Stream& stream) noexcept override {
        const cuda::Weight& m = parts_.weights()[0];
        const int64_t count = groups();
        LinearArgs args = request;
        TENON_TRY(packed::check_linear(name_, count, m.in, m.out, &args));
        const int64_t rows = args.x.shape[0];
        if (rows == 0) {
            return {};
        }
        const int64_t x_step = count == 1 ? 0 : args.x.stride[1];
        const int64_t y_step = count == 1 ? 0 : args.y.stride[1];
        if (takes_prefill(parts_.weights(), args.regime)) {
            TENON_TRY(packed::check_scratch("linear", args.scratch,
                                            scratch_bytes(rows, args.regime, args.y.dtype)));
            TENON_TRY(use_gpu(index_));
            Prefill prefill(parts_.weights(), rows, args.x.dtype, args.scratch.data,
                            native(stream));
            for (int64_t g = 0; g < count; ++g) {
                TENON_TRY(gpu_status(
                    prefill.add(parts_.weights()[static_cast<size_t>(g)],
                                args.x.as<char>() + g * x_step * dtype_bytes(args.x.dtype),
                                args.x.stride[0],
                                args.y.as<char>() + g * y_step * dtype_bytes(args.y.dtype),
                                args.y.stride[0], args.y.dtype),
                    name_));
            }
            return gpu_status(prefill.flush(), name_);
        }
        packed::Arena arena(args.scratch.data);
        const Staged staged = lay_out(arena, rows);
        TENON_TRY(packed::check_scratch("linear", args.scratch, arena.used()));
        TENON_TRY(use_gpu(index_));
        for (int64_t first = 0; first < count; first += cuda::kMaxJobs) {
            cuda::LinearCall c;
            c.rows = static_cast<int32_t>(rows);
            for (int64_t g = first; g < std::min(count, first + cuda::kMaxJobs); ++g) {
                const cuda::Weight& w = parts_.weights()[static_cast<size_t>(g)];
                const int64_t at = g * rows * cuda::padded(m.in);
                const Staged own{staged.plain == nullptr ? nullptr : staged.plain + at,
                                 staged.quantised == nullptr ? nullptr : staged.quantised + at};
                TENON_TRY(gpu_status(
                    stage_rows(args.x.as<char>() + g * x_step * dtype_bytes(args.x.dtype),
                               args.x.dtype, args.x.stride[0], rows, m.in, own, native(stream)),
                    name_));
                cuda::Job& job = c.jobs[c.job_count++];
                job.weight = w;
                job.x = own.of(w);
                job.y = args.y.as<char>() + g * y_step * dtype_bytes(args.y.dtype);
                job.y_stride = args.y.stride[0];
                job.y_is_f32 = args.y.dtype == DType::f32;
            }
            TENON_TRY(gpu_status(cuda::linear(c, native(stream)), name_));
        }
        return {};
    }

    Status dequantize(int64_t row0, const TensorView& dst) noexcept override {
        return guard([&]() -> Status {
            const int64_t out = parts_.weights()[0].out;
            const int64_t in = parts_.weights()[0].in;
            TENON_TRY(packed::check_dequantize(name_, out * groups(), in, row0, dst));
            if (dst.shape[0] == 0) {
                return {};
            }
            TENON_TRY(use_gpu(index_));
            Ref<Stream> stream;
            Ref<Buffer> rows;
            TENON_TRY(device_->create_stream({.name = "plain dequantize"}, stream.out()));
            TENON_TRY(device_->allocate({.bytes = dst.shape[0] * in * 4, .tag = "dequantize"},
                                        rows.out()));
            const TensorView all =
                make_view(rows->data(), DType::f32, {dst.shape[0], in}, Place::device);
            for (int64_t done = 0; done < dst.shape[0];) {
                const auto g = static_cast<size_t>((row0 + done) / out);
                const int64_t first = (row0 + done) % out;
                const int64_t count = std::min(out - first, dst.shape[0] - done);
                TENON_TRY(gpu_status(cuda::dequantize(parts_.weights()[g], first, count,
                                                      all.row<float>(done), in, native(*stream)),
                                     name_));
                done += count;
            }
            TENON_TRY(device_->copy(dst, all, *stream));
            return device_->synchronize(*stream);
        });
    }

  private:
    int64_t groups() const { return static_cast<int64_t>(parts_.weights().size()); }
    Staged lay_out(packed::Arena& arena, int64_t rows) const {
        const cuda::Weight& m = parts_.weights()[0];
        return take_staged(arena, rows * groups(), m.in, m.quantise == 0, m.quantise != 0);
    }

    std::string name_;
    QuantInfo info_;
    Device* device_;
    int32_t index_;
    GpuParts parts_;
};

class GpuGroup final : public Implements<GpuGroup, QuantGroup> {
  public:
    GpuGroup(std::string name, Device& device, GpuParts parts)
        : name_(std::move(name)), index_(device.info().index), parts_(std::move(parts)) {
        for (const cuda::Weight& w : parts_.weights()) {
            outs_.push_back(w.out);
            (w.quantise != 0 ? any_quantised_ : any_plain_) = true;
        }
    }

    int64_t device_bytes() noexcept override { return parts_.bytes(); }
    int64_t scratch_bytes(int64_t rows, Regime regime) noexcept override {
        if (rows > 0 && takes_prefill(parts_.weights(), regime)) {
            const PrefillBytes b = prefill_bytes(parts_.weights(), rows);
            return b.x + b.w;
        }
        packed::Arena arena;
        lay_out(arena, rows);
        return rows <= 0 ? 0 : arena.used();
    }

    Status linear(const TensorView& x, Span<const TensorView> ys, Regime regime,
                  const TensorView& scratch, Stream& stream) noexcept override {
        const int64_t in = parts_.weights()[0].in;
        TENON_TRY(packed::check_group(name_, in, outs_, x, ys));
        const int64_t rows = x.shape[0];
        if (rows == 0) {
            return {};
        }
        if (takes_prefill(parts_.weights(), regime)) {
            TENON_TRY(packed::check_scratch("linear", scratch, scratch_bytes(rows, regime)));
            TENON_TRY(use_gpu(index_));
            Prefill prefill(parts_.weights(), rows, x.dtype, scratch.data, native(stream));
            for (uint64_t i = 0; i < ys.size; ++i) {
                TENON_TRY(gpu_status(prefill.add(parts_.weights()[i], x.data, x.stride[0],
                                                 ys[i].data, ys[i].stride[0], ys[i].dtype),
                                     name_));
            }
            return gpu_status(prefill.flush(), name_);
        }
        packed::Arena arena(scratch.data);
        const Staged staged = lay_out(arena, rows);
        TENON_TRY(packed::check_scratch("linear", scratch, arena.used()));
        TENON_TRY(use_gpu(index_));
        TENON_TRY(gpu_status(
            stage_rows(x.data, x.dtype, x.stride[0], rows, in, staged, native(stream)), name_));
        for (uint64_t first = 0; first < ys.size; first += cuda::kMaxJobs) {
            cuda::LinearCall c;
            c.rows = static_cast<int32_t>(rows);
            for (uint64_t i = first; i < std::min<uint64_t>(ys.size, first + cuda::kMaxJobs); ++i) {
                cuda::Job& job = c.jobs[c.job_count++];
                job.weight = parts_.weights()[i];
                job.x = staged.of(job.weight);
                job.y = ys[i].data;
                job.y_stride = ys[i].stride[0];
                job.y_is_f32 = ys[i].dtype == DType::f32;
            }
            TENON_TRY(gpu_status(cuda::linear(c, native(stream)), name_));
        }
        return {};
    }

  private:
    Staged lay_out(packed::Arena& arena, int64_t rows) const {
        return take_staged(arena, rows, parts_.weights()[0].in, any_plain_, any_quantised_);
    }

    std::string name_;
    int32_t index_;
    GpuParts parts_;
    std::vector<int64_t> outs_;
    bool any_plain_ = false, any_quantised_ = false;
};

class GpuExperts final : public Implements<GpuExperts, QuantExperts> {
  public:
    static Status create(Device& device, const quant::ExpertsParts<Part>& parts,
                         QuantExperts** out) {
        auto experts = std::unique_ptr<GpuExperts>(new GpuExperts(device, parts));
        TENON_TRY(experts->load(device, parts));
        *out = experts.release();
        return {};
    }

    /// Of the matrices; the table of pointers adds 121 bytes an expert.
    int64_t device_bytes() noexcept override { return parts_.bytes(); }
    int64_t scratch_bytes(int64_t rows, int32_t k, Regime) noexcept override {
        return rows <= 0 ? 0 : lay_out(rows, k, nullptr).used;
    }
    void keep_f32(bool on) noexcept override { keep_f32_ = on; }

    Status run(const ExpertsArgs& args, Stream& stream) noexcept override {
        TENON_TRY(packed::check_experts(name_, hidden_, args));
        const int64_t rows = args.x.shape[0];
        if (rows == 0) {
            return {};
        }
        const int64_t k = args.ids.shape[1];
        const Scratch scratch = lay_out(rows, k, args.scratch.data);
        TENON_TRY(packed::check_scratch("experts", args.scratch, scratch.used));
        TENON_TRY(use_gpu(index_));
        for (int64_t row = 0; row < rows; row += kChunk) {
            const int64_t count = std::min(kChunk, rows - row);
            ExpertsArgs part = args;
            part.x = args.x.rows(row, count);
            part.ids = args.ids.rows(row, count);
            part.weights = args.weights.rows(row, count);
            part.out = args.out.rows(row, count);
            TENON_TRY(gpu_status(launch(part, scratch, native(stream)), name_));
        }
        return {};
    }

  private:
    /// Rows whose entries are sorted together: every entry's block looks at all of them.
    static constexpr int64_t kChunk = 32;

    struct Scratch {
        Staged x, a;
        float* gate = nullptr;
        float* up = nullptr;
        uint16_t* rows = nullptr;  // bf16 activations
        float* down = nullptr;
        int64_t used = 0;
    };

    GpuExperts(Device& device, const quant::ExpertsParts<Part>& parts)
        : name_(parts.name),
          index_(device.info().index),
          hidden_(parts.hidden),
          width_(parts.intermediate),
          whole_width_(parts.whole_width),
          count_(static_cast<int32_t>(parts.experts.size())) {}

    Status load(Device& device, const quant::ExpertsParts<Part>& parts) {
        TENON_TRY(GpuParts::load(device, name_, quant::expert_list(parts), &parts_));
        const std::vector<cuda::Weight>& weights = parts_.weights();
        std::vector<uint8_t> held;
        for (size_t e = 0; e < weights.size() / 3; ++e) {
            held.push_back(weights[e].codes != nullptr ? 1 : 0);
        }
        for (const cuda::Weight& w : weights) {
            if (w.codes != nullptr) {
                (w.quantise != 0 ? any_quantised_ : any_plain_) = true;
            }
        }
        return table_.load(device, name_, weights, held);
    }

    Scratch lay_out(int64_t all_rows, int64_t k, void* base) const {
        packed::Arena arena(base);
        const int64_t rows = std::min(all_rows, kChunk);
        const int64_t entries = rows * (k + 1);
        Scratch s;
        s.x = take_staged(arena, rows, hidden_, any_plain_, any_quantised_);
        s.a = take_staged(arena, entries, width_, any_plain_, any_quantised_);
        s.gate = arena.take<float>(entries * width_);
        s.up = arena.take<float>(entries * width_);
        s.rows = arena.take<uint16_t>(entries * width_);
        s.down = arena.take<float>(entries * hidden_);
        s.used = arena.used();
        return s;
    }

    cudaError_t project(int projection, const ExpertsArgs& args, const Staged& x, bool by_entry,
                        float* y, cudaStream_t stream) const {
        cuda::ExpertCall c;
        c.table = table_.weights() + projection * (count_ + 1);
        c.ids = args.ids.as<int32_t>();
        c.rows = static_cast<int32_t>(args.x.shape[0]);
        c.k = static_cast<int32_t>(args.ids.shape[1]);
        c.experts = count_;
        c.in = static_cast<int32_t>(projection == 2 ? width_ : hidden_);
        c.out = static_cast<int32_t>(projection == 2 ? hidden_ : width_);
        c.x_by_entry = by_entry;
        c.x = x.plain;
        c.x_quantised = x.quantised;
        c.y = y;
        return cuda::experts(c, stream);
    }

    cudaError_t launch(const ExpertsArgs& args, const Scratch& s, cudaStream_t stream) const {
        const int64_t rows = args.x.shape[0];
        const int64_t k = args.ids.shape[1];
        cudaError_t status =
            stage_rows(args.x.data, DType::bf16, args.x.stride[0], rows, hidden_, s.x, stream);
        if (status == cudaSuccess) {
            status = project(0, args, s.x, false, s.gate, stream);
        }
        if (status == cudaSuccess) {
            status = project(1, args, s.x, false, s.up, stream);
        }
        if (status == cudaSuccess) {
            experts::cuda::ActivationCall c;
            c.rows = static_cast<int32_t>(rows);
            c.k = static_cast<int32_t>(k);
            c.width = static_cast<int32_t>(width_);
            c.gate = s.gate;
            c.up = s.up;
            c.weights = args.weights.as<float>();
            c.limit = args.limit;
            c.a = s.rows;
            c.a_stride = width_;
            status = experts::cuda::activate(c, stream);
        }
        if (status == cudaSuccess) {
            status = stage_rows(s.rows, DType::bf16, width_, rows * (k + 1), width_, s.a, stream);
        }
        if (status == cudaSuccess) {
            status = project(2, args, s.a, true, s.down, stream);
        }
        if (status == cudaSuccess) {
            experts::cuda::CombineCall c;
            c.rows = static_cast<int32_t>(rows);
            c.k = static_cast<int32_t>(k);
            c.width = static_cast<int32_t>(hidden_);
            c.experts = count_;
            c.held = table_.held();
            c.ids = args.ids.as<int32_t>();
            c.products = s.down;
            c.round = whole_width_ && !keep_f32_;
            c.out = args.out.as<float>();
            c.out_stride = args.out.stride[0];
            status = experts::cuda::combine(c, stream);
        }
        return status;
    }

    std::string name_;
    int32_t index_;
    int64_t hidden_;
    int64_t width_;
    bool whole_width_;
    int32_t count_;
    bool keep_f32_ = false;
    bool any_plain_ = false, any_quantised_ = false;
    GpuParts parts_;
    quant::ExpertTable<cuda::Weight> table_;
};

class CudaBackend final : public quant::Backend<Part> {
  public:
    explicit CudaBackend(Device& device) : device_(&device) {}

    quant::Want wants() const override { return quant::Want::shapes; }
    Status weight(const std::string& name, const QuantInfo& info, const std::vector<Part>& groups,
                  QuantWeight** out) override {
        GpuParts parts;
        TENON_TRY(GpuParts::load(*device_, name, quant::pointers(groups), &parts));
        *out = new GpuWeight(name, info, *device_, std::move(parts));
        return {};
    }
    Status group(const std::string& name, const std::vector<Part>& members,
                 QuantGroup** out) override {
        GpuParts parts;
        TENON_TRY(GpuParts::load(*device_, name, quant::pointers(members), &parts));
        *out = new GpuGroup(name, *device_, std::move(parts));
        return {};
    }
    Status experts(const quant::ExpertsParts<Part>& parts, QuantExperts** out) override {
        return GpuExperts::create(*device_, parts, out);
    }
    int64_t bytes(const Part& part) override { return gpu_bytes(part); }

  private:
    Device* device_;
};

}  // namespace

bool has_cuda() {
    return true;
}

Status make_cuda_backend(StrView base, Device& device, std::unique_ptr<quant::Backend<Part>>* out) {
    TENON_TRY(quant::require_gpu(device, "plain", base));
    *out = std::make_unique<CudaBackend>(device);
    return {};
}

}  // namespace tenon::plain
