// SPDX-License-Identifier: MIT
// Ordinary matrices on the CPU: what the reference and the SIMD form share, and the functions that
// make them.
#pragma once

#include <memory>

#include "tensors.h"

namespace tenon::plain {

/// Rows are staged as f32, rounded to E4M3 per 32 columns if the part asks for it.
class PlainMatrix : public packed::Matrix {
  public:
    explicit PlainMatrix(const Part& part)
        : Matrix(part.in, part.out), quantise_input_(part.quantise_input) {}

    int64_t staged_bytes() const final {
        return packed::round_up(in() * static_cast<int64_t>(sizeof(float)), 64);
    }
    bool stages_for(const Matrix& other) const final;
    void stage(const packed::RowsIn& x, int64_t rows, std::byte* staged) const final;

  private:
    bool quantise_input_;
};

/// Replaces each 32 values by E4M3 numbers times a power of two (Q8 of docs/dsv41.md 3.4), in f32.
void quantise_row(float* x, int64_t count);

/// Plain loops with f64 sums over weights that were decoded at load.
std::unique_ptr<packed::Matrix> make_reference_matrix(const Part& part);
inline int64_t reference_bytes(const Part& part) {
    return part.out * part.in * static_cast<int64_t>(sizeof(float));
}

/// Packed weights with the kernels of this CPU (kernels.h). Bits do not depend on which SIMD target
/// it is, on rows or on the regime.
struct Kernels;
std::unique_ptr<packed::Matrix> make_simd_matrix(const Part& part, const Kernels& kernels);
int64_t simd_bytes(const Part& part);

std::unique_ptr<quant::Backend<Part>> make_cpu_backend(Device& device);

}  // namespace tenon::plain
