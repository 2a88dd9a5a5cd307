// SPDX-License-Identifier: MIT
// The reference product of an ordinary matrix: f64 dots, one rounding to f32 at the end.
#include <algorithm>

#include "matrix.h"

namespace tenon::plain {

namespace {

class ReferenceMatrix final : public PlainMatrix {
  public:
    explicit ReferenceMatrix(const Part& part)
        : PlainMatrix(part), w_(static_cast<size_t>(part.out * part.in)) {
        for (int64_t o = 0; o < part.out; ++o) {
            decode_row(*part.tensors, part.o0 + o, part.i0, part.in, w_.data() + o * part.in);
        }
    }

    int64_t work_bytes() const override { return 0; }
    int64_t bytes() const override { return static_cast<int64_t>(w_.size() * sizeof(float)); }

    void block(int64_t index, const std::byte* staged, int64_t rows, float* y,
               std::byte*) const override {
        const int64_t first = index * packed::kBlock;
        const int64_t columns = std::min(packed::kBlock, out() - first);
        for (int64_t r = 0; r < rows; ++r) {
            const auto* x = reinterpret_cast<const float*>(staged + r * staged_bytes());
            for (int64_t c = 0; c < columns; ++c) {
                const float* w = w_.data() + (first + c) * in();
                double sum = 0;
                for (int64_t i = 0; i < in(); ++i) {
                    sum += static_cast<double>(x[i]) * static_cast<double>(w[i]);
                }
                y[r * packed::kBlock + c] = static_cast<float>(sum);
            }
        }
    }

    void dequantize(int64_t row0, int64_t rows, float* dst, int64_t stride) const override {
        for (int64_t r = 0; r < rows; ++r) {
            std::copy_n(w_.data() + (row0 + r) * in(), in(), dst + r * stride);
        }
    }

  private:
    std::vector<float> w_;  // [out][in]
};

}  // namespace

std::unique_ptr<packed::Matrix> make_reference_matrix(const Part& part) {
    return std::make_unique<ReferenceMatrix>(part);
}

}  // namespace tenon::plain
