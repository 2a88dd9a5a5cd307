// SPDX-License-Identifier: MIT
// The format chain, cuts by rank, and plain tensors.
#include "weight_loader.h"

#include <algorithm>

#include "experts_by_linear.h"
#include "plugins/quant_common/timed_read.h"
#include "plugins/quant_common/weight_pipe.h"
#include "tenon/numeric.h"

namespace tenon::dsv41 {

namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string out = "[";
    for (size_t i = 0; i < shape.size(); ++i) {
        out += (i ? ", " : "") + std::to_string(shape[i]);
    }
    return out + "]";
}

std::string shape_text(const TensorInfo& info) {
    return shape_text(std::vector<int64_t>(info.shape, info.shape + info.rank));
}

const char* type_text(PlainType type) {
    return type == PlainType::bf16 ? "bf16" : "bf16 or f32";
}

// bf16 anywhere in memory.
void widen(const uint8_t* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, from + 2 * i, sizeof bits);
        to[i] = bf16_to_f32(bits);
    }
}

}  // namespace

int64_t LinearGroup::scratch_bytes(int64_t rows, Regime regime, Span<const DType> ys) const {
    if (group) {
        return group->scratch_bytes(rows, regime);
    }
    int64_t most = 0;
    for (size_t i = 0; i < members.size(); ++i) {
        if (members[i]) {
            most = std::max(most, members[i].weight->scratch_bytes(rows, regime, ys[i]));
        }
    }
    return most;
}

Status LinearGroup::run(const TensorView& x, Span<const TensorView> ys, Regime regime,
                        const TensorView& scratch, Stream& stream) const {
    if (group) {
        return group->linear(x, ys, regime, scratch, stream);
    }
    for (size_t i = 0; i < members.size(); ++i) {
        TENON_TRY(members[i].weight->linear({x, ys[i], regime, scratch}, stream));
    }
    return {};
}

bool WeightLoader::has(const std::string& name) {
    TensorInfo info;
    return source_.find(name, &info).ok();
}

Status WeightLoader::find_format(const std::string& base, QuantFormat** out) {
    for (QuantFormat* format : formats_) {
        QuantInfo info;
        Status status = format->inspect(source_, base, &info);
        if (status.ok()) {
            *out = format;
            return {};
        }
        if (status.code() != Code::not_found) {
            return status.with_context(base);
        }
    }
    return error(Code::not_found,
                 "{}: no format of the chain knows a matrix of that name ({} formats asked); is "
                 "the checkpoint "
                 "complete, and does [quant] name the format that it is packed in?",
                 base, formats_.size);
}

int64_t WeightLoader::local_out(const MatrixDesc& desc) const {
    const bool cut = desc.axis == ShardAxis::out || desc.axis == ShardAxis::group;
    return cut ? desc.out / world_ : desc.out;
}

Status WeightLoader::request_for(const MatrixDesc& desc, WeightRequest* out) {
    out->base = desc.base;
    out->in_features = desc.in;
    out->out_features = desc.out;
    out->groups = desc.groups;
    out->shard = {world_ == 1 ? ShardAxis::none : desc.axis, world_ == 1 ? 0 : rank_, world_};
    if (desc.axis == ShardAxis::none) {
        out->shard = {};
    }
    out->activation_quant = desc.activation_quant;
    out->source = &source_;
    out->device = planning() ? plan_device_ : device_;
    out->stream = stream_;
    return {};
}

Status WeightLoader::count_matrix(QuantFormat& format, const MatrixDesc& desc) {
    WeightRequest request;
    TENON_TRY(request_for(desc, &request));
    int64_t bytes = 0;
    TENON_TRY_CTX(format.plan_bytes(request, &bytes), "{}", desc.base);
    bytes_[tag_] += bytes;
    largest_ = std::max(largest_, bytes);
    return {};
}

Status WeightLoader::load_one(QuantFormat& format, const MatrixDesc& desc, Linear* out) {
    out->out = local_out(desc);
    if (planning()) {
        return count_matrix(format, desc);
    }
    WeightRequest request;
    TENON_TRY(request_for(desc, &request));
    TENON_TRY_CTX(format.load(request, out->weight.out()), "{}", desc.base);
    bytes_[tag_] += out->weight->device_bytes();
    return {};
}

Status WeightLoader::matrix(const MatrixDesc& desc, Linear* out) {
    QuantFormat* format = nullptr;
    TENON_TRY(find_format(desc.base, &format));
    return load_one(*format, desc, out);
}

Status WeightLoader::group(const std::vector<MatrixDesc>& descs, bool single, LinearGroup* out) {
    out->members.clear();
    out->members.resize(descs.size());
    std::vector<QuantFormat*> formats(descs.size());
    bool same = !single && descs.size() > 1;
    for (size_t i = 0; i < descs.size(); ++i) {
        TENON_TRY(find_format(descs[i].base, &formats[i]));
        same = same && formats[i] == formats[0];
    }
    if (same && !planning()) {
        std::vector<WeightRequest> requests(descs.size());
        for (size_t i = 0; i < descs.size(); ++i) {
            TENON_TRY(request_for(descs[i], &requests[i]));
            out->members[i].out = local_out(descs[i]);
        }
        Status status = formats[0]->load_group(requests, out->group.out());
        if (status.ok()) {
            bytes_[tag_] += out->group->device_bytes();
            return {};
        }
        out->group.reset();
        if (status.code() != Code::unsupported) {
            return status.with_context(descs[0].base);
        }
    }
    for (size_t i = 0; i < descs.size(); ++i) {
        TENON_TRY(load_one(*formats[i], descs[i], &out->members[i]));
    }
    return {};
}

std::vector<MatrixDesc> WeightLoader::expert_matrices(const ExpertsDesc& desc) const {
    std::vector<MatrixDesc> all;
    const auto add = [&](const std::string& prefix) {
        all.push_back({prefix + ".w1", desc.hidden, desc.width, 1, ShardAxis::out, true});
        all.push_back({prefix + ".w3", desc.hidden, desc.width, 1, ShardAxis::out, true});
        all.push_back({prefix + ".w2", desc.width, desc.hidden, 1, ShardAxis::in, true});
    };
    for (int32_t e = 0; e < desc.experts; ++e) {
        add(desc.prefix + "." + std::to_string(e));
    }
    if (!desc.shared_prefix.empty()) {
        add(desc.shared_prefix);
    }
    return all;
}

Status WeightLoader::experts(const ExpertsDesc& desc, Ref<QuantExperts>* out) {
    const std::vector<MatrixDesc> all = expert_matrices(desc);
    QuantFormat* first = nullptr;
    bool same = true;
    for (const MatrixDesc& m : all) {
        QuantFormat* format = nullptr;
        TENON_TRY(find_format(m.base, &format));
        first = first == nullptr ? format : first;
        same = same && format == first;
        if (planning()) {
            TENON_TRY(count_matrix(*format, m));
        }
    }
    if (planning()) {
        return {};
    }
    if (same) {
        ExpertsRequest request;
        request.prefix = desc.prefix;
        request.shared_prefix = desc.shared_prefix;
        request.experts = desc.experts;
        request.hidden = desc.hidden;
        request.intermediate = desc.width;
        if (world_ > 1) {
            request.shard = {ShardAxis::out, rank_, world_};
        }
        request.source = &source_;
        request.device = device_;
        request.stream = stream_;
        Status status = first->load_experts(request, out->out());
        if (status.ok()) {
            bytes_[tag_] += (*out)->device_bytes();
            return {};
        }
        out->reset();
        if (status.code() != Code::unsupported) {
            return status.with_context(desc.prefix);
        }
    }
    return experts_by_matrix(desc, out);
}

Status WeightLoader::experts_by_matrix(const ExpertsDesc& desc, Ref<QuantExperts>* out) {
    if (!device_->info().cpu) {
        return error(
            Code::unsupported,
            "{}: no format offers the facet {} for these experts (they mix formats), and without "
            "it the "
            "host would have to read the routing, which only works with compute plugin 'cpu'",
            desc.prefix, QuantExperts::kFacet);
    }
    std::vector<ExpertMatrices> experts;
    const std::vector<MatrixDesc> all = expert_matrices(desc);
    for (size_t i = 0; i < all.size(); i += 3) {
        ExpertMatrices e;
        TENON_TRY(matrix(all[i], &e.w1));
        TENON_TRY(matrix(all[i + 1], &e.w3));
        TENON_TRY(matrix(all[i + 2], &e.w2));
        experts.push_back(std::move(e));
    }
    ExpertMatrices shared;
    if (!desc.shared_prefix.empty()) {
        shared = std::move(experts.back());
        experts.pop_back();
    }
    out->reset(new ExpertsByLinear(std::move(experts), std::move(shared), desc.hidden,
                                   desc.width / world_, world_ == 1));
    return {};
}

// To host memory, from the mapping.
Status WeightLoader::copy_plain(const std::string& name, DType stored, int64_t first,
                                const TensorView& to) {
    TensorView source;
    TENON_TRY(source_.map(name, &source));
    const uint8_t* from = source.as<uint8_t>() + first;
    if (to.dtype == stored) {
        std::memcpy(to.data, from, static_cast<size_t>(to.bytes()));
    } else {
        widen(from, to.elements(), to.as<float>());
    }
    return {};
}

// To a device, past the page cache: large tensors through a pipe, as formats do.
Status WeightLoader::upload_plain(const std::string& name, DType stored, int64_t first,
                                  const TensorView& to) {
    constexpr int64_t kPiped = 1 << 20;
    if (to.dtype == stored && to.bytes() >= kPiped) {
        quant::WeightPipe pipe(*device_, *stream_);
        quant::PipeJob job;
        job.source = &source_;
        job.tensor = name;
        job.offset = first;
        job.row_bytes = to.bytes();
        job.to = to.data;
        TENON_TRY(pipe.add(job));
        TENON_TRY(pipe.start());
        TENON_TRY(pipe.next());
        return pipe.drain();
    }
    const int64_t bytes = to.elements() * dtype_bytes(stored);
    TENON_ASSIGN(std::vector<uint8_t> read,
                 quant::timed_read(source_, name, static_cast<uint64_t>(first),
                                   static_cast<uint64_t>(bytes), quant::PipeOptions().timeout_us));
    std::vector<float> widened;
    TensorView host = to;
    host.place = Place::host;
    host.data = read.data();
    if (to.dtype != stored) {
        widened.resize(static_cast<size_t>(to.elements()));
        widen(read.data(), to.elements(), widened.data());
        host.data = widened.data();
    }
    TENON_TRY(device_->copy(to, host, *stream_));
    return device_->synchronize(*stream_);
}

Status WeightLoader::plain(const PlainDesc& desc, TensorView* out) {
    TensorInfo info;
    TENON_TRY(source_.find(desc.name, &info));
    const bool shape_ok = info.rank == desc.shape.size() &&
                          std::equal(desc.shape.begin(), desc.shape.end(), info.shape);
    const bool type_ok =
        info.dtype == DType::bf16 || (info.dtype == DType::f32 && desc.type != PlainType::bf16);
    if (!shape_ok || !type_ok) {
        return error(Code::invalid_argument, "{}: {} {}, expected {} {}", desc.name,
                     dtype_name(info.dtype), shape_text(info), type_text(desc.type),
                     shape_text(desc.shape));
    }
    const DType dtype = desc.type == PlainType::f32 ? DType::f32 : info.dtype;
    TensorView local = make_view(static_cast<void*>(nullptr), dtype, {});
    local.rank = info.rank;
    int64_t stride = 1;
    for (int i = info.rank - 1; i >= 0; --i) {
        local.shape[i] = info.shape[i];
        local.stride[i] = stride;
        stride *= local.shape[i];
    }
    int64_t first_element = 0;
    if (desc.cut_rows && world_ > 1) {
        local.shape[0] /= world_;
        first_element = rank_ * local.shape[0] * local.stride[0];
    }
    bytes_[tag_] += local.bytes();
    *out = local;
    if (planning()) {
        return {};
    }

    Ref<Buffer> buffer;
    BufferDesc wanted;
    wanted.bytes = local.bytes();
    wanted.tag = tag_;
    TENON_TRY_CTX(device_->allocate(wanted, buffer.out()), "{}", desc.name);
    local.data = buffer->data();
    local.place = buffer->place();
    const int64_t first = first_element * dtype_bytes(info.dtype);
    TENON_TRY_CTX(local.place == Place::host ? copy_plain(desc.name, info.dtype, first, local)
                                             : upload_plain(desc.name, info.dtype, first, local),
                  "{}", desc.name);
    *out = local;
    buffers_.push_back(std::move(buffer));
    return {};
}

}  // namespace tenon::dsv41
