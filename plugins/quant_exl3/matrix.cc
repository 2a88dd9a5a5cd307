// SPDX-License-Identifier: MIT
// Scales and the exact decoded weight of an EXL3 matrix.
#include "matrix.h"

#include <algorithm>

namespace tenon::exl3 {

namespace {

std::vector<float> slice(const std::vector<float>& v, int64_t first, int64_t count) {
    return v.empty() ? std::vector<float>()
                     : std::vector<float>(v.begin() + first, v.begin() + first + count);
}

}  // namespace

Exl3Matrix::Exl3Matrix(const Part& part)
    : Matrix(part.in, part.out),
      k_(part.k),
      n_(part.n),
      suh_(slice(part.tensors->suh, part.k0, part.k)),
      svh_(slice(part.tensors->svh, part.n0, part.n)),
      bias_(part.with_bias ? slice(part.tensors->bias, part.n0, part.n) : std::vector<float>()) {}

bool Exl3Matrix::stages_for(const Matrix& other) const {
    const auto* o = dynamic_cast<const Exl3Matrix*>(&other);
    return o != nullptr && o->staging_kind() == staging_kind() && o->in() == in() &&
           o->suh_ == suh_;
}

// W = diag(suh) H Wq H diag(svh). The butterflies of fp16 values are exact in f64, so each element
// is rounded once by the scales and once to f32.
void Exl3Matrix::dequantize(int64_t row0, int64_t rows, float* dst, int64_t stride) const {
    std::vector<float> inner(kRotation * kRotation);
    std::vector<double> w(kRotation * kRotation);  // [column][row]
    for (int64_t nb = row0 / kRotation; nb * kRotation < row0 + rows; ++nb) {
        for (int64_t kb = 0; kb * kRotation < in(); ++kb) {
            inner_block(kb, nb, inner.data());
            for (int64_t r = 0; r < kRotation; ++r) {
                double line[kRotation];
                std::copy_n(inner.data() + r * kRotation, kRotation, line);
                hadamard128(line);
                for (int64_t c = 0; c < kRotation; ++c) {
                    w[static_cast<size_t>(c * kRotation + r)] = line[c];
                }
            }
            const int64_t first = std::max(row0, nb * kRotation);
            const int64_t last = std::min(row0 + rows, (nb + 1) * kRotation);
            const int64_t channels = std::min(kRotation, in() - kb * kRotation);
            for (int64_t out_row = first; out_row < last; ++out_row) {
                double* column = w.data() + (out_row % kRotation) * kRotation;
                hadamard128(column);
                const double scale_out = static_cast<double>(svh()[out_row]) / 128.0;
                float* to = dst + (out_row - row0) * stride + kb * kRotation;
                for (int64_t c = 0; c < channels; ++c) {
                    const double scale = static_cast<double>(suh()[kb * kRotation + c]) * scale_out;
                    to[c] = static_cast<float>(scale * column[c]);
                }
            }
        }
    }
}

}  // namespace tenon::exl3
