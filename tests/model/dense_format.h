// SPDX-License-Identifier: MIT
// A slow format that decodes bf16, f32, F8 and F4 matrices to f32 at load and multiplies in f64. It
// offers neither groups nor experts, so a model must compose them.
#pragma once

#include "tenon/numeric.h"
#include "tenon/quant.h"

namespace tenon::testing {

class DenseFormat final : public QuantFormat {
  public:
    void* query(StrView facet) noexcept override {
        return facet == StrView(QuantFormat::kFacet) ? static_cast<QuantFormat*>(this) : nullptr;
    }
    void release() noexcept override {}

    Status inspect(WeightSource& source, StrView base, QuantInfo* out) noexcept override {
        TensorInfo info;
        TENON_TRY(source.find(base.str() + ".weight", &info));
        out->out_features = info.shape[0];
        out->in_features = info.dtype == DType::i8 ? info.shape[1] * 2 : info.shape[1];
        out->bytes = static_cast<int64_t>(info.bytes);
        return {};
    }
    Status plan_bytes(const WeightRequest& r, int64_t* out) noexcept override {
        *out = r.in_features * r.out_features * 4 / r.shard.world;
        return {};
    }
    Status load_group(Span<const WeightRequest>, QuantGroup**) noexcept override {
        return error(Code::unsupported, "no groups");
    }
    Status load_experts(const ExpertsRequest&, QuantExperts**) noexcept override {
        return error(Code::unsupported, "no experts");
    }
    Status load(const WeightRequest& r, QuantWeight** out) noexcept override {
        return guard([&]() -> Status {
            QuantInfo info;
            TENON_TRY(inspect(*r.source, r.base, &info));
            if (info.in_features != r.in_features || info.out_features != r.out_features) {
                return error(Code::invalid_argument, "{}: [{}, {}], expected [{}, {}]", r.base,
                             info.out_features, info.in_features, r.out_features, r.in_features);
            }
            std::vector<float> all;
            TENON_TRY(decode(*r.source, r.base.str(), &all));
            auto weight = new Weight;
            const int64_t rows = info.out_features;
            const int64_t width = info.in_features;
            const bool by_rows = r.shard.axis == ShardAxis::out || r.shard.axis == ShardAxis::group;
            const int64_t row0 = by_rows ? rows / r.shard.world * r.shard.rank : 0;
            weight->out = by_rows ? rows / r.shard.world : rows;
            const int64_t col0 =
                r.shard.axis == ShardAxis::in ? width / r.shard.world * r.shard.rank : 0;
            weight->in = r.shard.axis == ShardAxis::in ? width / r.shard.world : width;
            weight->groups = r.shard.axis == ShardAxis::group ? r.groups / r.shard.world : r.groups;
            for (int64_t o = 0; o < weight->out; ++o) {
                const auto first = all.begin() + (row0 + o) * width + col0;
                weight->w.insert(weight->w.end(), first, first + weight->in);
            }
            *out = weight;
            return {};
        });
    }

  private:
    class Weight final : public Implements<Weight, QuantWeight> {
      public:
        std::vector<float> w;  ///< [out, in]
        int64_t in = 0, out = 0;
        int32_t groups = 1;

        QuantInfo info() noexcept override {
            QuantInfo i;
            i.in_features = in;
            i.out_features = out;
            i.groups = groups;
            return i;
        }
        int64_t device_bytes() noexcept override { return static_cast<int64_t>(w.size()) * 4; }
        int64_t scratch_bytes(int64_t, Regime, DType) noexcept override { return 0; }
        Status linear(const LinearArgs& args, Stream&) noexcept override {
            const int64_t per_group = out / groups;
            for (int64_t t = 0; t < args.x.shape[0]; ++t) {
                for (int64_t o = 0; o < out; ++o) {
                    const int64_t at = t * args.x.stride[0] + o / per_group * in;
                    const float* row = w.data() + o * in;
                    double sum = 0;
                    for (int64_t i = 0; i < in; ++i) {
                        const float x = args.x.dtype == DType::f32
                                            ? args.x.as<float>()[at + i]
                                            : bf16_to_f32(args.x.as<uint16_t>()[at + i]);
                        sum += static_cast<double>(x) * row[i];
                    }
                    const int64_t y = t * args.y.stride[0] + o;
                    if (args.y.dtype == DType::f32) {
                        args.y.as<float>()[y] = static_cast<float>(sum);
                    } else {
                        args.y.as<uint16_t>()[y] = f32_to_bf16(static_cast<float>(sum));
                    }
                }
            }
            return {};
        }
    };

    static Status decode(WeightSource& source, const std::string& base, std::vector<float>* out) {
        TensorView w;
        TensorView scale;
        TENON_TRY(source.map(base + ".weight", &w));
        const bool scaled = w.dtype == DType::e4m3 || w.dtype == DType::i8;
        if (scaled) {
            TENON_TRY(source.map(base + ".scale", &scale));
        }
        const int64_t width = w.dtype == DType::i8 ? w.shape[1] * 2 : w.shape[1];
        for (int64_t o = 0; o < w.shape[0]; ++o) {
            for (int64_t i = 0; i < width; ++i) {
                const int64_t at = o * width + i;
                float v = 0;
                if (w.dtype == DType::bf16) {
                    v = bf16_to_f32(w.as<uint16_t>()[at]);
                } else if (w.dtype == DType::f32) {
                    v = w.as<float>()[at];
                } else if (w.dtype == DType::e4m3) {
                    v = e4m3_to_f32(w.as<uint8_t>()[at]) *
                        e8m0_to_f32(scale.as<uint8_t>()[o / 32 * scale.shape[1] + i / 32]);
                } else {
                    const uint8_t byte = w.as<uint8_t>()[at / 2];
                    v = e2m1_to_f32(static_cast<uint8_t>(at % 2 == 0 ? byte & 15 : byte >> 4)) *
                        e8m0_to_f32(scale.as<uint8_t>()[o * scale.shape[1] + i / 32]);
                }
                out->push_back(v);
            }
        }
        return {};
    }
};

}  // namespace tenon::testing
