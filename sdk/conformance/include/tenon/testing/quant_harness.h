// SPDX-License-Identifier: MIT
// Helpers of tests of quantisation formats: plain-loop oracles, random rows, and calls with the
// right scratch.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tenon/numeric.h"
#include "tenon/quant.h"
#include "tenon/testing/host_device.h"
#include "tenon/testing/memory_source.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {

/// Memory aligned as ops.md 1.2 asks, filled with 0xFF so that undefined reads show as NaN.
class Bytes {
  public:
    explicit Bytes(int64_t size) : size_(size), words_(static_cast<size_t>(size / 8 + 40), ~0ull) {}
    void* data() {
        const auto at = reinterpret_cast<uintptr_t>(words_.data());
        return reinterpret_cast<void*>((at + 255) / 256 * 256);
    }
    TensorView view() { return make_view(size_ == 0 ? nullptr : data(), DType::u8, {size_}); }

  private:
    int64_t size_;
    std::vector<uint64_t> words_;
};

/// bf16 rows with a normal distribution.
inline std::vector<uint16_t> random_rows(int64_t count, uint32_t seed, float size = 1.0f) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0.0f, size);
    std::vector<uint16_t> x(static_cast<size_t>(count));
    for (uint16_t& v : x) {
        v = f32_to_bf16(normal(rng));
    }
    return x;
}

inline double relative_rms(const double* a, const double* b, int64_t count) {
    double difference = 0;
    double norm = 0;
    for (int64_t i = 0; i < count; ++i) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

/// [out, in], computed by the weight itself in double and rounded once.
inline std::vector<float> dequantized(QuantWeight& weight) {
    const QuantInfo info = weight.info();
    std::vector<float> w(static_cast<size_t>(info.out_features * info.in_features));
    auto* facet = facet_of<QuantDequant>(&weight);
    EXPECT_NE(facet, nullptr);
    TENON_EXPECT_OK(facet->dequantize(
        0, make_view(w.data(), DType::f32, {info.out_features, info.in_features})));
    return w;
}

/// y = x W^T with f64 sums. x holds bf16 rows.
inline std::vector<double> oracle(const std::vector<float>& w, const std::vector<uint16_t>& x,
                                  int64_t in) {
    const auto out = static_cast<int64_t>(w.size()) / in;
    const auto rows = static_cast<int64_t>(x.size()) / in;
    std::vector<double> y(static_cast<size_t>(rows * out));
    for (int64_t t = 0; t < rows; ++t) {
        for (int64_t o = 0; o < out; ++o) {
            double sum = 0;
            for (int64_t i = 0; i < in; ++i) {
                sum += static_cast<double>(w[static_cast<size_t>(o * in + i)]) *
                       static_cast<double>(bf16_to_f32(x[static_cast<size_t>(t * in + i)]));
            }
            y[static_cast<size_t>(t * out + o)] = sum;
        }
    }
    return y;
}

/// Calls `linear` on dense bf16 rows and returns f32 rows.
inline std::vector<float> run_linear(QuantWeight& weight, const std::vector<uint16_t>& x,
                                     Regime regime = Regime::decode) {
    const QuantInfo info = weight.info();
    const int64_t in = info.in_features;
    const int64_t groups = info.groups;
    const int64_t out = info.out_features;
    const auto rows = static_cast<int64_t>(x.size()) / (in * groups);
    std::vector<float> y(static_cast<size_t>(rows * out), std::nanf(""));
    Bytes scratch(weight.scratch_bytes(rows, regime, DType::f32));
    HostStream stream;
    LinearArgs args;
    args.x = groups == 1 ? make_view(x.data(), DType::bf16, {rows, in})
                         : make_view(x.data(), DType::bf16, {rows, groups, in});
    args.y = groups == 1 ? make_view(y.data(), DType::f32, {rows, out})
                         : make_view(y.data(), DType::f32, {rows, groups, out / groups});
    args.regime = regime;
    args.scratch = scratch.view();
    TENON_EXPECT_OK(weight.linear(args, stream));
    return y;
}

inline std::vector<double> widen(const std::vector<float>& v) {
    return std::vector<double>(v.begin(), v.end());
}

/// Everything a loader needs, and short calls around it.
class QuantBench {
  public:
    explicit QuantBench(QuantFormat* tested, const char* arch = "cpu-test", int32_t workers = 0)
        : format(tested), source(new MemorySource), device(new HostDevice(workers, arch)) {}

    WeightRequest request(StrView base, int64_t in = 0, int64_t out = 0, int32_t groups = 1) {
        WeightRequest r;
        r.base = base;
        r.in_features = in;
        r.out_features = out;
        r.groups = groups;
        r.source = source.get();
        r.device = device.get();
        r.stream = &stream;
        return r;
    }
    Ref<QuantWeight> load(const WeightRequest& r) {
        Ref<QuantWeight> weight;
        TENON_EXPECT_OK(format->load(r, weight.out()));
        return weight;
    }
    Ref<QuantWeight> load(StrView base, int64_t in = 0, int64_t out = 0, int32_t groups = 1) {
        return load(request(base, in, out, groups));
    }
    Status load_status(const WeightRequest& r) {
        Ref<QuantWeight> weight;
        return format->load(r, weight.out());
    }

    Ref<QuantFormat> format;
    Ref<MemorySource> source;
    Ref<HostDevice> device;
    HostStream stream;
};

}  // namespace tenon::testing
