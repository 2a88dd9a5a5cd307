// SPDX-License-Identifier: MIT
// The QuantFormat that is the same for every format: single weights, groups and experts from named,
// cut parts.
#pragma once

#include "backend.h"

namespace tenon::quant {

/// What one request found: the parts to load and what describes them. `Stored` keeps alive what the
/// parts point to.
template <class Part, class Stored>
struct Loaded {
    std::vector<Stored> stored;
    std::vector<Part> parts;  ///< one, or one per group of a block-diagonal weight
    QuantInfo info;           ///< of the parts
};

/// Codec supplies, by name:
///
/// Part, Stored  what a request loads, and what keeps alive the bytes that parts point to
/// kName         the format's name in messages
/// inspect       (WeightSource&, const std::string& base, QuantInfo*) const
/// prepare       (const WeightRequest&, Want, Loaded<Part, Stored>*) const; not_found: not my
/// format backend       (StrView base, Device*, std::unique_ptr<Backend<Part>>*) const check_expert
/// static, (const Part&, const std::string& base): may it be part of an expert?
template <class Codec>
class Format final : public Implements<Format<Codec>, QuantFormat> {
    using Part = typename Codec::Part;
    using Set = Loaded<Part, typename Codec::Stored>;

  public:
    explicit Format(Codec codec) : codec_(std::move(codec)) {}

    Status inspect(WeightSource& source, StrView base, QuantInfo* out) noexcept override {
        return guard([&]() -> Status {
            QuantInfo info;
            TENON_TRY(codec_.inspect(source, base.str(), &info));
            *out = info;
            return {};
        });
    }

    Status load(const WeightRequest& request, QuantWeight** out) noexcept override {
        return guard([&]() -> Status {
            std::unique_ptr<Backend<Part>> backend;
            TENON_TRY(codec_.backend(request.base, request.device, &backend));
            Set set;
            TENON_TRY(prepare(request, backend->wants(), &set));
            return backend->weight(request.base.str(), set.info, set.parts, out);
        });
    }

    Status load_group(Span<const WeightRequest> requests, QuantGroup** out) noexcept override {
        return guard([&]() -> Status { return group(requests, out); });
    }

    Status load_experts(const ExpertsRequest& request, QuantExperts** out) noexcept override {
        return guard([&]() -> Status { return experts(request, out); });
    }

    Status plan_bytes(const WeightRequest& request, int64_t* out) noexcept override {
        return guard([&]() -> Status {
            std::unique_ptr<Backend<Part>> backend;
            TENON_TRY(codec_.backend(request.base, request.device, &backend));
            Set set;
            TENON_TRY(prepare(request, Want::shapes, &set));
            int64_t total = 0;
            for (const Part& part : set.parts) {
                total += backend->bytes(part);
            }
            *out = total;
            return {};
        });
    }

  private:
    Status prepare(const WeightRequest& r, Want want, Set* set) const {
        if (r.source == nullptr) {
            return error(Code::invalid_argument, "{}: was asked for without a weight source",
                         r.base);
        }
        if (r.groups < 1 || r.groups > packed::kMaxProducts) {
            return error(Code::invalid_argument, "{}: groups = {}, expected 1 to {}", r.base,
                         r.groups, packed::kMaxProducts);
        }
        if (r.in_features < 0 || r.out_features < 0 || r.out_features % r.groups != 0) {
            return error(Code::invalid_argument,
                         "{}: a request for {} inputs and {} outputs in {} groups", r.base,
                         r.in_features, r.out_features, r.groups);
        }
        TENON_TRY(packed::check_shard(r.base, r.shard));
        const ShardAxis axis = r.shard.axis;
        const bool fits = r.groups > 1 ? axis == ShardAxis::group
                                       : axis == ShardAxis::out || axis == ShardAxis::in;
        if (axis != ShardAxis::none && !fits) {
            return error(Code::invalid_argument, "{}: {} cannot be cut along axis {}", r.base,
                         r.groups > 1 ? "a block-diagonal weight is cut by groups; it"
                                      : "a matrix is cut by outputs or inputs; it",
                         axis);
        }
        return codec_.prepare(r, want, set);
    }

    Status group(Span<const WeightRequest> requests, QuantGroup** out) const {
        if (requests.empty() || requests.size > static_cast<uint64_t>(packed::kMaxProducts)) {
            return error(Code::unsupported, "{}: a group of {} matrices, expected 1 to {}",
                         Codec::kName, requests.size, packed::kMaxProducts);
        }
        std::unique_ptr<Backend<Part>> backend;
        std::vector<Set> sets(requests.size);
        std::vector<Part> parts;
        std::string name;
        for (uint64_t i = 0; i < requests.size; ++i) {
            const WeightRequest& r = requests[i];
            TENON_TRY(codec_.backend(r.base, r.device, &backend));
            if (r.groups != 1) {
                return error(Code::unsupported, "{}: a block-diagonal weight is not grouped",
                             r.base);
            }
            Status status = prepare(r, backend->wants(), &sets[i]);
            if (status.code() == Code::not_found) {
                return error(Code::unsupported, "{}: is not {}, so this group mixes formats",
                             r.base, Codec::kName);
            }
            TENON_TRY(std::move(status));
            parts.push_back(sets[i].parts[0]);
            if (sets[i].info.in_features != sets[0].info.in_features) {
                return error(Code::invalid_argument,
                             "{}: has {} inputs, but {} of its group has {}", r.base,
                             sets[i].info.in_features, requests[0].base, sets[0].info.in_features);
            }
            name += (i == 0 ? "" : "+") + r.base.str();
        }
        return backend->group(name, parts, out);
    }

    // One expert's three projections, cut by width if the shard says so.
    Status read_expert(const ExpertsRequest& r, const std::string& prefix, Want want,
                       std::vector<std::unique_ptr<Set>>* keep, ExpertParts<Part>* out) const {
        struct {
            const char* name;
            int64_t in, out;
            ShardAxis axis;
            std::optional<Part>* part;
        } const projections[] = {{"w1", r.hidden, r.intermediate, ShardAxis::out, &out->w1},
                                 {"w3", r.hidden, r.intermediate, ShardAxis::out, &out->w3},
                                 {"w2", r.intermediate, r.hidden, ShardAxis::in, &out->w2}};
        for (const auto& p : projections) {
            const std::string base = prefix + "." + p.name;
            WeightRequest w;
            w.base = base;
            w.in_features = p.in;
            w.out_features = p.out;
            w.source = r.source;
            w.shard = r.shard;
            w.shard.axis = r.shard.axis == ShardAxis::out ? p.axis : ShardAxis::none;
            keep->push_back(std::make_unique<Set>());
            Status status = prepare(w, want, keep->back().get());
            if (status.code() == Code::not_found) {
                return error(Code::unsupported,
                             "{}: is not {}; the experts of a layer must share one format", base,
                             Codec::kName);
            }
            TENON_TRY(std::move(status));
            TENON_TRY(Codec::check_expert(keep->back()->parts[0], base));
            *p.part = keep->back()->parts[0];
        }
        return {};
    }

    Status experts(const ExpertsRequest& r, QuantExperts** out) const {
        std::unique_ptr<Backend<Part>> backend;
        TENON_TRY(codec_.backend(r.prefix, r.device, &backend));
        if (r.experts < 1 || r.hidden < 1 || r.intermediate < 1) {
            return error(Code::invalid_argument,
                         "{}: {} experts of {} x {}, expected at least one of each", r.prefix,
                         r.experts, r.hidden, r.intermediate);
        }
        TENON_TRY(packed::check_shard(r.prefix, r.shard));
        const ShardAxis axis = r.shard.axis;
        if (axis == ShardAxis::in || axis == ShardAxis::group) {
            return error(Code::invalid_argument,
                         "{}: experts are cut by width (out) or by expert, not by axis {}",
                         r.prefix, axis);
        }
        const bool by_expert = axis == ShardAxis::expert;
        const packed::Cut mine =
            by_expert ? packed::cut_units(r.experts, r.shard) : packed::Cut{0, r.experts};
        ExpertsParts<Part> parts;
        parts.name = r.prefix.str();
        parts.hidden = r.hidden;
        parts.whole_width = axis != ShardAxis::out || r.shard.world == 1;
        parts.experts.resize(static_cast<size_t>(r.experts));
        std::vector<std::unique_ptr<Set>> keep;
        for (int64_t e = mine.first; e < mine.first + mine.count; ++e) {
            TENON_TRY(read_expert(r, format("{}.{}", r.prefix, e), backend->wants(), &keep,
                                  &parts.experts[static_cast<size_t>(e)]));
        }
        // Under expert sharding the shared expert counts once: on the last rank, so that a sum in
        // rank order adds it last.
        const bool shared_here = !by_expert || r.shard.rank == r.shard.world - 1;
        if (!r.shared_prefix.empty() && shared_here) {
            TENON_TRY(
                read_expert(r, r.shared_prefix.str(), backend->wants(), &keep, &parts.shared));
        }
        parts.intermediate = keep.empty() ? r.intermediate : keep[0]->info.out_features;
        return backend->experts(parts, out);
    }

    Codec codec_;
};

}  // namespace tenon::quant
