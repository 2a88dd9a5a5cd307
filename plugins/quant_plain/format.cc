// SPDX-License-Identifier: MIT
// Ordinary matrices as a quantisation format: finds `base.weight`, checks it against the request,
// cuts a rank's part.
#include "format.h"

#include <algorithm>

#include "backend_cuda.h"
#include "matrix.h"
#include "plugins/quant_common/format.h"
#include "tenon/plugin.h"

namespace tenon::plain {

namespace {

using Loaded = quant::Loaded<Part, Tensors>;

int64_t granule_out(Encoding e) {
    return e == Encoding::fp8 ? kScaleGroup : 1;
}
int64_t granule_in(Encoding e) {
    return has_scales(e) ? kScaleGroup : 1;
}

double bits_of(Encoding e) {
    return static_cast<double>(row_bytes(e, 32)) / 4.0;
}

QuantInfo describe(const Tensors& t) {
    QuantInfo info;
    info.in_features = t.in;
    info.out_features = t.out;
    info.bits = bits_of(t.encoding);
    info.bytes = t.bytes;
    info.granule_in = granule_in(t.encoding);
    info.granule_out = granule_out(t.encoding);
    set_text(info.codec, encoding_name(t.encoding));
    return info;
}

// A cut in whole granules, the last of which may be short.
Status cut(StrView base, const char* side, const Shard& shard, int64_t total, int64_t granule,
           int64_t* first, int64_t* count) {
    const packed::Cut units = packed::cut_units((total + granule - 1) / granule, shard);
    if (units.count == 0) {
        return error(Code::invalid_argument,
                     "{}: {} {} in steps of {} are too few to give each of {} ranks its share",
                     base, total, side, granule, shard.world);
    }
    *first = units.first * granule;
    *count = std::min(units.count * granule, total - *first);
    return {};
}

class Codec {
  public:
    using Part = plain::Part;
    using Stored = Tensors;
    static constexpr const char* kName = "plain";

    explicit Codec(bool activation_quant) : activation_quant_(activation_quant) {}

    Status inspect(WeightSource& source, const std::string& base, QuantInfo* out) const {
        Tensors t;
        TENON_TRY(read_tensors(source, base, Want::shapes, &t));
        *out = describe(t);
        return {};
    }

    Status prepare(const WeightRequest& r, Want want, Loaded* out) const {
        out->stored.resize(1);
        Tensors& t = out->stored[0];
        TENON_TRY(read_tensors(*r.source, r.base.str(), want, &t));
        if ((r.out_features != 0 && r.out_features != t.out) ||
            (r.in_features != 0 && r.in_features != t.in) || t.out % r.groups != 0) {
            return error(Code::invalid_argument,
                         "{}.weight: is [{}, {}] ({}), expected [{}, {}] in {} groups", r.base,
                         t.out, t.in, encoding_name(t.encoding),
                         r.out_features != 0 ? r.out_features : t.out,
                         r.in_features != 0 ? r.in_features : t.in, r.groups);
        }
        Part part{&t, 0, t.out, 0, t.in, false};
        part.quantise_input = activation_quant_ && r.activation_quant && has_scales(t.encoding);
        int64_t groups = r.groups;
        if (r.shard.axis == ShardAxis::in) {
            TENON_TRY(
                cut(r.base, "inputs", r.shard, t.in, granule_in(t.encoding), &part.i0, &part.in));
        } else if (r.shard.axis == ShardAxis::out) {
            TENON_TRY(cut(r.base, "outputs", r.shard, t.out, granule_out(t.encoding), &part.o0,
                          &part.out));
        } else if (r.shard.axis == ShardAxis::group) {
            int64_t first = 0;
            TENON_TRY(cut(r.base, "groups", r.shard, r.groups, 1, &first, &groups));
            part.o0 = first * (t.out / r.groups);
            part.out = groups * (t.out / r.groups);
        }
        if (want == Want::data) {
            TENON_TRY(check_values(part));
        }
        const int64_t width = part.out / groups;
        for (int64_t g = 0; g < groups; ++g) {
            Part one = part;
            one.o0 += g * width;
            one.out = width;
            out->parts.push_back(one);
        }
        out->info = describe(t);
        out->info.groups = static_cast<int32_t>(groups);
        out->info.in_features = part.in;
        out->info.out_features = part.out;
        return {};
    }

    Status backend(StrView base, Device* device, std::unique_ptr<quant::Backend<Part>>* out) const {
        if (device != nullptr && !device->info().cpu) {
            return make_cuda_backend(base, *device, out);
        }
        TENON_TRY(packed::check_device(kName, base, device));
        *out = make_cpu_backend(*device);
        return {};
    }

    static Status check_expert(const Part&, const std::string&) { return {}; }

  private:
    bool activation_quant_;
};

}  // namespace

QuantFormat* make_format(bool activation_quant) {
    return new quant::Format<Codec>(Codec(activation_quant));
}

}  // namespace tenon::plain
