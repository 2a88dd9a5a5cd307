// SPDX-License-Identifier: MIT
// A quantization format: matrices that are stored as bf16 in `NAME.weight` [out, in], multiplied on
// the CPU with plain loops.
#include "tenon/numeric.h"
#include "tenon/plugin.h"
#include "tenon/quant.h"

#include <cstring>
#include <string>
#include <utility>

namespace tenon::my_quant {
namespace {

constexpr const char* kName = "my_quant";
constexpr int64_t kOutputsPerTask =
    16;  // work of one call of a pool's thread; never changes a result

/// Rows [first_out, first_out + out) and columns [first_in, first_in + in) of a stored matrix.
struct Part {
    int64_t stored_out = 0, stored_in = 0;
    int64_t first_out = 0, out = 0;
    int64_t first_in = 0, in = 0;
};

QuantInfo describe_part(const Part& part) {
    QuantInfo info;
    info.in_features = part.in;
    info.out_features = part.out;
    info.bits = 16;
    info.bytes = part.in * part.out * 2;
    set_text(info.codec, "bf16 (my_quant)");
    return info;
}

/// The matrix of that name. not_found: the next format in the profile is asked.
Result<Part> find_matrix(WeightSource& source, StrView base) {
    TensorInfo tensor;
    const Status status = source.find(base.str() + ".weight", &tensor);
    if (!status.ok() || tensor.dtype != DType::bf16) {
        return error(Code::not_found, "{}: no bf16 tensor '{}.weight'", base, base);
    }
    if (tensor.rank != 2 || tensor.shape[0] < 1 || tensor.shape[1] < 1 ||
        tensor.bytes != static_cast<uint64_t>(tensor.shape[0] * tensor.shape[1] * 2)) {
        return error(Code::invalid_argument, "{}.weight: rank {} and {} bytes, expected [out, in]",
                     base, tensor.rank, tensor.bytes);
    }
    Part part;
    part.stored_out = part.out = tensor.shape[0];
    part.stored_in = part.in = tensor.shape[1];
    return part;
}

Status cut(const char* what, StrView base, const Shard& shard, int64_t* first, int64_t* size) {
    if (*size % shard.world != 0) {
        return error(Code::invalid_argument, "{}: {} {} cannot be cut for {} ranks", base, *size,
                     what, shard.world);
    }
    *size /= shard.world;
    *first = shard.rank * *size;
    return {};
}

/// What a request asks for, checked against the checkpoint.
Result<Part> find_part(const WeightRequest& r) {
    if (r.source == nullptr || r.device == nullptr || r.shard.world < 1 || r.shard.rank < 0 ||
        r.shard.rank >= r.shard.world || r.groups != 1) {
        return error(Code::invalid_argument,
                     "{}: needs a source, a device, one group (has {}) and a rank below world "
                     "(has {} of {})",
                     r.base, r.groups, r.shard.rank, r.shard.world);
    }
    TENON_ASSIGN(Part part, find_matrix(*r.source, r.base));
    if ((r.in_features != 0 && r.in_features != part.in) ||
        (r.out_features != 0 && r.out_features != part.out)) {
        return error(Code::invalid_argument, "{}: stored as [{}, {}], the model expects [{}, {}]",
                     r.base, part.out, part.in, r.out_features, r.in_features);
    }
    switch (r.shard.axis) {
        case ShardAxis::none:
            break;
        case ShardAxis::out:
            TENON_TRY(cut("rows", r.base, r.shard, &part.first_out, &part.out));
            break;
        case ShardAxis::in:
            TENON_TRY(cut("columns", r.base, r.shard, &part.first_in, &part.in));
            break;
        default:
            return error(Code::unsupported, "{}: this format has no groups and experts to cut",
                         r.base);
    }
    return part;
}

class Weight final : public Implements<Weight, QuantWeight, QuantDequant> {
  public:
    Weight(std::string name, const Part& part, Ref<Buffer> buffer, ParallelFor* pool)
        : name_(std::move(name)), part_(part), buffer_(std::move(buffer)), pool_(pool) {}
    ~Weight() = default;

    // Both facets are Objects; this says which one's methods are meant.
    void* query(StrView facet) noexcept override { return Implements::query(facet); }
    void release() noexcept override { delete this; }

    QuantInfo info() noexcept override { return describe_part(part_); }
    int64_t device_bytes() noexcept override { return part_.out * part_.in * 2; }
    int64_t scratch_bytes(int64_t, Regime, DType) noexcept override { return 0; }

    /// Each output is one sum in index order, so its bits depend on its own row of x and on nothing
    /// else.
    Status linear(const LinearArgs& args, Stream&) noexcept override {
        return guard([&]() -> Status {
            const int64_t rows = args.x.shape[0];
            TENON_TRY(check("x", args.x, rows, part_.in, args.x.dtype == DType::bf16));
            TENON_TRY(check("y", args.y, rows, part_.out,
                            args.y.dtype == DType::bf16 || args.y.dtype == DType::f32));
            parallel_for(pool_, part_.out, kOutputsPerTask,
                         [&](int64_t begin, int64_t end, int32_t) {
                             for (int64_t t = 0; t < rows; ++t) {
                                 multiply_row(args, t, begin, end);
                             }
                         });
            return {};
        });
    }

    Status dequantize(int64_t row0, const TensorView& dst) noexcept override {
        if (dst.rank != 2 || dst.dtype != DType::f32 || dst.shape[1] != part_.in || row0 < 0 ||
            dst.shape[0] < 0 || dst.shape[0] > part_.out - row0) {
            return error(Code::invalid_argument, "{}: dst is {}, the weight [{}, {}]", name_,
                         describe(dst), part_.out, part_.in);
        }
        for (int64_t o = 0; o < dst.shape[0]; ++o) {
            for (int64_t i = 0; i < part_.in; ++i) {
                dst.row<float>(o)[i] = bf16_to_f32(values()[(row0 + o) * part_.in + i]);
            }
        }
        return {};
    }

  private:
    const uint16_t* values() const { return static_cast<const uint16_t*>(buffer_->data()); }

    Status check(const char* field, const TensorView& v, int64_t rows, int64_t width,
                 bool dtype_fits) const {
        if (v.rank == 2 && v.shape[0] == rows && v.shape[1] == width && dtype_fits &&
            (rows == 0 || !v.null())) {
            return {};
        }
        return error(Code::invalid_argument, "{}: {} is {}, expected [{}, {}]", name_, field,
                     describe(v), rows, width);
    }

    void multiply_row(const LinearArgs& args, int64_t t, int64_t begin, int64_t end) const {
        const uint16_t* x = args.x.row<uint16_t>(t);
        for (int64_t o = begin; o < end; ++o) {
            const uint16_t* w = values() + o * part_.in;
            float sum = 0;
            for (int64_t i = 0; i < part_.in; ++i) {
                sum += bf16_to_f32(x[i]) * bf16_to_f32(w[i]);
            }
            if (args.y.dtype == DType::f32) {
                args.y.row<float>(t)[o] = sum;
            } else {
                args.y.row<uint16_t>(t)[o] = f32_to_bf16(sum);
            }
        }
    }

    const std::string name_;
    const Part part_;
    const Ref<Buffer> buffer_;
    ParallelFor* const pool_;
};

class Format final : public Implements<Format, QuantFormat> {
  public:
    ~Format() = default;

    Status inspect(WeightSource& source, StrView base, QuantInfo* out) noexcept override {
        return guard([&]() -> Status {
            TENON_ASSIGN(const Part part, find_matrix(source, base));
            *out = describe_part(part);
            return {};
        });
    }

    Status plan_bytes(const WeightRequest& request, int64_t* out) noexcept override {
        return guard([&]() -> Status {
            TENON_ASSIGN(const Part part, find_part(request));
            *out = part.out * part.in * 2;
            return {};
        });
    }

    Status load(const WeightRequest& request, QuantWeight** out) noexcept override {
        return guard([&]() -> Status {
            TENON_ASSIGN(const Part part, find_part(request));
            if (!request.device->info().cpu) {
                return error(Code::unsupported, "{}: this format multiplies on the CPU only",
                             request.base);
            }
            Ref<Buffer> buffer;
            BufferDesc desc;
            desc.bytes = part.out * part.in * 2;
            desc.tag = "weights";
            TENON_TRY(request.device->allocate(desc, buffer.out()));
            TENON_TRY(read_part(request, part, static_cast<uint16_t*>(buffer->data())));
            *out = new Weight(request.base.str(), part, std::move(buffer),
                              facet_of<ParallelFor>(request.device));
            return {};
        });
    }

    // The model then loads and multiplies one by one.
    Status load_group(Span<const WeightRequest>, QuantGroup**) noexcept override {
        return error(Code::unsupported, "{}: no groups", kName);
    }
    Status load_experts(const ExpertsRequest& request, QuantExperts**) noexcept override {
        return error(Code::unsupported, "{}: no experts ({})", kName, request.prefix);
    }

  private:
    static Status read_part(const WeightRequest& r, const Part& part, uint16_t* values) {
        const std::string tensor = r.base.str() + ".weight";
        // Each read is one of the disk: whole rows lie together, cut ones do not.
        const int64_t rows_a_read = part.in == part.stored_in ? part.out : 1;
        for (int64_t o = 0; o < part.out; o += rows_a_read) {
            const int64_t at = (part.first_out + o) * part.stored_in + part.first_in;
            TENON_TRY(r.source->read(tensor, static_cast<uint64_t>(at) * 2,
                                     static_cast<uint64_t>(rows_a_read * part.in) * 2,
                                     values + o * part.in));
        }
        return {};
    }
};

Status probe(const ProbeEnv&, ProbeResult* result) noexcept {
    result->score = 10;
    set_text(result->reason, "plain loops over bf16");
    return {};
}

Status create(Host&, const Options&, Object** out) noexcept {
    return guard([&] { *out = new Format; });
}

constexpr Component kComponents[] = {{.struct_size = sizeof(Component),
                                      .kind = PluginKind::quant,
                                      .name = kName,
                                      .summary = "bf16 matrices, plain loops",
                                      .options = {},
                                      .needs = {},
                                      .probe = &probe,
                                      .create = &create}};

}  // namespace
}  // namespace tenon::my_quant

TENON_PLUGIN("my_quant", "0.1.0", "bf16 weights multiplied with plain loops", "MIT", stable,
             tenon::my_quant::kComponents)
