// SPDX-License-Identifier: MIT
// Weights from a description: what a tensor holds is what its entry says, however large it is.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "host/checkpoint/synthetic.h"
#include "tenon/numeric.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {
namespace {

class SyntheticWeights : public ::testing::Test {
  protected:
    Status open(const std::string& tensors, Ref<WeightSource>* out) {
        const std::string path = (folder_.path() / "synthetic.json").string();
        std::ofstream(path) << "{\"tensors\": [" << tensors << "]}";
        return open_synthetic(path, out->out());
    }
    TempDir folder_;
};

TEST_F(SyntheticWeights, Ranges_name_one_tensor_each) {
    Ref<WeightSource> source;
    TENON_ASSERT_OK(open(R"({"name": "l.{0..2}.e.{8..10}.w", "dtype": "F32", "shape": [2, 3],
                             "fill": "value 1.5"})",
                         &source));
    EXPECT_EQ(source->count(), 9U);
    TensorInfo info;
    TENON_ASSERT_OK(source->find("l.2.e.10.w", &info));
    EXPECT_EQ(info.bytes, 24U);
    EXPECT_EQ(info.shape[1], 3);
    TENON_EXPECT_ERROR(source->find("l.3.e.10.w", &info), Code::not_found, "l.3.e.10.w");
}

TEST_F(SyntheticWeights, Values_have_their_distribution) {
    Ref<WeightSource> source;
    TENON_ASSERT_OK(open(R"({"name": "n", "dtype": "BF16", "shape": [1000, 1000],
                             "fill": "normal 0.25"},
                            {"name": "s", "dtype": "F16", "shape": [4096], "fill": "signs 0.5"},
                            {"name": "v", "dtype": "I32", "shape": [], "fill": "value -7"},
                            {"name": "b", "dtype": "I16", "shape": [1000000], "fill": "bits"})",
                         &source));
    TensorView n, s, v, b;
    TENON_ASSERT_OK(source->map("n", &n));
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n.elements(); ++i) {
        const double x = bf16_to_f32(n.as<uint16_t>()[i]);
        sum += x;
        squares += x * x;
    }
    // Mean and standard deviation of a million draws, five standard errors around.
    EXPECT_NEAR(sum / 1e6, 0, 5 * 0.25 / 1e3);
    EXPECT_NEAR(std::sqrt(squares / 1e6), 0.25, 5 * 0.25 / std::sqrt(2e6) + 0.25 / 512);
    TENON_ASSERT_OK(source->map("s", &s));
    int64_t plus = 0;
    for (int64_t i = 0; i < 4096; ++i) {
        const float x = f16_to_f32(s.as<uint16_t>()[i]);
        EXPECT_EQ(std::fabs(x), 0.5F);
        plus += x > 0 ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(plus), 2048, 5 * 32);
    TENON_ASSERT_OK(source->map("v", &v));
    EXPECT_EQ(v.rank, 0);
    EXPECT_EQ(*v.as<int32_t>(), -7);
    TENON_ASSERT_OK(source->map("b", &b));
    int64_t ones = 0;
    for (int64_t i = 0; i < b.elements(); ++i) {
        ones += __builtin_popcount(static_cast<unsigned>(b.as<uint16_t>()[i]));
    }
    EXPECT_NEAR(static_cast<double>(ones), 8e6, 5 * 2000);
}

TEST_F(SyntheticWeights, Tensors_larger_than_the_block_are_whole_and_read_like_they_map) {
    Ref<WeightSource> source;
    TENON_ASSERT_OK(open(R"({"name": "t", "dtype": "U8", "shape": [50, 1048576],
                             "fill": "bits"})",
                         &source));
    TensorView t;
    TENON_ASSERT_OK(source->map("t", &t));
    for (const int64_t at : {int64_t{0}, int64_t{20} << 20, (int64_t{50} << 20) - 4096}) {
        std::vector<uint8_t> piece(4096);
        TENON_ASSERT_OK(source->read("t", static_cast<uint64_t>(at), 4096, piece.data()));
        EXPECT_TRUE(std::equal(piece.begin(), piece.end(), t.as<uint8_t>() + at)) << at;
    }
    uint8_t byte = 0;
    TENON_EXPECT_ERROR(source->read("t", 50 << 20, 1, &byte), Code::invalid_argument, "'t'");
}

TEST_F(SyntheticWeights, The_same_file_gives_the_same_bytes) {
    const char* entry = R"({"name": "x", "dtype": "F32", "shape": [1000], "fill": "normal 1"})";
    Ref<WeightSource> a, b;
    TENON_ASSERT_OK(open(entry, &a));
    TENON_ASSERT_OK(open(entry, &b));
    TensorView x, y;
    TENON_ASSERT_OK(a->map("x", &x));
    TENON_ASSERT_OK(b->map("x", &y));
    EXPECT_TRUE(std::equal(x.as<float>(), x.as<float>() + 1000, y.as<float>()));
    ASSERT_EQ(a->digest().size, 32U);
    EXPECT_TRUE(std::equal(a->digest().begin(), a->digest().end(), b->digest().begin()));
}

}  // namespace
}  // namespace tenon::testing
