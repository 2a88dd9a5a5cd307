// SPDX-License-Identifier: MIT
// The reference EXL3 product: f64 throughout, one rounding to f32 at the end. Slow on purpose, it
// is what others are compared with.
#include <algorithm>

#include "matrix.h"
#include "tenon/numeric.h"

namespace tenon::exl3 {

namespace {

class ReferenceMatrix final : public Exl3Matrix {
  public:
    explicit ReferenceMatrix(const Part& part)
        : Exl3Matrix(part), inner_(static_cast<size_t>(part.k * part.n)) {
        const Tensors& t = *part.tensors;
        const float* table = codebook_table(t.codebook);
        for (int64_t kt = 0; kt < part.k / kTile; ++kt) {
            for (int64_t nt = 0; nt < part.n / kTile; ++nt) {
                uint16_t tile[tile_words(16)];
                part.copy_tile(kt, nt, tile);
                for (int p = 0; p < kTileWeights; ++p) {
                    *at(kt * kTile + tile_row(p), nt * kTile + tile_column(p)) =
                        table[tile_state(tile, t.twice_k, p)];
                }
            }
        }
    }

    int64_t staged_bytes() const override { return k() * static_cast<int64_t>(sizeof(double)); }
    int64_t work_bytes() const override { return 0; }

    void stage(const packed::RowsIn& x, int64_t rows, std::byte* staged) const override {
        for (int64_t r = 0; r < rows; ++r) {
            auto* to = reinterpret_cast<double*>(staged + r * staged_bytes());
            for (int64_t i = 0; i < k(); ++i) {
                const double value = i >= in()                ? 0.0
                                     : x.dtype == DType::bf16 ? bf16_to_f32(x.bf16_row(r)[i])
                                                              : x.f32_row(r)[i];
                to[i] = value * static_cast<double>(suh()[i]);
            }
            for (int64_t i = 0; i < k(); i += kRotation) {
                hadamard128(to + i);
            }
        }
    }

    void block(int64_t index, const std::byte* staged, int64_t rows, float* y,
               std::byte*) const override {
        for (int64_t r = 0; r < rows; ++r) {
            const auto* x = reinterpret_cast<const double*>(staged + r * staged_bytes());
            double sum[kRotation] = {};
            for (int64_t i = 0; i < k(); ++i) {
                const float* w = inner_.data() + (index * k() + i) * kRotation;
                for (int64_t c = 0; c < kRotation; ++c) {
                    sum[c] += x[i] * static_cast<double>(w[c]);
                }
            }
            hadamard128(sum);
            for (int64_t c = 0; c < kRotation; ++c) {
                const int64_t column = index * kRotation + c;
                const double scaled = sum[c] / 128.0 * static_cast<double>(svh()[column]);
                y[r * packed::kBlock + c] =
                    static_cast<float>(scaled + (bias() == nullptr ? 0.0 : bias()[column]));
            }
        }
    }

  protected:
    int64_t weight_bytes() const override {
        return static_cast<int64_t>(inner_.size() * sizeof(float));
    }
    int staging_kind() const override { return 1; }
    void inner_block(int64_t kb, int64_t nb, float* dst) const override {
        std::copy_n(inner_.data() + (nb * k() + kb * kRotation) * kRotation, kRotation * kRotation,
                    dst);
    }

  private:
    float* at(int64_t row, int64_t column) {
        return inner_.data() + (column / kRotation * k() + row) * kRotation + column % kRotation;
    }

    std::vector<float> inner_;  // [n / 128][k][128]
};

}  // namespace

static_assert(packed::kBlock == kRotation);

std::unique_ptr<packed::Matrix> make_reference_matrix(const Part& part) {
    return std::make_unique<ReferenceMatrix>(part);
}

int64_t reference_bytes(const Part& part) {
    return part.k * part.n * static_cast<int64_t>(sizeof(float)) +
           Exl3Matrix::scale_bytes(part.k, part.n, part.with_bias);
}

}  // namespace tenon::exl3
