// SPDX-License-Identifier: MIT
// Experts whose matrices come from different formats: routing is read on the host, one product per
// expert.
#pragma once

#include "weight_loader.h"

namespace tenon::dsv41 {

struct ExpertMatrices {
    Linear w1, w3, w2;
};

/// The composition that the facet quant.experts/1 stands for (ops.md 1.7, 3.4). Only where the host
/// can read device memory.
class ExpertsByLinear final : public Implements<ExpertsByLinear, QuantExperts> {
  public:
    /// `whole`: this rank holds every expert's whole width, so down products are rounded to bf16.
    ExpertsByLinear(std::vector<ExpertMatrices> experts, ExpertMatrices shared, int64_t hidden,
                    int64_t width, bool whole)
        : experts_(std::move(experts)),
          shared_(std::move(shared)),
          hidden_(hidden),
          width_(width),
          whole_(whole) {}

    int64_t device_bytes() noexcept override;
    int64_t scratch_bytes(int64_t rows, int32_t k, Regime regime) noexcept override;
    Status run(const ExpertsArgs& args, Stream& stream) noexcept override;
    void keep_f32(bool on) noexcept override { keep_f32_ = on; }

  private:
    struct Layout;
    Layout layout(int64_t rows, int32_t k, Regime regime);
    int64_t inner_scratch(int64_t rows, Regime regime);
    Status product(const ExpertMatrices& e, const Layout& at, uint8_t* base, int64_t rows,
                   const float* weights, const ExpertsArgs& args, Stream& stream);

    std::vector<ExpertMatrices> experts_;
    ExpertMatrices shared_;
    int64_t hidden_, width_;
    bool whole_;
    bool keep_f32_ = false;
};

}  // namespace tenon::dsv41
