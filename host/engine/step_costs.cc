// SPDX-License-Identifier: MIT
// Look-up and smoothing of measured costs.
#include "host/engine/step_costs.h"

#include <algorithm>

namespace tenon::engine {
namespace {

constexpr double kMostDrift = 0.5;
constexpr double kWeight = 1.0 / 32;  // of one observation: a stray slow step moves nothing

double look_up(const std::vector<int64_t>& table, int64_t index) {
    if (table.empty() || index <= 0) {
        return 0;
    }
    const auto last = static_cast<int64_t>(table.size()) - 1;
    if (index <= last) {
        return static_cast<double>(table[static_cast<size_t>(index)]);
    }
    const auto at = [&](int64_t i) { return static_cast<double>(table[static_cast<size_t>(i)]); };
    const double slope = last > 0 ? at(last) - at(last - 1) : 0;
    return at(last) + std::max(slope, 0.0) * static_cast<double>(index - last);
}

void follow(double* factor, double expected, int64_t seen) {
    if (expected <= 0 || seen <= 0) {
        return;
    }
    const double ratio =
        std::clamp(static_cast<double>(seen) / expected, 1 - kMostDrift, 1 + kMostDrift);
    *factor += (ratio - *factor) * kWeight;
}

}  // namespace

void StepCosts::set(const CostTable& table) {
    window_us_.assign(table.window_us.begin(), table.window_us.end());
    draft_us_.assign(table.draft_us.begin(), table.draft_us.end());
    stage_us_.assign(table.stage_us.begin(), table.stage_us.end());
    shown_windows_ = window_us_;
    shown_stages_ = stage_us_;
    whole_chunk_us_ = 0;
    for (const int64_t us : stage_us_) {
        whole_chunk_us_ += us;
    }
    window_factor_ = draft_factor_ = chunk_factor_ = 1;
}

double StepCosts::window_us(int64_t rows) const {
    return look_up(window_us_, rows) * window_factor_;
}

double StepCosts::draft_us(int64_t streams) const {
    return look_up(draft_us_, streams) * draft_factor_;
}

double StepCosts::chunk_us(int64_t rows, int64_t chunk_rows) const {
    return chunk_rows <= 0 ? 0
                           : static_cast<double>(whole_chunk_us_) * chunk_factor_ *
                                 static_cast<double>(rows) / static_cast<double>(chunk_rows);
}

void StepCosts::observe(int64_t rows, int64_t streams, int64_t chunk, int64_t chunk_rows,
                        const StepTiming& timing) {
    if (rows > 0) {
        follow(&window_factor_, look_up(window_us_, rows), timing.windows);
    }
    if (streams > 0) {
        follow(&draft_factor_, look_up(draft_us_, streams), timing.drafts);
    }
    if (chunk > 0 && chunk_rows > 0) {
        follow(&chunk_factor_,
               static_cast<double>(whole_chunk_us_) * static_cast<double>(chunk) /
                   static_cast<double>(chunk_rows),
               timing.chunks);
    }
}

void StepCosts::publish() {
    const auto scale = [](const std::vector<int64_t>& from, double factor,
                          std::vector<int64_t>* to) {
        for (size_t i = 0; i < from.size(); ++i) {
            (*to)[i] = static_cast<int64_t>(static_cast<double>(from[i]) * factor);
        }
    };
    scale(window_us_, window_factor_, &shown_windows_);
    scale(stage_us_, chunk_factor_, &shown_stages_);
}

}  // namespace tenon::engine
