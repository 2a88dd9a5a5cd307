// SPDX-License-Identifier: MIT
// Fixture of op tests: one suite for every compute plugin. Data go to the device and come back
// through Device::copy, so the same test runs on a CPU and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tenon/compute.h"
#include "tenon/numeric.h"
#include "tenon/ops/state.h"

namespace tenon::testing {

/// A way to make a compute object with the facets compute.device/1 and compute.ops/1.
struct OpProvider {
    std::string name;  ///< letters, digits, underscore
    std::function<Status(Object**)> create;
    std::string unusable{};  ///< why the device cannot be used here, from its probe; empty: usable
};
void PrintTo(const OpProvider& provider, std::ostream* out);
inline std::string provider_name(const ::testing::TestParamInfo<OpProvider>& info) {
    return info.param.name;
}

/// The providers under test; defined once by each test program.
std::vector<OpProvider> op_providers();
/// The provider whose results the others are compared with, if the program was given one; defined
/// beside op_providers().
std::optional<OpProvider> op_oracle();

/// Numbers for test data: fixed seed, the same on every machine (no std distributions).
class Random {
  public:
    explicit Random(uint64_t seed) : engine_(seed) {}
    uint64_t word() { return engine_(); }
    int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
    /// In [-1, 1).
    float unit() {
        return static_cast<float>(static_cast<int64_t>(engine_() >> 40) - (1 << 23)) * 0x1p-23f;
    }
    /// Sum of four units: bell-shaped, variance 4/3.
    float bell() { return unit() + unit() + unit() + unit(); }
    std::vector<float> bells(int64_t n, float scale = 1) {
        std::vector<float> out(static_cast<size_t>(n));
        for (float& x : out) {
            x = bell() * scale;
        }
        return out;
    }
    template <class T>
    void shuffle(std::vector<T>& v) {
        for (size_t i = v.size(); i > 1; --i) {
            std::swap(v[i - 1], v[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
        }
    }

  private:
    std::mt19937_64 engine_;
};

using Shape = std::initializer_list<int64_t>;

/// One device with a stream and the memory of a test.
class OpBench {
  public:
    /// Call once, before everything else.
    Status start(const OpProvider& provider);

    Device& device() { return *device_; }
    OpTable& table() { return *table_; }
    Stream& stream() { return *stream_; }
    /// Whether the device's memory can be read by the host directly (then NaN poison and sparse
    /// buffers are cheap).
    bool on_cpu() { return device_->info().cpu; }

    /// Zero-filled device memory that lives as long as the test.
    TensorView zeros(DType dtype, std::vector<int64_t> shape);
    /// Bytes of `fill` everywhere.
    TensorView filled(DType dtype, std::vector<int64_t> shape, uint8_t fill);
    void write(const TensorView& dst, const void* host_data);
    void read(void* host_data, const TensorView& src);

    TensorView bf16(std::vector<int64_t> shape, const std::vector<float>& values);
    TensorView f32(std::vector<int64_t> shape, const std::vector<float>& values);
    template <class T>
    TensorView put(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
        TensorView v = zeros(dtype, std::move(shape));
        EXPECT_EQ(v.bytes(), static_cast<int64_t>(values.size() * sizeof(T)));
        write(v, values.data());
        return v;
    }
    TensorView i32(std::vector<int64_t> shape, const std::vector<int32_t>& values) {
        return put(DType::i32, std::move(shape), values);
    }
    TensorView u8(std::vector<int64_t> shape, const std::vector<uint8_t>& values) {
        return put(DType::u8, std::move(shape), values);
    }
    /// Copy of a host view of the golden reader.
    TensorView upload(const TensorView& host);
    template <class E>
    TensorView structs(const std::vector<E>& values) {
        TensorView v = zeros(
            DType::u8, {static_cast<int64_t>(values.size()), static_cast<int64_t>(sizeof(E))});
        write(v, values.data());
        return v;
    }
    Rows rows(const std::vector<RowInfo>& row, const std::vector<SegInfo>& seg);
    /// Rows of one slot at pos0.. as one segment.
    Rows one_segment(int32_t slot, int32_t pos0, int32_t n, uint32_t flags = 0);

    template <class T>
    std::vector<T> get(const TensorView& v) {
        std::vector<T> out(static_cast<size_t>(v.bytes()) / sizeof(T));
        read(out.data(), v);
        return out;
    }
    std::vector<uint8_t> bytes(const TensorView& v) { return get<uint8_t>(v); }
    /// bf16 or f32 values as f32.
    std::vector<float> floats(const TensorView& v);

    template <class P>
    OpFn<P> bind(Regime regime = Regime::decode) {
        OpBinder binder({table_});
        OpFn<P> fn;
        binder.bind(&fn, regime);
        EXPECT_TRUE(binder.finish().ok()) << binder.finish().message().view();
        return fn;
    }
    /// Binds, gives poisoned scratch, runs, synchronises.
    template <class P>
    Status try_run(P p, Regime regime = Regime::decode) {
        const OpFn<P> fn = bind<P>(regime);
        if (!fn) {
            return Status(Code::unavailable, "op is missing");
        }
        if constexpr (requires { p.scratch; }) {
            const int64_t needed = fn.scratch(p);
            if (p.scratch.null() && needed > 0) {
                p.scratch = filled(DType::u8, {needed}, 0xFF);
            }
        }
        TENON_TRY(fn(p, stream()));
        return device().synchronize(stream());
    }
    template <class P>
    void run(const P& p, Regime regime = Regime::decode) {
        const Status s = try_run(p, regime);
        ASSERT_TRUE(s.ok()) << P::kOp.name << ": " << code_name(s.code()) << ": "
                            << s.message().view();
    }
    /// The call must be refused with invalid_argument (or `code`) and a message with the op's name
    /// and `text`.
    template <class P>
    void refused(const P& p, const std::string& text, Code code = Code::invalid_argument) {
        const Status s = try_run(p);
        EXPECT_STREQ(code_name(s.code()), code_name(code)) << s.message().view();
        EXPECT_NE(s.message().str().find(P::kOp.name), std::string::npos) << s.message().view();
        EXPECT_NE(s.message().str().find(text), std::string::npos) << s.message().view();
    }

    /// The interface of the device's object, or null.
    template <class T>
    T* facet() {
        return facet_of<T>(object_.get());
    }

  private:
    Ref<Object> object_;
    Device* device_ = nullptr;
    OpTable* table_ = nullptr;
    Ref<Stream> stream_;
    std::vector<Ref<Buffer>> buffers_;
};

class OpTest : public ::testing::TestWithParam<OpProvider>, protected OpBench {
  protected:
    /// Skips with the reason where the device is not usable here.
    void SetUp() override;
    /// Whether the provider has this op, which may be an optional one.
    template <class P>
    bool offered(Regime regime = Regime::decode) {
        OpBinder binder({&table()});
        OpFn<P> fn;
        return binder.bind_optional(&fn, regime);
    }
};

/// Distance in units of the last place of bf16 (values of equal sign; -0 = +0).
int64_t bf16_ulps(float a, float b);

/// How rows of a call vary around the rows that are compared (ops.md 1.6).
struct Variation {
    bool permuted_pages = false;
    bool ring_turned = false;  ///< the ring moved by a full turn of positions, slots renamed
    bool wide_table = false;   ///< page table twice as wide
    bool other_slots = false;  ///< other slots' state overwritten
};

/// Runs rows, given by their numbers; kDeadRow is padding, kHugeRow any row with huge values.
/// Returns the bytes of each row's outputs.
constexpr int kDeadRow = -1;
constexpr int kHugeRow = -2;
using RunRows = std::function<std::vector<std::vector<uint8_t>>(const std::vector<int>& rows,
                                                                const Variation& variation)>;

/// Each row alone against the same row among others: many T, shuffled, with dead and huge rows
/// between.
void expect_row_invariant(const RunRows& run, int64_t largest_T = 129);

}  // namespace tenon::testing

/// Instantiates a suite derived from OpTest for every provider.
#define TENON_INSTANTIATE_OPS(suite)                                                            \
    GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite);                                       \
    INSTANTIATE_TEST_SUITE_P(Ops, suite, ::testing::ValuesIn(::tenon::testing::op_providers()), \
                             ::tenon::testing::provider_name)
