// SPDX-License-Identifier: MIT
// EXL3 matrices on the CPU: what the reference and the SIMD form share, and the functions that make
// them.
#pragma once

#include <memory>

#include "plugins/quant_common/backend.h"
#include "tensors.h"

namespace tenon::exl3 {

/// Scales of the loaded part, kept beside the packed or decoded weights.
///
/// Rows are staged as `(x * suh) H` over k channels, x zero-extended from `in`; a block of outputs
/// is
/// `(staged Wq) H * svh + bias`. Both factors 1/sqrt(128) are applied at the end, as 1/128 (exact).
class Exl3Matrix : public packed::Matrix {
  public:
    explicit Exl3Matrix(const Part& part);

    bool stages_for(const Matrix& other) const final;
    void dequantize(int64_t row0, int64_t rows, float* dst, int64_t stride) const final;
    int64_t bytes() const final { return weight_bytes() + scale_bytes(k_, n_, !bias_.empty()); }

    static int64_t scale_bytes(int64_t k, int64_t n, bool bias) {
        return (k + n + (bias ? n : 0)) * static_cast<int64_t>(sizeof(float));
    }

  protected:
    virtual int64_t weight_bytes() const = 0;
    /// Inner weights of rotation block (kb, nb): dst[row * 128 + column], each exact.
    virtual void inner_block(int64_t kb, int64_t nb, float* dst) const = 0;
    /// A tag that differs between forms whose staged rows differ.
    virtual int staging_kind() const = 0;

    int64_t k() const { return k_; }
    int64_t n() const { return n_; }
    const float* suh() const { return suh_.data(); }
    const float* svh() const { return svh_.data(); }
    const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }

  private:
    int64_t k_;
    int64_t n_;
    std::vector<float> suh_, svh_, bias_;
};

/// Plain loops with f64 sums over weights that were decoded at load.
std::unique_ptr<packed::Matrix> make_reference_matrix(const Part& part);
int64_t reference_bytes(const Part& part);

/// Packed weights with the kernels of this CPU (kernels.h). Bits do not depend on which SIMD target
/// it is, on rows or on the regime.
struct Kernels;
std::unique_ptr<packed::Matrix> make_simd_matrix(const Part& part, const Kernels& kernels);
int64_t simd_bytes(const Part& part);

std::unique_ptr<quant::Backend<Part>> make_cpu_backend(Device& device);

}  // namespace tenon::exl3
