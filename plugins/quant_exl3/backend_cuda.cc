// SPDX-License-Identifier: MIT
// QuantWeight, QuantGroup and QuantExperts of EXL3 on a GPU: checks on the host, then launches.
#include "backend_cuda.h"

#include <algorithm>

#include "kernels/cpu/matrix/check.h"
#include "kernels/cuda/exl3/experts_exact.h"
#include "kernels/cuda/exl3/prefill.h"
#include "kernels/cuda/exl3/prefill_experts.h"
#include "kernels/cuda/exl3/smem.h"
#include "kernels/cuda/experts/steps.h"
#include "upload_cuda.h"

namespace tenon::exl3 {

namespace {

cuda::Element element_of(DType dtype) {
    return dtype == DType::f32 ? cuda::Element::f32 : cuda::Element::bf16;
}

bool same_instance(const cuda::Weight& a, const cuda::Weight& b) {
    return a.twice_k == b.twice_k && a.code == b.code && a.k == b.k;
}

/// A weight and which of mul1's kernels it takes (smem.h).
struct Placed {
    cuda::Weight weight;
    bool sliced = false;
};

/// Scratch of products in regime prefill: rotated rows of the jobs of one launch, and their decoded
/// weights.
struct PrefillBytes {
    int64_t x = 0, w = 0;
};
PrefillBytes prefill_bytes(const std::vector<Placed>& list, int64_t rows) {
    PrefillBytes b;
    for (const auto& [w, sliced] : list) {
        b.x = std::max(b.x, cuda::prefill_x_bytes(rows, w.k));
        b.w += cuda::prefill_w_bytes(w.out, w.k);
    }
    b.x *= std::min<int64_t>(static_cast<int64_t>(list.size()), cuda::kMaxJobs);
    b.w = std::min(b.w, cuda::kPanelBytes);
    return b;
}

/// Scratch of products in regime decode: rotated rows and exact sums of the jobs of one launch.
int64_t staged_bytes(const std::vector<Placed>& list, int64_t rows) {
    const int64_t jobs = std::min<int64_t>(static_cast<int64_t>(list.size()), cuda::kMaxJobs);
    const int64_t at_once = std::min<int64_t>(rows, cuda::kMostStagedRows);
    int64_t most_k = 0, blocks = 0;
    for (const auto& [w, sliced] : list) {
        if ((cuda::rotated_first(w.k, at_once) || w.sums == nullptr) &&
            w.code == cuda::Code::mul1 && !sliced) {
            most_k = std::max<int64_t>(most_k, w.k);
            blocks += (w.out + cuda::kBlock - 1) / cuda::kBlock;
        }
    }
    return most_k == 0 ? 0 : cuda::exact_scratch_bytes(at_once, most_k, jobs, blocks);
}

int64_t scratch_of(const std::vector<Placed>& list, int64_t rows, Regime regime) {
    if (rows <= 0 || regime == Regime::decode) {
        return staged_bytes(list, rows);
    }
    const PrefillBytes b = prefill_bytes(list, rows);
    return b.x + b.w;
}

int64_t panel_of(const std::vector<Placed>& list, int64_t rows, Regime regime) {
    return regime == Regime::decode ? 0 : prefill_bytes(list, rows).w;
}

/// Collects products of one x, and launches those that share an instance together.
class Launcher {
  public:
    /// panel_bytes  of decoded weights in scratch; 0: regime decode
    Launcher(const TensorView& x, int64_t rows, void* scratch, int64_t panel_bytes,
             cudaStream_t stream)
        : stream_(stream), panel_bytes_(panel_bytes) {
        call_.scratch = scratch;
        call_.rows = static_cast<int32_t>(rows);
        call_.x_element = element_of(x.dtype);
    }

    cudaError_t add(const Placed& placed, const void* x, int64_t x_stride, void* y,
                    int64_t y_stride, DType y_dtype) {
        const cuda::Weight& w = placed.weight;
        if (call_.job_count == cuda::kMaxJobs ||
            (call_.job_count > 0 && (!same_instance(first_, w) || call_.sliced != placed.sliced))) {
            if (const cudaError_t status = flush(); status != cudaSuccess) {
                return status;
            }
        }
        if (call_.job_count == 0) {
            first_ = w;
            call_.k = w.k;
            call_.in = w.in;
            call_.twice_k = w.twice_k;
            call_.code = w.code;
            call_.slices = cuda::slices_of(w.k);
            call_.sliced = placed.sliced;
        }
        const int32_t before = call_.job_count == 0 ? 0 : call_.jobs[call_.job_count - 1].block_end;
        cuda::Job& job = call_.jobs[call_.job_count++];
        job.words = w.words;
        job.suh = w.suh;
        job.svh = w.svh;
        job.bias = w.bias;
        job.sums = w.sums;
        job.x = x;
        job.y = y;
        job.x_stride = x_stride;
        job.y_stride = y_stride;
        job.out = w.out;
        job.y_element = element_of(y_dtype);
        job.blocks = (w.out + cuda::kBlock - 1) / cuda::kBlock;
        job.block_end = before + job.blocks;
        return cudaSuccess;
    }

    cudaError_t flush() {
        cudaError_t status = cudaSuccess;
        if (call_.job_count > 0) {
            status = panel_bytes_ > 0 ? cuda::prefill(call_, panel_bytes_, stream_)
                                      : cuda::linear(call_, stream_);
        }
        call_.job_count = 0;
        return status;
    }

  private:
    cudaStream_t stream_;
    int64_t panel_bytes_;
    cuda::LinearCall call_;
    cuda::Weight first_;
};

class GpuWeight final : public Implements<GpuWeight, QuantWeight, QuantDequant> {
  public:
    GpuWeight(std::string name, const QuantInfo& info, Device& device, GpuParts parts, bool sliced)
        : name_(std::move(name)),
          info_(info),
          device_(&device),
          index_(device.info().index),
          parts_(std::move(parts)) {
        for (const cuda::Weight& m : parts_.weights()) {
            placed_.push_back({m, sliced});
        }
    }

    QuantInfo info() noexcept override { return info_; }
    int64_t device_bytes() noexcept override { return parts_.bytes(); }
    int64_t scratch_bytes(int64_t rows, Regime regime, DType) noexcept override {
        return scratch_of(placed_, rows, regime);
    }

    Status linear(const LinearArgs& request, Stream& stream) noexcept override {
        const cuda::Weight& m = parts_.weights()[0];
        const auto count = static_cast<int64_t>(parts_.weights().size());
        LinearArgs args = request;
        TENON_TRY(packed::check_linear(name_, count, m.in, m.out, &args));
        const int64_t rows = args.x.shape[0];
        if (rows == 0) {
            return {};
        }
        TENON_TRY(
            packed::check_scratch("linear", args.scratch, scratch_of(placed_, rows, args.regime)));
        TENON_TRY(use_gpu(index_));
        Launcher launcher(args.x, rows, args.scratch.data, panel_of(placed_, rows, args.regime),
                          static_cast<cudaStream_t>(stream.native()));
        for (int64_t g = 0; g < count; ++g) {
            const int64_t x_at = count == 1 ? 0 : g * args.x.stride[1];
            const int64_t y_at = count == 1 ? 0 : g * args.y.stride[1];
            TENON_TRY(gpu_status(
                launcher.add(placed_[static_cast<size_t>(g)],
                             args.x.as<char>() + x_at * dtype_bytes(args.x.dtype), args.x.stride[0],
                             args.y.as<char>() + y_at * dtype_bytes(args.y.dtype), args.y.stride[0],
                             args.y.dtype),
                name_));
        }
        return gpu_status(launcher.flush(), name_);
    }

    Status dequantize(int64_t row0, const TensorView& dst) noexcept override {
        return guard([&]() -> Status {
            const int64_t out = parts_.weights()[0].out;
            const int64_t in = parts_.weights()[0].in;
            const auto groups = static_cast<int64_t>(parts_.weights().size());
            TENON_TRY(packed::check_dequantize(name_, out * groups, in, row0, dst));
            if (dst.shape[0] == 0) {
                return {};
            }
            TENON_TRY(use_gpu(index_));
            Ref<Stream> stream;
            Ref<Buffer> rows;
            TENON_TRY(device_->create_stream({.name = "exl3 dequantize"}, stream.out()));
            TENON_TRY(device_->allocate({.bytes = dst.shape[0] * in * 4, .tag = "dequantize"},
                                        rows.out()));
            const TensorView all =
                make_view(rows->data(), DType::f32, {dst.shape[0], in}, Place::device);
            for (int64_t done = 0; done < dst.shape[0];) {
                const auto g = static_cast<size_t>((row0 + done) / out);
                const int64_t first = (row0 + done) % out;
                const int64_t count = std::min(out - first, dst.shape[0] - done);
                TENON_TRY(gpu_status(
                    cuda::dequantize(parts_.weights()[g], first, count, all.row<float>(done), in,
                                     static_cast<cudaStream_t>(stream->native())),
                    name_));
                done += count;
            }
            TENON_TRY(device_->copy(dst, all, *stream));
            return device_->synchronize(*stream);
        });
    }

  private:
    std::string name_;
    QuantInfo info_;
    Device* device_;
    int32_t index_;
    GpuParts parts_;
    std::vector<Placed> placed_;
};

class GpuGroup final : public Implements<GpuGroup, QuantGroup> {
  public:
    /// sliced  by member
    GpuGroup(std::string name, Device& device, GpuParts parts, const std::vector<bool>& sliced)
        : name_(std::move(name)), index_(device.info().index), parts_(std::move(parts)) {
        for (size_t i = 0; i < sliced.size(); ++i) {
            placed_.push_back({parts_.weights()[i], sliced[i]});
            outs_.push_back(parts_.weights()[i].out);
        }
    }

    int64_t device_bytes() noexcept override { return parts_.bytes(); }
    int64_t scratch_bytes(int64_t rows, Regime regime) noexcept override {
        return scratch_of(placed_, rows, regime);
    }

    Status linear(const TensorView& x, Span<const TensorView> ys, Regime regime,
                  const TensorView& scratch, Stream& stream) noexcept override {
        TENON_TRY(packed::check_group(name_, parts_.weights()[0].in, outs_, x, ys));
        if (x.shape[0] == 0) {
            return {};
        }
        const int64_t rows = x.shape[0];
        TENON_TRY(packed::check_scratch("linear", scratch, scratch_of(placed_, rows, regime)));
        TENON_TRY(use_gpu(index_));
        Launcher launcher(x, rows, scratch.data, panel_of(placed_, rows, regime),
                          static_cast<cudaStream_t>(stream.native()));
        for (uint64_t i = 0; i < ys.size; ++i) {
            TENON_TRY(gpu_status(launcher.add(placed_[i], x.data, x.stride[0], ys[i].data,
                                              ys[i].stride[0], ys[i].dtype),
                                 name_));
        }
        return gpu_status(launcher.flush(), name_);
    }

  private:
    std::string name_;
    int32_t index_;
    GpuParts parts_;
    std::vector<Placed> placed_;
    std::vector<int64_t> outs_;
};

/// A projection of all experts: a table on the device, and which instances it needs.
struct Projection {
    std::vector<cuda::Weight> kinds;  ///< one weight of each (rate, code) that occurs
    const cuda::Weight* table = nullptr;
};

class GpuExperts final : public Implements<GpuExperts, QuantExperts> {
  public:
    static Status create(Device& device, const quant::ExpertsParts<Part>& parts,
                         QuantExperts** out) {
        auto experts = std::unique_ptr<GpuExperts>(new GpuExperts(device, parts));
        TENON_TRY(experts->load(parts));
        *out = experts.release();
        return {};
    }

    /// Of the matrices; the table of pointers adds 192 bytes an expert.
    int64_t device_bytes() noexcept override { return parts_.bytes(); }
    int64_t scratch_bytes(int64_t rows, int32_t k, Regime regime) noexcept override {
        return rows <= 0 ? 0 : scratch_of(rows, k, regime);
    }
    void keep_f32(bool on) noexcept override { keep_f32_ = on; }

    Status run(const ExpertsArgs& args, Stream& stream) noexcept override {
        TENON_TRY(packed::check_experts(name_, hidden_, args));
        const int64_t rows = args.x.shape[0];
        if (rows == 0) {
            return {};
        }
        const int64_t k = args.ids.shape[1];
        TENON_TRY(packed::check_scratch("experts", args.scratch, scratch_of(rows, k, args.regime)));
        TENON_TRY(use_gpu(index_));
        if (args.regime == Regime::prefill) {
            return gpu_status(cuda::expert_prefill(prefill_call(args),
                                                   static_cast<cudaStream_t>(stream.native())),
                              name_);
        }
        const Scratch scratch = lay_out(rows, k, args.scratch.data);
        const bool fused = is_fused(k);
        const int64_t most = fused ? cuda::kExpertTokens : kChunk;
        for (int64_t row = 0; row < rows; row += most) {
            const int64_t count = std::min(most, rows - row);
            ExpertsArgs part = args;
            part.x = args.x.rows(row, count);
            part.ids = args.ids.rows(row, count);
            part.weights = args.weights.rows(row, count);
            part.out = args.out.rows(row, count);
            auto* native = static_cast<cudaStream_t>(stream.native());
            TENON_TRY(gpu_status(
                fused ? launch_fused(part, scratch, native) : launch(part, scratch, native),
                name_));
        }
        return {};
    }

  private:
    /// Rows whose entries are sorted together: every entry's block looks at all of them.
    static constexpr int64_t kChunk = 16;

    struct Scratch {
        float* gate = nullptr;
        float* up = nullptr;
        uint16_t* a = nullptr;
        float* down = nullptr;
        cuda::ExpertScratch fused;
        int64_t used = 0;
    };

    GpuExperts(Device& device, const quant::ExpertsParts<Part>& parts)
        : name_(parts.name),
          device_(&device),
          index_(device.info().index),
          hidden_(parts.hidden),
          width_(parts.intermediate),
          a_stride_(packed::round_up(parts.intermediate, 8)),
          whole_width_(parts.whole_width),
          count_(static_cast<int32_t>(parts.experts.size())),
          has_shared_(parts.shared.w1.has_value()) {}

    Status load(const quant::ExpertsParts<Part>& parts) {
        TENON_TRY(GpuParts::load(*device_, name_, quant::expert_list(parts), &parts_));
        const std::vector<cuda::Weight>& weights = parts_.weights();
        std::vector<uint8_t> held;
        for (size_t e = 0; e < weights.size() / 3; ++e) {
            held.push_back(weights[e].words != nullptr ? 1 : 0);
        }
        TENON_TRY(table_.load(*device_, name_, weights, held));
        const size_t each = static_cast<size_t>(count_) + 1;
        Projection* const projections[] = {&gate_, &up_, &down_};
        for (size_t i = 0; i < 3; ++i) {
            projections[i]->table = table_.weights() + i * each;
            for (size_t e = 0; e < each; ++e) {
                note(weights[i * each + e], projections[i]);
            }
        }
        for (const cuda::Weight& w : weights) {
            if (w.words != nullptr) {
                const bool down = &w - weights.data() >= static_cast<int64_t>(2 * each);
                all_mul1_ = all_mul1_ && w.code == cuda::Code::mul1;
                int32_t& rate = down ? down_rate_ : up_rate_;
                rate = std::max(rate, w.twice_k);
                (down ? k_down_ : k_up_) = w.k;
            }
        }
        all_mul1_ = all_mul1_ && k_up_ > 0;  // a rank may hold no expert at all
        return {};
    }

    static void note(const cuda::Weight& w, Projection* p) {
        const auto same = [&w](const cuda::Weight& k) {
            return k.twice_k == w.twice_k && k.code == w.code;
        };
        if (w.words != nullptr && std::none_of(p->kinds.begin(), p->kinds.end(), same)) {
            p->kinds.push_back(w);
        }
    }

    /// Experts whose matrices are all mul1 share their launches, whatever the rates.
    bool is_fused(int64_t k) const {
        return all_mul1_ &&
               cuda::experts_fit(up_rate_, k_up_, down_rate_, k_down_, static_cast<int>(k));
    }

    int64_t scratch_of(int64_t rows, int64_t k, Regime regime) const {
        return regime == Regime::decode ? lay_out(rows, k, nullptr).used
                                        : cuda::expert_prefill_bytes(prefill_shape(rows, k));
    }

    /// What needs no data.
    cuda::ExpertPrefill prefill_shape(int64_t rows, int64_t k) const {
        cuda::ExpertPrefill c;
        c.rows = static_cast<int32_t>(rows);
        c.k = static_cast<int32_t>(k);
        c.experts = count_;
        c.has_shared = has_shared_;
        c.hidden = static_cast<int32_t>(hidden_);
        c.width = static_cast<int32_t>(width_);
        c.k_up = k_up_;
        c.k_down = k_down_;
        c.round = whole_width_ && !keep_f32_;
        return c;
    }

    cuda::ExpertPrefill prefill_call(const ExpertsArgs& args) const {
        cuda::ExpertPrefill c = prefill_shape(args.x.shape[0], args.ids.shape[1]);
        c.gate = gate_.table;
        c.up = up_.table;
        c.down = down_.table;
        const auto each = static_cast<size_t>(count_) + 1;
        const auto add = [&](size_t projection, cuda::ExpertKind* kinds, int32_t* count) {
            for (size_t e = 0; e + 1 < each; ++e) {
                const cuda::Weight& w = parts_.weights()[projection * each + e];
                const auto same = [&w](const cuda::ExpertKind& k) {
                    return k.twice_k == w.twice_k && k.code == w.code;
                };
                if (w.words != nullptr && std::none_of(kinds, kinds + *count, same)) {
                    kinds[(*count)++] = {w.twice_k, w.code};
                }
            }
        };
        add(0, c.up_kind, &c.up_kinds);
        add(1, c.up_kind, &c.up_kinds);
        add(2, c.down_kind, &c.down_kinds);
        for (size_t i = 0; i < 3 && has_shared_; ++i) {
            c.shared[i] = parts_.weights()[i * each + each - 1];
        }
        c.ids = args.ids.as<int32_t>();
        c.weights = args.weights.as<float>();
        c.limit = args.limit;
        c.x = args.x.data;
        c.x_stride = args.x.stride[0];
        c.scratch = args.scratch.data;
        c.out = args.out.as<float>();
        c.out_stride = args.out.stride[0];
        return c;
    }

    Scratch lay_out(int64_t rows, int64_t k, void* base) const {
        packed::Arena arena(base);
        Scratch s;
        if (is_fused(k)) {
            const int64_t tokens = std::min<int64_t>(rows, cuda::kExpertTokens);
            const int64_t entries = tokens * (k + 1);
            cuda::ExpertScratch& f = s.fused;
            f.groups = arena.take<int32_t>(1);
            f.items = arena.take<cuda::ExpertItem>(3 * cuda::most_groups(tokens, k));
            f.digits_up = arena.take<uint8_t>(entries * 4 * k_up_);
            f.digits_down = arena.take<uint8_t>(entries * 2 * k_down_);
            f.most_up = arena.take<float>(entries * 2);
            f.total_up = arena.take<int32_t>(entries * 2);
            f.most_down = arena.take<float>(entries);
            f.total_down = arena.take<int32_t>(entries);
            f.sums_up = arena.take<int64_t>(entries * 2 * k_down_);
            f.sums_down = arena.take<int64_t>(entries * packed::round_up(hidden_, cuda::kBlock));
        } else {
            const int64_t entries = std::min(rows, kChunk) * (k + 1);
            s.gate = arena.take<float>(entries * width_);
            s.up = arena.take<float>(entries * width_);
            s.a = arena.take<uint16_t>(entries * a_stride_);
            s.down = arena.take<float>(entries * hidden_);
        }
        s.used = arena.used();
        return s;
    }

    cudaError_t launch_fused(const ExpertsArgs& args, const Scratch& s, cudaStream_t stream) const {
        cuda::ExpertStep c;
        c.rows = static_cast<int32_t>(args.x.shape[0]);
        c.k = static_cast<int32_t>(args.ids.shape[1]);
        c.experts = count_;
        c.hidden = static_cast<int32_t>(hidden_);
        c.width = static_cast<int32_t>(width_);
        c.k_up = k_up_;
        c.k_down = k_down_;
        c.twice_k_up = up_rate_;
        c.twice_k_down = down_rate_;
        c.blocks_down = static_cast<int32_t>((hidden_ + cuda::kBlock - 1) / cuda::kBlock);
        c.gate = gate_.table;
        c.up = up_.table;
        c.down = down_.table;
        c.ids = args.ids.as<int32_t>();
        c.weights = args.weights.as<float>();
        c.limit = args.limit;
        c.round = whole_width_ && !keep_f32_;
        c.x = args.x.data;
        c.x_stride = args.x.stride[0];
        c.scratch = s.fused;
        c.out = args.out.as<float>();
        c.out_stride = args.out.stride[0];
        return cuda::run_experts(c, stream);
    }

    cudaError_t project(const Projection& p, const ExpertsArgs& args, const void* x,
                        int64_t x_stride, bool x_by_entry, float* y, int64_t width,
                        cudaStream_t stream) const {
        for (const cuda::Weight& kind : p.kinds) {
            cuda::LinearCall call;
            call.rows = static_cast<int32_t>(args.x.shape[0]);
            call.k = kind.k;
            call.in = kind.in;
            call.twice_k = kind.twice_k;
            call.code = kind.code;
            call.slices = cuda::slices_of(kind.k);
            cuda::ExpertCall& e = call.experts;
            e.table = p.table;
            e.ids = args.ids.as<int32_t>();
            e.experts = count_;
            e.k = static_cast<int32_t>(args.ids.shape[1]);
            e.has_shared = has_shared_;
            e.x_by_entry = x_by_entry;
            e.x = x;
            e.x_stride = x_stride;
            e.y = y;
            e.y_stride = width;
            e.blocks = (kind.out + cuda::kBlock - 1) / cuda::kBlock;
            if (const cudaError_t status = cuda::linear(call, stream); status != cudaSuccess) {
                return status;
            }
        }
        return cudaSuccess;
    }

    cudaError_t launch(const ExpertsArgs& args, const Scratch& s, cudaStream_t stream) const {
        const auto rows = static_cast<int32_t>(args.x.shape[0]);
        const auto k = static_cast<int32_t>(args.ids.shape[1]);
        cudaError_t status =
            project(gate_, args, args.x.data, args.x.stride[0], false, s.gate, width_, stream);
        if (status == cudaSuccess) {
            status = project(up_, args, args.x.data, args.x.stride[0], false, s.up, width_, stream);
        }
        if (status == cudaSuccess) {
            experts::cuda::ActivationCall c;
            c.rows = rows;
            c.k = k;
            c.width = static_cast<int32_t>(width_);
            c.gate = s.gate;
            c.up = s.up;
            c.weights = args.weights.as<float>();
            c.limit = args.limit;
            c.a = s.a;
            c.a_stride = a_stride_;
            status = experts::cuda::activate(c, stream);
        }
        if (status == cudaSuccess) {
            status = project(down_, args, s.a, a_stride_, true, s.down, hidden_, stream);
        }
        if (status == cudaSuccess) {
            experts::cuda::CombineCall c;
            c.rows = rows;
            c.k = k;
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
    Device* device_;
    int32_t index_;
    int64_t hidden_;
    int64_t width_;
    int64_t a_stride_;
    bool whole_width_;
    int32_t count_;
    bool has_shared_;
    bool keep_f32_ = false;
    bool all_mul1_ = true;
    int32_t k_up_ = 0, k_down_ = 0;        // inputs of the projections, padded to rotations
    int32_t up_rate_ = 0, down_rate_ = 0;  // largest 2 K
    GpuParts parts_;
    quant::ExpertTable<cuda::Weight> table_;
    Projection gate_, up_, down_;
};

class CudaBackend final : public quant::Backend<Part> {
  public:
    explicit CudaBackend(Device& device) : device_(&device) {}

    quant::Want wants() const override { return quant::Want::shapes; }
    Status weight(const std::string& name, const QuantInfo& info, const std::vector<Part>& groups,
                  QuantWeight** out) override {
        GpuParts parts;
        TENON_TRY(GpuParts::load(*device_, name, quant::pointers(groups), &parts));
        *out = new GpuWeight(name, info, *device_, std::move(parts), is_sliced(groups[0]));
        return {};
    }
    Status group(const std::string& name, const std::vector<Part>& members,
                 QuantGroup** out) override {
        GpuParts parts;
        TENON_TRY(GpuParts::load(*device_, name, quant::pointers(members), &parts));
        std::vector<bool> sliced;
        for (const Part& p : members) {
            sliced.push_back(is_sliced(p));
        }
        *out = new GpuGroup(name, *device_, std::move(parts), sliced);
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
    TENON_TRY(quant::require_gpu(device, "exl3", base));
    *out = std::make_unique<CudaBackend>(device);
    return {};
}

}  // namespace tenon::exl3
