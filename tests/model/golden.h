// SPDX-License-Identifier: MIT
// Comparison of computed rows with golden tensors.
#pragma once

#include <algorithm>
#include <cmath>
#include <set>

#include "tenon/numeric.h"
#include "tenon/testing/safetensors.h"

namespace tenon::testing {

inline std::string golden_path(const std::string& name) {
    return std::string(TENON_FIXTURES) + "/golden/dsv41/" + name;
}

inline std::vector<int32_t> ints(const TensorView& v) {
    return {v.as<int32_t>(), v.as<int32_t>() + v.elements()};
}

inline std::vector<float> floats(const TensorView& v) {
    std::vector<float> out(static_cast<size_t>(v.elements()));
    for (size_t i = 0; i < out.size(); ++i) {
        out[i] = v.dtype == DType::bf16 ? bf16_to_f32(v.as<uint16_t>()[i]) : v.as<float>()[i];
    }
    return out;
}

/// How far rows of logits are from golden ones.
struct LogitDistance {
    double rms = 0;
    double furthest_row = 0, rms_but_one = 0;  ///< rms of that row, and of all the others
    double median_row_max = 0, largest = 0;
    int64_t wrong_argmax = 0;  ///< among rows whose golden gap is at least `sure_gap`
};

inline LogitDistance compare_logits(const std::vector<float>& found, const TensorView& golden,
                                    const TensorView& top_gap, double sure_gap) {
    const int64_t rows = golden.shape[0];
    const int64_t width = golden.shape[1];
    LogitDistance d;
    std::vector<double> row_max;
    double sum = 0;
    double furthest = 0;
    for (int64_t r = 0; r < rows; ++r) {
        const float* a = found.data() + r * width;
        const float* b = golden.as<float>() + r * width;
        const double before = sum;
        double most = 0;
        for (int64_t i = 0; i < width; ++i) {
            const double diff = std::abs(static_cast<double>(a[i]) - b[i]);
            sum += diff * diff;
            most = std::max(most, std::isnan(diff) ? 1e30 : diff);
        }
        row_max.push_back(most);
        furthest = std::max(furthest, sum - before);
        if (top_gap.as<float>()[r] >= sure_gap) {
            d.wrong_argmax +=
                std::max_element(a, a + width) - a != std::max_element(b, b + width) - b ? 1 : 0;
        }
    }
    d.rms = std::sqrt(sum / static_cast<double>(rows * width));
    d.furthest_row = std::sqrt(furthest / static_cast<double>(width));
    d.rms_but_one =
        rows > 1 ? std::sqrt((sum - furthest) / static_cast<double>((rows - 1) * width)) : 0;
    d.largest = *std::max_element(row_max.begin(), row_max.end());
    std::nth_element(row_max.begin(), row_max.begin() + rows / 2, row_max.end());
    d.median_row_max = row_max[static_cast<size_t>(rows / 2)];
    return d;
}

/// ||a - b|| / ||b||.
inline double relative_rms(const TensorView& a, const TensorView& b) {
    const std::vector<float> x = floats(a);
    const std::vector<float> y = floats(b);
    if (x.size() != y.size()) {
        return 1e30;
    }
    double diff = 0;
    double norm = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        diff += (static_cast<double>(x[i]) - y[i]) * (static_cast<double>(x[i]) - y[i]);
        norm += static_cast<double>(y[i]) * y[i];
    }
    return std::sqrt(diff / norm);
}

/// Share of equal values.
inline double equal_share(const TensorView& a, const TensorView& b) {
    const std::vector<float> x = floats(a);
    const std::vector<float> y = floats(b);
    if (x.size() != y.size()) {
        return 0;
    }
    size_t equal = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        equal += x[i] == y[i] ? 1 : 0;
    }
    return static_cast<double>(equal) / static_cast<double>(x.size());
}

/// Rows whose sets of ids differ; -1 is padding.
inline int64_t different_sets(const TensorView& a, const TensorView& b) {
    int64_t wrong = 0;
    for (int64_t r = 0; r < a.shape[0]; ++r) {
        const std::set<int32_t> x(a.row<int32_t>(r), a.row<int32_t>(r) + a.shape[1]);
        const std::set<int32_t> y(b.row<int32_t>(r), b.row<int32_t>(r) + b.shape[1]);
        wrong += x != y ? 1 : 0;
    }
    return wrong;
}

struct ChosenDistance {
    int64_t chosen = 0;       ///< golden entries
    int64_t missing = 0;      ///< of them not chosen by us
    int64_t wrong_count = 0;  ///< rows that choose another number
};

/// Lists (i32 [n, K], -1 padded) against a golden mask (u8 [n, groups]).
inline ChosenDistance compare_chosen(const TensorView& lists, const TensorView& mask) {
    ChosenDistance d;
    for (int64_t r = 0; r < mask.shape[0]; ++r) {
        const int32_t* list = lists.row<int32_t>(r);
        const std::set<int32_t> ours(list, list + lists.shape[1]);
        int64_t golden = 0;
        for (int64_t g = 0; g < mask.shape[1]; ++g) {
            if (mask.row<uint8_t>(r)[g] != 0) {
                ++golden;
                d.missing += ours.count(static_cast<int32_t>(g)) == 0 ? 1 : 0;
            }
        }
        d.chosen += golden;
        d.wrong_count +=
            static_cast<int64_t>(ours.size()) - (ours.count(-1) != 0 ? 1 : 0) != golden ? 1 : 0;
    }
    return d;
}

}  // namespace tenon::testing
