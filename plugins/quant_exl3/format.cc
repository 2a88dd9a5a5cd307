// SPDX-License-Identifier: MIT
// EXL3 as a quantisation format: finds matrices by name, checks them against the request, cuts a
// rank's part.
#include "format.h"

#include <algorithm>

#include "backend_cuda.h"
#include "matrix.h"
#include "plugins/quant_common/format.h"
#include "tenon/plugin.h"

namespace tenon::exl3 {

namespace {

using quant::Want;
using Loaded = quant::Loaded<Part, Tensors>;

int64_t padded(int64_t channels) {
    return (channels + kRotation - 1) / kRotation * kRotation;
}

Part whole(const Tensors& t) {
    Part part;
    part.tensors = &t;
    part.k = part.in = t.k;
    part.n = part.out = t.n;
    part.with_bias = t.has_bias;
    return part;
}

// Takes slices as groups, or splits one matrix that holds all groups side by side (columns).
Status list_groups(const WeightRequest& r, const std::vector<Tensors>& tensors,
                   std::vector<Part>* parts) {
    const auto stored = static_cast<int64_t>(tensors.size());
    if (stored > 1 || r.groups == 1) {
        if (stored != r.groups) {
            return error(Code::invalid_argument, "{}: holds {} slices, expected {}", r.base, stored,
                         r.groups);
        }
        for (const Tensors& t : tensors) {
            parts->push_back(whole(t));
        }
        return {};
    }
    const Tensors& t = tensors[0];
    const int64_t width = t.n / r.groups;
    if (width % kRotation != 0 || width * r.groups != t.n) {
        return error(Code::invalid_argument,
                     "{}: {} output channels cannot be cut into {} groups of whole rotations (128)",
                     r.base, t.n, r.groups);
    }
    for (int64_t g = 0; g < r.groups; ++g) {
        parts->push_back({&t, 0, t.k, g * width, width, t.k, width, t.has_bias});
    }
    return {};
}

// Sets the model's own widths, which may be smaller than the stored multiples of 128.
Status set_widths(StrView base, int64_t in_features, int64_t out_features, Part* part) {
    const auto check = [&](const char* side, int64_t found, int64_t wanted) -> Status {
        if (wanted == 0 || padded(wanted) == found) {
            return {};
        }
        return error(Code::invalid_argument, "{}: trellis has {} {} channels, expected {}{}", base,
                     found, side, padded(wanted),
                     wanted % kRotation == 0 ? "" : " (padded to 128)");
    };
    TENON_TRY(check("input", part->k, in_features));
    TENON_TRY(check("output", part->n, out_features));
    part->in = in_features != 0 ? in_features : part->k;
    part->out = out_features != 0 ? out_features : part->n;
    return {};
}

Status too_few(StrView base, int64_t found, const char* what, int32_t world) {
    return error(Code::invalid_argument, "{}: {} {} are too few to give each of {} ranks its share",
                 base, found, what, world);
}

Status cut_part(StrView base, const Shard& shard, Part* part) {
    const bool by_out = shard.axis == ShardAxis::out;
    if (shard.axis == ShardAxis::none) {
        return {};
    }
    const packed::Cut cut = packed::cut_units((by_out ? part->n : part->k) / kRotation, shard);
    if (cut.count == 0) {
        return too_few(base, (by_out ? part->n : part->k) / kRotation, "rotations of 128 channels",
                       shard.world);
    }
    const int64_t first = cut.first * kRotation;
    const int64_t count = cut.count * kRotation;
    if (by_out) {
        part->n0 += first;
        part->n = count;
        part->out = std::min(count, part->out - first);
    } else {
        part->k0 += first;
        part->k = count;
        part->in = std::min(count, part->in - first);
        // The ranks' partial outputs are added up, so the bias may appear in only one of them.
        part->with_bias = part->with_bias && shard.rank == 0;
    }
    return {};
}

QuantInfo describe_parts(const std::vector<Part>& parts, const std::vector<Tensors>& tensors) {
    QuantInfo info;
    const Tensors& first = *parts[0].tensors;
    bool mixed = false;
    double bits = 0;
    for (const Part& p : parts) {
        mixed =
            mixed || p.tensors->twice_k != first.twice_k || p.tensors->codebook != first.codebook;
        bits += p.tensors->twice_k / 2.0;
    }
    info.groups = static_cast<int32_t>(parts.size());
    info.in_features = parts[0].in;
    info.out_features = parts[0].out * info.groups;
    info.bits = bits / static_cast<double>(parts.size());
    for (const Tensors& t : tensors) {
        info.bytes += t.bytes;
    }
    info.granule_in = kRotation;
    info.granule_out = kRotation;
    set_text(info.codec,
             mixed ? std::string("exl3 mixed")
                   : tenon::format("exl3 {} K={}", codebook_name(first.codebook), info.bits));
    return info;
}

struct Codec {
    using Part = exl3::Part;
    using Stored = Tensors;
    static constexpr const char* kName = "exl3";

    Status inspect(WeightSource& source, const std::string& base, QuantInfo* out) const {
        std::vector<Tensors> tensors;
        TENON_TRY(read_groups(source, base, Want::shapes, &tensors));
        std::vector<Part> parts;
        for (const Tensors& t : tensors) {
            parts.push_back(whole(t));
        }
        *out = describe_parts(parts, tensors);
        return {};
    }

    Status prepare(const WeightRequest& r, Want want, Loaded* out) const {
        TENON_TRY(read_groups(*r.source, r.base.str(), want, &out->stored));
        std::vector<Part> all;
        TENON_TRY(list_groups(r, out->stored, &all));
        for (Part& part : all) {
            TENON_TRY(set_widths(r.base, r.in_features, r.out_features / r.groups, &part));
            for (const Tensors& t : out->stored) {
                part.stored += t.k * t.n;
            }
        }
        if (r.shard.axis == ShardAxis::group) {
            const packed::Cut cut = packed::cut_units(r.groups, r.shard);
            if (cut.count == 0) {
                return too_few(r.base, r.groups, "groups", r.shard.world);
            }
            all = std::vector<Part>(all.begin() + cut.first, all.begin() + cut.first + cut.count);
        } else {
            TENON_TRY(cut_part(r.base, r.shard, &all[0]));
        }
        out->parts = std::move(all);
        out->info = describe_parts(out->parts, out->stored);
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

    static Status check_expert(const Part& part, const std::string& base) {
        if (part.with_bias) {
            return error(Code::unsupported, "{}.bias: experts with a bias are not supported", base);
        }
        return {};
    }
};

}  // namespace

QuantFormat* make_format() {
    return new quant::Format<Codec>(Codec{});
}

}  // namespace tenon::exl3
